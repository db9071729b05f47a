"""Engines that no agent started, beside the profile they are said to be; and what stays unknown of an adopted one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.entities import TakenOver
from backend.contract.findings import Finding
from backend.contract.plans import Profile
from backend.contract.reports import DeviceFacts, ForeignProcess
from backend.contract.states import ReplicaState
from backend.contract.words import Port, ReplicaId, UnixMs
from backend.control.rebuilding import find_lost
from backend.planning.catalog import ModelEntry
from backend.planning.fleet import FleetFacts
from backend.planning.foreign import match_profile, measured_bound, plan_adoption
from backend.planning.guards import BY_ID
from tests.adoption.world import OTHER, catalog, decisions, document_of, folded, says
from tests.control.factories import A, B, a_leader, a_plan, entities_of
from tests.planning.worlds import NOW, a_fleet, a_host

PROCESS = ForeignProcess(
    pid=4711,
    program="llama-server",
    ports=(Port(8080),),
    model="/models/tiny.gguf",
    memory=700,
    start_ticks=81_234,
    boot_id="boot-1",
    engine="llamacpp",
    role="leader",
    ranks=1,
    devices=("CPU",),
    address="127.0.0.1",
    answers="ready",
)
GPUS = tuple(DeviceFacts(name=f"CUDA{n}", uuid=f"GPU-{n}", kind="cuda", total=9, free=1) for n in range(2))


def findings(profile: Profile | None = None, *, path: str = "tiny.gguf", **fields: Any) -> list[Finding]:
    """What speaks against adopting the process, of which some fields are others, as a profile of the tiny model."""
    facts = msgspec.structs.replace(a_host("host-a").facts, devices=GPUS)
    entry, process = ModelEntry(name="tiny", path=path), msgspec.structs.replace(PROCESS, **fields)
    return list(match_profile(process, facts, entry, "alone", profile or Profile(ranks=1)))


def test_a_process_that_is_what_it_is_said_to_be_has_nothing_against_it() -> None:
    assert findings() == []
    assert findings(path="/models/tiny.gguf") == []
    assert findings(Profile(ranks=1, port=8080)) == []
    assert findings(Profile(ranks=1, device="CUDA*"), devices=("CUDA0", "CUDA1"), device_memory=4) == []
    assert findings(Profile(ranks=1, device="GPU-1"), devices=("CUDA1",), device_memory=4) == []


MISMATCHES: list[tuple[str, Profile, dict[str, Any], str, str]] = [
    ("foreign.engine", Profile(ranks=1), {"engine": "vllm"}, "engine llamacpp", "engine vllm"),
    ("foreign.role", Profile(ranks=1), {"role": "worker"}, "a leader", "a worker"),
    ("foreign.identity", Profile(ranks=1), {"start_ticks": 0}, "start ticks", "pid 4711 alone"),
    ("foreign.user", Profile(ranks=1), {"can_signal": False, "user": "bob"}, "may end", "a process of bob"),
    ("foreign.ranks", Profile(ranks=1), {"ranks": 3}, "ranks = 1", "3, by its command line"),
    ("foreign.ring", Profile(ranks=2), {"ranks": 2}, "one process", "ranks = 2"),
    ("foreign.model", Profile(ranks=1), {"model": "/models/big.gguf"}, "model tiny.gguf", "/models/big.gguf"),
    ("foreign.port", Profile(ranks=1, port=9), {}, "port = 9", "port 8080"),
    ("foreign.port", Profile(ranks=1), {"ports": ()}, "a port that takes requests", "none"),
    ("foreign.device", Profile(ranks=1, device="CUDA0"), {}, "device = CUDA0", "CPU, by the drivers"),
    ("foreign.device", Profile(ranks=1, device="CUDA0"), {"devices": ("CUDA0", "CUDA1")}, "CUDA0", "CUDA0, CUDA1"),
    ("foreign.answers", Profile(ranks=1), {"answers": "other", "words": "/health 404"}, "llamacpp", "/health 404"),
]


@pytest.mark.adoption("model, port, device, ranks and engine that do not match: refused with both values and a remedy")
@pytest.mark.parametrize(("id", "profile", "fields", "expected", "found"), MISMATCHES)
def test_what_does_not_match_is_refused_with_both_values_and_the_remedy(
    id: str, profile: Profile, fields: dict[str, Any], expected: str, found: str
) -> None:
    refusal = next(each for each in findings(profile, **fields) if each.id == id)
    assert refusal.is_refusal
    assert expected in refusal.expected
    assert found in refusal.found
    assert refusal.remedy.endswith(".")
    assert "4711" in refusal.subject
    assert BY_ID[id].step == "adopt"


@pytest.mark.adoption("what cannot be known of a foreign engine is a warning, never an agreement")
@pytest.mark.parametrize(
    ("id", "fields"),
    [
        ("foreign.ranks", {"ranks": None}),
        ("foreign.model", {"model": ""}),
        ("foreign.device", {"devices": ()}),
        ("foreign.memory", {"memory": None}),
        ("foreign.answers", {"answers": "closed", "words": "it wants a key, which proves nothing"}),
        ("foreign.answers", {"answers": ""}),
    ],
)
def test_what_cannot_be_known_is_a_warning(id: str, fields: dict[str, Any]) -> None:
    (warning,) = findings(**fields)
    assert (warning.id, warning.severity) == (id, "warn")


def test_the_plan_is_one_shard_of_a_new_replica_with_the_memory_that_was_measured() -> None:
    report = a_host("host-a")
    entry = ModelEntry(name="tiny", path="tiny.gguf")
    plan = plan_adoption(PROCESS, report, a_fleet(report), entry, "alone", Profile(ranks=1), now_unix_ms=NOW)
    (shard,) = plan.shards
    assert (plan.replica, shard.node_id, shard.ports, shard.device) == ("tiny-1", "tiny-1/0", (8080,), "CPU")
    assert (shard.bound.memory, shard.bound.derived, int(shard.node_generation)) == (700, False, NOW)
    assert not plan.is_refused
    off = FleetFacts(reports=(report,), clock_offsets_ms={report.host: 400_000})
    late = plan_adoption(PROCESS, report, off, entry, "alone", Profile(ranks=1), now_unix_ms=NOW)
    assert [each.id for each in late.findings] == ["clock.off"], "its number would be wrong for everybody"


def adopted() -> Any:
    """A fleet in which an engine was adopted on host-a."""
    taken = TakenOver(by="alice", why="it runs", at_unix_ms=UnixMs(1), program="llama-server", address="127.0.0.1")
    planned = msgspec.structs.replace(a_plan().shards[0], bound=measured_bound(PROCESS))
    plan = a_plan(profile=Profile(ranks=1), shards=(planned,), profile_name="alone")
    shard = a_leader(
        canary=None, buffers=(), bound=measured_bound(PROCESS), world_size=1, taken_over=taken, profile_name="alone"
    )
    return says(A, entities_of(shard, plan=plan))


@pytest.mark.adoption("an adopted engine is ready without a canary; bound and generation are unknown, never equal")
def test_bound_and_generation_of_an_adopted_engine_are_unknown_and_it_is_ready_all_the_same() -> None:
    view = folded(adopted()).state.replicas[ReplicaId("tiny-1")]
    assert view.state is ReplicaState.READY
    assert "adopted by alice (it runs): no agent started it" in view.words
    (shard,) = view.shards
    assert (view.bound, shard.bound, shard.generation) == ("unknown", "unknown", "unknown")
    assert folded(adopted()).state.drifts == ()


@pytest.mark.adoption("an adopted engine is taken over by every later console like any other, and is nobody's stray")
def test_a_control_plane_without_memory_takes_an_adopted_engine_over() -> None:
    found = document_of(catalog(OTHER), adopted(), says(B))
    assert [each.subject for each in decisions(found, "adopt")] == ["tiny-1"]
    assert found.stoppable == ()
    assert found.ghosts == ()


def test_a_rebuilt_ledger_invents_no_load_of_an_adopted_engine(tmp_path: Any) -> None:
    assert find_lost(folded(adopted()).state, tmp_path) == ()
