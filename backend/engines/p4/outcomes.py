"""How a request to a p4 agent can end, as types: an answer, a refusal, never sent, or not known.

Silence is none of the first three. ``Unknown`` says what is known instead, and the request can be listened to again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from backend.contract.findings import Finding
from backend.contract.p4.events import P4Event
from backend.contract.p4.hops import ReceiptStatus


class Replied(msgspec.Struct, frozen=True):
    """The expected answer."""

    event: P4Event


class Refused(msgspec.Struct, frozen=True):
    """The p4 agent or the stage said no, and nothing was carried out.

    ``by`` is ``receipt`` (its broker, in hop mode, before anything was queued), ``agent`` or ``stage``.
    """

    words: str
    by: Literal["receipt", "agent", "stage"]


class NotSent(msgspec.Struct, frozen=True):
    """Nothing of it left this host: no slot to spend, too early to dial, no connection, or too much under way."""

    words: str
    finding: Finding | None = None
    """What stopped the dial, when it was a finding."""


class Unknown(msgspec.Struct, frozen=True):
    """It was sent and its outcome is not known; it may have been carried out, or still be.

    ``cause``: ``silence`` (no answer in time; the connection stays and the answer may come), ``closed`` (the connection
    ended; in direct mode that is also how a p4 agent refuses), ``answer`` (something answered that does not fit).
    ``receipt`` is what the broker said of it in hop mode: accepted means queued, not carried out.
    """

    words: str
    cause: Literal["silence", "closed", "answer"]
    receipt: ReceiptStatus | None = None


Outcome = Replied | Refused | Unknown
