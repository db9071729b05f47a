"""What the console may submit. Each becomes an answer in the fleet state under the id that ``submit`` returns."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from backend.contract.entities import ProcessIdentity
from backend.contract.plans import Plan
from backend.contract.reports import ForeignProcess
from backend.contract.words import HostId, LoadGeneration, NodeId, OpId, ReplicaId
from backend.control.adoption_document import AdoptionDocument
from backend.control.recovery_document import RecoveryPlan


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every request. Those marked as writes are refused in read-only mode, here as in the console."""

    is_write: ClassVar[bool] = False


class MakePlan(Request, kw_only=True, frozen=True):
    """Plan a load of ``MODEL[:PROFILE]``; the answer carries the plan. ``hosts`` narrows the choice."""

    target: str
    hosts: tuple[str, ...] = ()


class TakeSnapshot(Request, kw_only=True, frozen=True):
    """Put the reports of all hosts and the headers of the catalog's models on paper; the value has ``snapshot``."""


class StartLoad(Request, kw_only=True, frozen=True):
    """Load what this plan says. ``confirmed`` is the digest a person saw; it must be the plan's."""

    plan: Plan
    confirmed: str
    keep_on_failure: bool = False
    is_write: ClassVar[bool] = True


class PlanReload(Request, kw_only=True, frozen=True):
    """Plan to load a replica again: by its load record's profile (``last``) or the catalog's present one (``now``).

    The answer's plan is of a new replica where there is room beside the old one (replacement first), else of the same
    replica. The value has ``mode``, ``replica``, ``load_generation`` (the present one), ``leave`` and ``reason``.
    """

    replica: ReplicaId
    plan_of: Literal["last", "now"] = "last"


class StartReload(Request, kw_only=True, frozen=True):
    """Reload a replica as ``PlanReload`` said. ``load_generation`` is the one that is to go, as a person saw it.

    ``confirmed`` is the plan's digest; a plan of another replica id is loaded first, then the old one is drained.
    """

    replica: ReplicaId
    load_generation: LoadGeneration
    plan: Plan
    confirmed: str
    deadline_seconds: float = 120.0
    at_deadline: Literal["stop", "give-up"] = "give-up"
    admission_closed_by: str = ""
    why: str = ""
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
    """Read engine output of one shard; the value has ``text``, ``offset`` (of its end), ``size`` and ``generation``.

    With ``previous`` it is the output of the run before the present one.
    """

    node_id: str
    offset: int = -16_384
    limit: int = 65_536
    previous: bool = False


class ResumeOperation(Request, kw_only=True, frozen=True):
    """Continue an operation whose process is gone, from its ledger file.

    ``move_journal``: the person approves, for the reason ``why``, that a recovery moves a p4 agent's journal aside.
    """

    operation: OpId
    move_journal: bool = False
    why: str = ""
    is_write: ClassVar[bool] = True


class RollBackOperation(Request, kw_only=True, frozen=True):
    """Take an operation back whose process is gone: stop what a load started, cancel a drain."""

    operation: OpId
    is_write: ClassVar[bool] = True


class SettleOperation(Request, kw_only=True, frozen=True):
    """Close an operation whose process is gone, by what the fleet says. ``despite_silence``: silent hosts too."""

    operation: OpId
    despite_silence: bool = False
    is_write: ClassVar[bool] = True


class RebuildLedger(Request, kw_only=True, frozen=True):
    """Write an entry for every load that the agents keep a record of and this home's ledger lacks."""

    is_write: ClassVar[bool] = True


class AcknowledgeDrift(Request, kw_only=True, frozen=True):
    """Say that a drift is known, why, and for how long."""

    drift: str
    note: str
    seconds: float
    is_write: ClassVar[bool] = True


class ReopenDrift(Request, kw_only=True, frozen=True):
    """Take the acknowledgement of a drift back."""

    drift: str
    is_write: ClassVar[bool] = True


class CheckModels(Request, kw_only=True, frozen=True):
    """Read the model files of what runs, so that they are compared with the load records. Changes nothing."""


class AskJournal(Request, kw_only=True, frozen=True):
    """Ask one host about its journal: ``verify`` reads all of it, ``export`` gives a page of records after ``after``.

    The value has what the agent said; an export's has ``records``, ``next`` and ``head_seq``.
    """

    host: str
    question: Literal["verify", "stats", "export"]
    after: int = 0


class ForkJournalRequest(Request, kw_only=True, frozen=True):
    """Accept what the damaged journal of a host has lost; a new journal_epoch begins there."""

    host: str
    accept_loss: bool = False
    is_write: ClassVar[bool] = True


