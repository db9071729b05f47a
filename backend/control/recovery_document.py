"""The plan of a recovery: what was measured first, and every step with its stop condition and its proof.

A person confirms it by its digest, and it can be saved and applied later, as long as what it stands on still holds.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from backend.contract.findings import Finding, has_refusal
from backend.contract.plans import Plan
from backend.contract.residents import ResidentLook
from backend.contract.words import HostId, LoadGeneration, ReplicaId, UnixMs
from backend.control.sealed_files import SealedUnreadable, read_sealed, write_sealed

FORMAT = 1
LEAVE, END, PORT, MEMORY, CENSUS, BEGIN = "leave", "end", "port", "memory", "census", "begin"
NARROW, ROOM, LOAD, BRIDGE, PROMPT = "narrow", "room", "load", "bridge", "prompt"
STEPS = (LEAVE, END, PORT, MEMORY, CENSUS, BEGIN, NARROW, ROOM, LOAD, BRIDGE, PROMPT)
"""The steps in their order, by name."""


class RecoveryUnreadable(SealedUnreadable):
    """A saved plan of a recovery cannot be used; the message names the file and the reason."""


class AtStake(msgspec.Struct, frozen=True, kw_only=True):
    """A replica with a rank on the host. ``plan`` is that of its load, by which it is loaded again.

    None where nobody here placed it: then whoever loaded it has to load it again.
    """

    replica: ReplicaId
    model: str
    profile_name: str
    state: str
    load_generation: LoadGeneration
    hosts: tuple[HostId, ...]
    in_flight: int | None = None
    plan: Plan | None = None


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``by`` is ``ringtop`` or ``a person``; ``command`` is what is run there, or what a person types.

    ``condition`` must hold before it, else the recovery stops there; ``value`` is how that stands now. ``proof`` must
    hold after it.
    """

    name: str
    what: str
    by: Literal["ringtop", "a person"]
    command: str
    condition: str
    value: str
    proof: str


class DeviceFloor(msgspec.Struct, frozen=True):
    """What a device must have free again, in bytes: what it had, and what the stages on it took."""

    name: str
    free: int
    taken: int
    floor: int


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one host's p4 agent is recovered. ``look`` is the baseline, measured before anything is touched.

    ``leave``: its replicas are drained first, within ``deadline_seconds``, or they are said to be cut. ``aside`` is
    where the journal folder goes when the census asks for it. ``memory_need`` is the host memory that its stages take,
    in bytes, 0 for unknown.
    """

    context: str
    host: HostId
    made_unix_ms: UnixMs
    look: ResidentLook
    replicas: tuple[AtStake, ...]
    leave: Literal["drain", "cut"]
    deadline_seconds: float
    aside: str
    floors: tuple[DeviceFloor, ...]
    memory_need: int
    steps: tuple[PlannedStep, ...]
    findings: tuple[Finding, ...]
    engine: str = "p4"
    format: int = FORMAT
    digest: str = ""

    @property
    def moves_journal(self) -> bool:
        """As it stands, its agent would refuse to start again: the journal has to be moved aside, by approval."""
        return bool(self.look.restart)

    @property
    def is_refused(self) -> bool:
        """Some finding stops this recovery before it begins."""
        return has_refusal(self.findings)


def recovery_digest(plan: RecoveryPlan) -> str:
    """sha256 over the plan without its digest, keys sorted: what a person confirms."""
    bare = msgspec.structs.replace(plan, digest="")
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def sealed_recovery(plan: RecoveryPlan) -> RecoveryPlan:
    """The plan with its digest filled in."""
    return msgspec.structs.replace(plan, digest=recovery_digest(plan))


def recovery_moved(before: RecoveryPlan, now: RecoveryPlan) -> tuple[str, ...]:
    """What the plan stood on and is another thing now, both values, in words; empty while it holds."""
    old, new = _standing(before), _standing(now)
    return tuple(
        f"{subject} was {old.get(subject, 'not there')}, and is {new.get(subject, 'not there now')}"
        for subject in sorted(old.keys() | new.keys())
        if old.get(subject) != new.get(subject)
    )


def _standing(plan: RecoveryPlan) -> dict[str, str]:
    look = plan.look
    facts = {
        "the p4 agent": look.life or "not running",
        "its journal": look.journal.folder or "not known",
        "what ends it": look.commands.end or "not known",
        "what starts it": look.commands.begin or "not known",
    }
    for each in plan.replicas:
        facts[f"replica {each.replica}"] = f"generation {each.load_generation} on {', '.join(each.hosts)}"
    for node in look.nodes:
        facts[f"node {node.name}"] = f"generation {node.generation}"
    return facts


def write_recovery(plan: RecoveryPlan, path: Path) -> None:
    """Save a plan as JSON, for ``p4 recover --apply FILE``."""
    write_sealed(plan, path)


def read_recovery(path: Path) -> RecoveryPlan:
    """A plan that was saved. Raises RecoveryUnreadable, also for one that was edited since."""
    return read_sealed(path, RecoveryPlan, "recovery plan", recovery_digest, RecoveryUnreadable, form=FORMAT)
