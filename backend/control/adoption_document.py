"""What a look at the whole fleet finds, as a document: who reported what, what is unwanted, what is held, and why.

A person confirms it by its digest, and it can be saved and applied later, as long as it still holds.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from backend.contract.words import HostId, LoadGeneration, NodeGeneration, NodeId, Port, ReplicaId, UnixMs
from backend.control.sealed_files import SealedUnreadable, read_sealed, write_sealed

FORMAT = 1
Word = Literal[
    "adopt",
    "merge",
    "replace",
    "revive",
    "stray",
    "unclaimed",
    "fail_shard",
    "hold_port",
    "hold_device",
    "want",
    "warn",
]


class AdoptionUnreadable(SealedUnreadable):
    """A saved document cannot be used; the message names the file and the reason."""


class Decision(msgspec.Struct, frozen=True):
    """One thing that follows from the reports, with its reason. ``rule`` is the number of the adoption rule."""

    what: Word
    subject: str
    reason: str
    rule: int
    host: str = ""


class Reporter(msgspec.Struct, frozen=True):
    """One rank as a host reported it. ``pid`` is None while no process is known.

    ``asked_at`` is the address of the engine's own agent that runs it, which has no process of ours; else empty.
    """

    rank: int
    host: HostId
    node_id: NodeId
    generation: LoadGeneration
    state: str
    pid: int | None
    asked_at: str = ""


class ReplicaFound(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. ``claim`` is adopted, ours (an open operation of it), placed, ended or unclaimed.

    ``missing`` says of each rank that nobody reports why not.
    """

    id: ReplicaId
    model: str
    profile_name: str
    generation: LoadGeneration
    world_size: int
    state: str
    claim: str
    reporters: tuple[Reporter, ...]
    missing: dict[int, str] = {}