class StartAdopt(Request, kw_only=True, frozen=True):
    """Stop the strays and unclaimed shards that a document names, or only the one with this id of them.

    ``confirmed`` is the digest a person saw. Refused when the document no longer holds; with ``only`` it is that shard
    that must be the same. While a host is silent it takes ``despite_silence``: who serves there is not known.
    """

    document: AdoptionDocument
    confirmed: str
    only: str = ""
    why: str = ""
    despite_silence: bool = False
    is_write: ClassVar[bool] = True


class PlanForeign(Request, kw_only=True, frozen=True):
    """Plan the adoption of an engine that no agent started as ``MODEL[:PROFILE]``.

    The answer carries the plan with its findings; the value has ``process``, as its agent sees it.
    """

    host: HostId
    pid: int
    target: str


class AdoptForeignRequest(Request, kw_only=True, frozen=True):
    """Adopt exactly this process as its plan says. ``confirmed`` is the plan's digest, as a person saw it."""

    host: HostId
    process: ForeignProcess
    plan: Plan
    confirmed: str
    why: str = ""
    is_write: ClassVar[bool] = True


class HoldSubject(Request, kw_only=True, frozen=True):
    """Hold a replica or a model down or paused at the agents; None: until somebody resumes it.

    Without ``scope`` the name says which of the two it is.
    """

    subject: str
    kind: Literal["down", "paused", "quarantined"]
    scope: Literal["", "replica", "model"] = ""
    seconds: float | None = None
    why: str = ""
    is_write: ClassVar[bool] = True


class ResumeSubject(Request, kw_only=True, frozen=True):
    """Release whatever holds a replica or a model, a quarantine too."""

    subject: str
    is_write: ClassVar[bool] = True


class CordonRequest(Request, kw_only=True, frozen=True):
    """Take no new shards at a host; None lasts until it is uncordoned. What runs there runs on.

    ``revision`` is the host's as a person saw it; None takes the one that stands when the request is read.
    """

    host: str
    seconds: float | None = None
    why: str = ""
    revision: int | None = None
    is_write: ClassVar[bool] = True


class UncordonRequest(Request, kw_only=True, frozen=True):
    """Take new shards at a host again, whoever cordoned it."""

    host: str
    revision: int | None = None
    is_write: ClassVar[bool] = True


class ClaimKeeping(Request, kw_only=True, frozen=True):
    """Claim the keeper's lease at every live agent, or renew it; the value has ``held`` and ``refused`` by host."""

    keeper_epoch: int
    console: str
    who: str
    seconds: float
    is_write: ClassVar[bool] = True


class ResignKeeping(Request, kw_only=True, frozen=True):
    """Give the keeper's lease back at every live agent."""

    keeper_epoch: int
    console: str
    is_write: ClassVar[bool] = True


class StopShard(Request, kw_only=True, frozen=True):
    """Stop one shard that nobody wants: this generation and this process, or nothing."""

    host: HostId
    node_id: NodeId
    generation: LoadGeneration
    identity: ProcessIdentity | None
    why: str
    is_write: ClassVar[bool] = True


class PlanRecovery(Request, kw_only=True, frozen=True):
    """Measure a host's p4 agent and plan its recovery; the value has the ``recovery``. Changes nothing.

    ``leave``: its replicas are drained first, within ``deadline_seconds``, or cut.
    """

    host: str
    leave: Literal["drain", "cut"] = "drain"
    deadline_seconds: float = 120.0


class StartRecovery(Request, kw_only=True, frozen=True):
    """Recover a host's p4 agent as this plan says. ``confirmed`` is the digest a person saw.

    ``move_journal`` approves that its journal is moved aside, for the reason ``why``; a person's own steps are waited
    for ``person_seconds`` each, a condition for ``patience_seconds`` to hold.
    """

    plan: RecoveryPlan
    confirmed: str
    move_journal: bool = False
    why: str = ""
    person_seconds: float = 300.0
    patience_seconds: float = 90.0
    is_write: ClassVar[bool] = True


AnyRequest = (
    MakePlan
    | TakeSnapshot
    | StartLoad
    | PlanReload
    | StartReload
    | StartUnload
    | StartDrainRequest
    | ChangeDrainRequest
    | TestRequest
    | LogRequest
    | ResumeOperation
    | RollBackOperation
    | SettleOperation
    | RebuildLedger
    | AcknowledgeDrift
    | ReopenDrift
    | CheckModels
    | AskJournal
    | ForkJournalRequest
    | StartAdopt
    | HoldSubject
    | ResumeSubject
    | CordonRequest
    | UncordonRequest
    | ClaimKeeping
    | ResignKeeping
    | StopShard
    | PlanRecovery
    | StartRecovery
    | PlanForeign
    | AdoptForeignRequest
)
