"""What the console may submit. Each becomes an answer in the fleet state under the id that ``submit`` returns."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from backend.contract.plans import Plan
from backend.contract.words import OpId, ReplicaId


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every request. Those marked as writes are refused in read-only mode, here as in the console."""

    is_write: ClassVar[bool] = False


class MakePlan(Request, kw_only=True, frozen=True):
    """Plan a load of ``MODEL[:PROFILE]``; the answer carries the plan. ``hosts`` narrows the choice."""

    target: str
    hosts: tuple[str, ...] = ()


class StartLoad(Request, kw_only=True, frozen=True):
    """Load what this plan says. ``confirmed`` is the digest a person saw; it must be the plan's."""

    plan: Plan
    confirmed: str
    keep_on_failure: bool = False
    is_write: ClassVar[bool] = True


class StartUnload(Request, kw_only=True, frozen=True):
    """Stop a replica now, whatever it serves; one that has ended is dismissed."""

    replica: ReplicaId
    why: str = ""
    is_write: ClassVar[bool] = True


class StartDrainRequest(Request, kw_only=True, frozen=True):
    """Empty a replica with a deadline, then stop it or give up."""

    replica: ReplicaId
    deadline_seconds: float
    at_deadline: Literal["stop", "give-up"] = "give-up"
    admission_closed_by: str = ""
    why: str = ""
    is_write: ClassVar[bool] = True


class ChangeDrainRequest(Request, kw_only=True, frozen=True):
    """Extend, force or cancel the drain of a replica."""

    replica: ReplicaId
    action: Literal["extend", "force", "cancel"]
    extend_seconds: float = 60.0
    is_write: ClassVar[bool] = True


class TestRequest(Request, kw_only=True, frozen=True):
    """Send one short prompt through rank 0; the answer's value has ``prompt``, ``text`` and ``seconds``."""

    __test__ = False
    replica: ReplicaId
    prompt: str = "one two three"
    max_tokens: int = 12


class LogRequest(Request, kw_only=True, frozen=True):
    """Read engine output of one shard; the value has ``text``, ``offset`` (of its end) and ``size``."""

    node_id: str
    offset: int = -16_384
    limit: int = 65_536


class ResumeOperation(Request, kw_only=True, frozen=True):
    """Continue an operation whose process is gone, from its ledger file."""

    operation: OpId
    is_write: ClassVar[bool] = True


AnyRequest = (
    MakePlan
    | StartLoad
    | StartUnload
    | StartDrainRequest
    | ChangeDrainRequest
    | TestRequest
    | LogRequest
    | ResumeOperation
)