class Stoppable(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that a person could stop: a stray or an unclaimed one, with everything that tells it from another.

    ``memory`` is what it was promised of its device, ``resident`` what it was measured to take; None is unknown, and so
    is ``started_unix_ms`` None. ``ports`` stay held until nothing listens on them.

    One that an engine's own agent runs is told by ``address``, that agent's, and ``node``, its name there, with the
    generation; the four of a process are 0 and empty then.
    """

    kind: Literal["stray", "unclaimed"]
    host: HostId
    node_id: NodeId
    replica: ReplicaId
    rank: int
    load_generation: LoadGeneration
    node_generation: NodeGeneration
    engine: str
    state: str
    pid: int
    start_ticks: int
    boot_id: str
    nonce: str
    device: str
    memory: int
    ports: tuple[Port, ...]
    why: str
    resident: int | None = None
    started_unix_ms: UnixMs | None = None
    address: str = ""
    node: str = ""

    @property
    def id(self) -> str:
        """Where it is: ``tiny-1/1@gpu-b``."""
        return f"{self.node_id}@{self.host}"

    @property
    def identity(self) -> str:
        """Who it is; another process or node in its place has another one."""
        if self.address:
            return f"generation {self.node_generation}, node {self.node} at {self.address}"
        return f"generation {self.node_generation}, pid {self.pid}, start ticks {self.start_ticks}, nonce {self.nonce}"


class HeldBack(msgspec.Struct, frozen=True, kw_only=True):
    """Ports, or memory of a device, that nobody gets, and which proof ends that."""

    host: HostId
    node_id: NodeId
    generation: LoadGeneration
    kind: str
    ports: tuple[Port, ...] = ()
    device: str = ""
    memory: int = 0
    until: str = ""


class Lost(msgspec.Struct, frozen=True):
    """An orphan or a ghost: which slot or replica it is on which host, and why."""

    subject: str
    host: HostId
    generation: LoadGeneration
    why: str


class ForeignFound(msgspec.Struct, frozen=True):
    """An engine that no agent started. It is shown, and nothing here stops it until a person adopts it.

    ``memory`` is what it holds, ``answers`` and ``words`` what its port told; see ``ForeignProcess``.
    """

    host: HostId
    pid: int
    program: str
    model: str
    ports: tuple[Port, ...]
    memory: int | None
    engine: str = ""
    role: str = ""
    devices: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    user: str = ""
    started_unix_ms: UnixMs | None = None
    start_ticks: int = 0
    answers: str = ""
    words: str = ""

    @property
    def id(self) -> str:
        """As ``ringtop adopt --foreign`` takes it: ``HOST:PID``."""
        return f"{self.host}:{self.pid}"


class AdoptionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All that a look at the fleet found. ``heard`` of ``hosts`` hosts answered; ``silent`` has the others' reasons.

    ``drifts`` are the open ones. ``digest`` covers what ``standing_facts`` says, so that a measurement, the time of day
    and the words of a reason do not make it another document.
    """

    context: str
    made_unix_ms: UnixMs
    heard: int
    hosts: int
    silent: dict[HostId, str]
    replicas: tuple[ReplicaFound, ...]
    decisions: tuple[Decision, ...]
    stoppable: tuple[Stoppable, ...]
    held: tuple[HeldBack, ...]
    orphans: tuple[Lost, ...] = ()
    ghosts: tuple[Lost, ...] = ()
    foreign: tuple[ForeignFound, ...] = ()
    drifts: tuple[str, ...] = ()
    catalog_words: str = ""
    format: int = FORMAT
    digest: str = ""

    @property
    def heard_words(self) -> str:
        """How many hosts answered: ``7 of 8 hosts heard``."""
        return f"{self.heard} of {self.hosts} hosts heard"

    @property
    def is_pending(self) -> bool:
        """Something could be stopped, or a drift is open."""
        return bool(self.stoppable or self.drifts)


def standing_facts(document: AdoptionDocument) -> dict[str, str]:
    """What the document stands on, by subject: when one of these is another, it no longer holds."""
    facts = {f"host {host}": "silent" for host in document.silent}
    facts["hosts"] = f"{document.hosts} of {document.context}"
    for replica in document.replicas:
        ranks = [f"rank {each.rank} on {each.host} of {each.generation}" for each in replica.reporters]
        ranks += [f"rank {rank} missing" for rank in sorted(replica.missing)]
        facts[f"replica {replica.id}"] = f"{replica.claim}, generation {replica.generation}: {', '.join(ranks)}"
    for each in document.stoppable:
        facts[f"shard {each.id}"] = f"{each.kind}, rank {each.rank}, {each.engine}, {each.identity}, {each.boot_id}"
    for held in document.held:
        what = f"{held.kind} {' '.join(map(str, held.ports))} {held.device} {held.memory}"
        facts[f"held {held.node_id}@{held.host} of {held.generation} {held.kind}"] = " ".join(what.split())
    for kind, found in (("orphan", document.orphans), ("ghost", document.ghosts)):
        facts.update((f"{kind} {each.subject}@{each.host} of {each.generation}", "found") for each in found)
    return facts


def adoption_digest(document: AdoptionDocument) -> str:
    """sha256 over the standing facts, sorted: what a person confirms."""
    return hashlib.sha256(msgspec.json.encode(standing_facts(document), order="sorted")).hexdigest()


def what_moved(before: AdoptionDocument, now: AdoptionDocument) -> tuple[str, ...]:
    """Each fact that is another one now, both values, in words; empty while the document holds."""
    old, new = standing_facts(before), standing_facts(now)
    return tuple(
        f"{subject} was {old.get(subject, 'not there')}, and is {new.get(subject, 'not there now')}"
        for subject in sorted(old.keys() | new.keys())
        if old.get(subject) != new.get(subject)
    )


def write_adoption(document: AdoptionDocument, path: Path) -> None:
    """Save a document as JSON, for ``adopt --apply FILE``."""
    write_sealed(document, path)


def read_adoption(path: Path) -> AdoptionDocument:
    """A document that was saved. Raises AdoptionUnreadable, also for one that was edited since."""
    return read_sealed(path, AdoptionDocument, "adoption document", adoption_digest, AdoptionUnreadable, form=FORMAT)
