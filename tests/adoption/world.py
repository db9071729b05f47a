"""A whole fleet in a few words: what each host reports, folded, classified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend.contract.entities import Entities, ProcessIdentity, Shard
from backend.contract.plans import Profile
from backend.contract.words import AgentAddress, HostId, LoadGeneration, OpId, UnixMs
from backend.control.adoption import classify
from backend.control.adoption_document import AdoptionDocument, Decision
from backend.control.fleet import Fleet, empty_fleet, fold_event
from backend.control.fleet_events import AnyFleetEvent, CatalogRead, OperationsRead
from backend.control.link_events import LinkDown
from backend.control.views import ModelView, OperationView
from tests.control.factories import GENERATION, REPLICA, A, B, a_leader, a_plan, a_shard, entities_of, report_of, up

C = HostId("host-c")
OLDER, NEWER = LoadGeneration(GENERATION - 1000), LoadGeneration(GENERATION + 1000)
TINY = ModelView("tiny", ("t",), "llamacpp", "tiny.gguf", {"two-host": Profile(ranks=3, hosts=(A, B))})
OTHER = ModelView("other", (), "llamacpp", "other.gguf", {"alone": Profile(ranks=1, hosts=(A,))})


def process(number: int, nonce: str = "") -> ProcessIdentity:
    """A process; another number is another one."""
    return ProcessIdentity(4000 + number, 70_000 + number, "boot-1", nonce or f"nonce-{number}")


def running(rank: int, state: str = "ready", **fields: Any) -> Shard:
    """A shard with a process."""
    generation = int(fields.get("load_generation", GENERATION))
    number = rank + 10 * (generation % 97) + (100_000 if fields.get("host") == C else 0)
    made = a_leader(state, **fields) if rank == 0 else a_shard(rank, state, **fields)
    return msgspec.structs.replace(made, identity=fields.get("identity", process(number)))


WHOLE_A = entities_of(running(0), running(1), plan=a_plan())
WHOLE_B = entities_of(running(2), plan=a_plan())


def a_fleet(hosts: Sequence[HostId] = (A, B)) -> Fleet:
    """Nothing has been heard."""
    return empty_fleet("test", "TEST", {host: AgentAddress(f"unix:/{host}") for host in hosts}, read_only=False)


def folded(*events: AnyFleetEvent, fleet: Fleet | None = None) -> Fleet:
    """The fleet after these, in this order."""
    fleet = fleet or a_fleet(sorted({event.host for event in events if hasattr(event, "host")} | {A, B}))
    for event in events:
        fleet, _ = fold_event(fleet, event)
    return fleet


def says(host: HostId, entities: Entities | None = None, **fields: Any) -> AnyFleetEvent:
    """A host reports on a fresh connection."""
    return up(report_of(host, entities, **fields))


def silence(host: HostId, at: float = 5.0) -> LinkDown:
    """A host falls silent."""
    return LinkDown(host=host, at=at, unix_ms=UnixMs(1), words="ssh: connection timed out")


def catalog(*models: ModelView, words: str = "") -> CatalogRead:
    """The catalog is read."""
    return CatalogRead(at=2.0, unix_ms=UnixMs(2), models={model.name: model for model in models}, words=words)


def an_operation(kind: str = "load", **fields: Any) -> OperationView:
    """An operation as its ledger tells it."""
    values: dict[str, Any] = {
        "id": OpId(f"{kind}-1"),
        "kind": kind,
        "subject": REPLICA,
        "by": "alice",
        "state": "running",
        "words": "",
        "started_unix_ms": UnixMs(1),
        "ended_unix_ms": None,
        "load_generation": GENERATION,
        "steps": (),
        "plan": a_plan() if kind == "load" else None,
        **fields,
    }
    return OperationView(**values)


def ledger(*views: OperationView) -> OperationsRead:
    """The ledger is read."""
    return OperationsRead(at=3.0, unix_ms=UnixMs(3), operations={view.id: view for view in views})


def document_of(*events: AnyFleetEvent, fleet: Fleet | None = None) -> AdoptionDocument:
    """What is found after these."""
    return classify(folded(*events, fleet=fleet).state, 9)


def decisions(document: AdoptionDocument, what: str) -> list[Decision]:
    """The decisions of one kind."""
    return [each for each in document.decisions if each.what == what]


def reason(document: AdoptionDocument, what: str) -> str:
    """The reason of the only decision of a kind."""
    (only,) = decisions(document, what)
    return only.reason
