"""How long a link waits, and how its connections and questions end when they do not end well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from websockets.exceptions import ConnectionClosed


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``floor`` stands under every delay between two tries, also after a connection that lived briefly."""

    open: float = 10.0
    send: float = 10.0
    silence: float = 15.0
    floor: float = 1.0
    ceiling: float = 15.0
    settled: float = 10.0
    refused: float = 60.0
    tail: int = 200


class AnswerUnknown(Exception):
    """No answer was heard. ``sent`` False: the command never left, so nothing can have come of it."""

    def __init__(self, words: str, *, sent: bool) -> None:
        super().__init__(words)
        self.sent = sent


class Refusal(Exception):
    """The agent did not take the frame at all: its code and its words."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class ConnectionEnded(ConnectionError):
    """The connection cannot be used any more; the message is for a person."""


class WrongHost(Exception):
    """Somebody answers there and must not be talked to; the message names both values."""


def closing_words(error: ConnectionClosed) -> str:
    """Why a websocket is closed: what the other side said, or what this side would not take."""
    heard, said = error.rcvd, error.sent
    if heard is not None and heard.code == 1001:
        return "the agent is stopping"
    if heard is not None:
        return f"the agent closed the connection: {heard}"
    if said is not None:
        return f"this side closed the connection: {said}"
    return "the connection broke off"
