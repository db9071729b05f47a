"""The drift lens: every pair of values that two sides can hold differently, one by one, and quiet where they agree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.entities import Buffers, Entities
from backend.contract.models import ModelFacts
from backend.contract.plans import Profile
from backend.contract.reports import DeviceFacts, EngineFacts, HostReport
from backend.contract.words import Bytes, LoadGeneration, NodeGeneration, NodeId, OpId, Port, UnixMs
from backend.control.drift_lens import Header, header_key
from backend.control.fleet import Fleet, empty_fleet, fold_event
from backend.control.fleet_events import AcknowledgementsRead, AnyFleetEvent, CatalogRead, HeadersRead, Ticked
from backend.control.link_events import LinkDown
from backend.control.views import Acknowledgement, Drift, ModelView
from tests.control.factories import (
    GENERATION,
    MIB,
    REPLICA,
    A,
    B,
    a_leader,
    a_plan,
    a_shard,
    changed,
    entities_of,
    facts_of,
    report_of,
    up,
)

AT_A = entities_of(a_leader(), a_shard(1), plan=a_plan())
C = A.__class__("host-c")


def folded(*events: AnyFleetEvent, fleet: Fleet | None = None) -> Fleet:
    hosts = {host: f"unix:/{host}" for host in (A, B, C)}
    fleet = fleet or empty_fleet("test", "TEST", hosts, read_only=False)  # type: ignore[arg-type]
    for event in events:
        fleet, _ = fold_event(fleet, event)
    return fleet


def drifts_of(
    at_b: Entities | HostReport, at_a: Entities | HostReport = AT_A, *more: AnyFleetEvent
) -> dict[str, Drift]:
    reports = [
        up(given if isinstance(given, HostReport) else report_of(host, given)) for host, given in ((A, at_a), (B, at_b))
    ]
    return {drift.id: drift for drift in folded(*reports, *more).state.drifts}


def only(drifts: dict[str, Drift]) -> Drift:
    (drift,) = drifts.values()
    return drift


def test_a_replica_whose_sides_agree_has_no_drift() -> None:
    assert drifts_of(entities_of(a_shard(2), plan=a_plan())) == {}


SHARD_CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("generation:tiny-1/2", {"node_generation": NodeGeneration(1)}, str(GENERATION), "1"),
    ("engine-release:tiny-1/2", {"release": "build 2"}, "build 1, commit 7e4c0a9", "build 2"),
    ("placement-device:tiny-1/2", {"device": "CUDA0"}, "CPU", "CUDA0"),
    ("placement-layers:tiny-1/2", {"layers": (4, 6)}, "2-4", "4-6"),
    ("placement-ports:tiny-1/2", {"ports": (Port(18_009),)}, "18002", "18009"),
    ("placement-role:tiny-1/2", {"role": "leader"}, "worker", "leader"),
    ("placement-engine:tiny-1/2", {"engine": "vllm"}, "llamacpp", "vllm"),
    ("placement-model:tiny-1/2", {"model": "other"}, "tiny", "other"),
    ("world-size:tiny-1/2", {"world_size": 4}, "3", "4"),
    ("fingerprint:tiny-1/2", {"profile_fingerprint": "g"}, "f", "g"),
]


@pytest.mark.parametrize(("drift_id", "fields", "one", "other"), SHARD_CASES)
def test_a_shard_that_differs_from_its_load_record_is_drift_with_both_values(
    drift_id: str, fields: dict[str, Any], one: str, other: str
) -> None:
    drift = drifts_of(entities_of(a_shard(2, **fields)))[drift_id]
    assert (drift.one, drift.other) == (one, other)
    assert drift.one_source
    assert "host-b" in drift.other_source
    assert drift.severity == "alarm"
    assert drift.consequence.endswith(".")
    assert drift.remedy.endswith(".")
    assert drift.since_unix_ms == a_plan().made_unix_ms, "a shard was born with what it holds"


@pytest.mark.parametrize("reported", [Buffers(2, 10 * MIB + 6000, 2 * MIB, 0), Buffers(2, 10 * MIB, 2 * MIB + 6000, 0)])
def test_a_reported_bound_that_differs_from_the_derived_one_is_drift(reported: Buffers) -> None:
    leader = a_leader(buffers=(Buffers(1, 10 * MIB, 2 * MIB, 5), reported))
    drift = only(drifts_of(entities_of(a_shard(2)), entities_of(leader, a_shard(1), plan=a_plan())))
    assert (drift.id, drift.one) == ("result-bound:tiny-1/2", "weights 10 485 760 + kv 2 097 152")
    assert drift.other == f"weights {reported.weights:,} + kv {reported.kv:,}".replace(",", " ")


def test_a_rank_that_its_live_host_does_not_have_is_drift_and_a_silent_host_is_not() -> None:
    drift = only(drifts_of(Entities()))
    assert (drift.id, drift.one, drift.other) == ("rank-missing:tiny-1/2", "rank 2 on host-b", "not there")
    silent = LinkDown(host=B, at=2.0, unix_ms=UnixMs(2), words="gone")
    assert drifts_of(Entities(), AT_A, silent) == {}


def test_a_rank_twice_and_one_out_of_range_are_drift() -> None:
    twice = changed(a_shard(1), host=B)
    outside = changed(a_shard(1), node_id=NodeId("tiny-1/7"), host=B, rank=7)
    found = drifts_of(entities_of(a_shard(2), twice))
    assert found["rank-twice:tiny-1/1@host-b"].other == "also host-b"
    assert found["rank-twice:tiny-1/1@host-b"].one == "host-a"
    assert drifts_of(entities_of(a_shard(2), outside))["rank-range:tiny-1/7"].one == "ranks 0 to 2"


def test_a_live_shard_of_another_generation_is_a_stray_by_its_own_name() -> None:
    old = LoadGeneration(GENERATION - 5)
    stray = a_shard(1, node_id=NodeId("tiny-1/9"), host=B, load_generation=old)
    found = drifts_of(entities_of(a_shard(2), stray))
    assert found[f"stray:tiny-1/9@{old}"].other == str(old)


def test_load_records_that_differ_between_hosts_are_drift() -> None:
    other = a_plan(model_path="else.gguf")
    assert "load-record:tiny-1@host-b" in drifts_of(entities_of(a_shard(2), plan=other))


def test_another_release_on_disk_another_address_and_another_device_of_the_same_name_are_warnings() -> None:
    facts = msgspec.structs.replace(
        facts_of(B),
        advertise="10.0.0.2",
        engines=(EngineFacts(engine="llamacpp", folder="", release="build 9", devices=("CPU",)),),
        devices=(DeviceFacts(name="CPU", uuid="GPU-new", kind="gpu", total=1, free=1),),
    )
    found = drifts_of(report_of(B, entities_of(a_shard(2, device_uuid="GPU-old")), facts=facts))
    assert {drift.id: (drift.one, drift.other) for drift in found.values()} == {
        "installed-release:tiny-1/2": ("build 1, commit 7e4c0a9", "build 9"),
        "address-now:tiny-1/2": ("127.0.0.1", "10.0.0.2"),
        "device-name:tiny-1/2": ("GPU-old", "GPU-new"),
    }
    assert {drift.severity for drift in found.values()} == {"warn"}


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_an_address_that_means_the_dialling_host_is_drift_only_between_machines(address: str) -> None:
    plan = a_plan()
    shards = tuple(msgspec.structs.replace(shard, advertise=address) for shard in plan.shards)
    plan = a_plan(shards=shards)
    at_a = entities_of(a_leader(advertise=address), a_shard(1, advertise=address), plan=plan)
    at_b = entities_of(a_shard(2, advertise=address))
    there = msgspec.structs.replace(facts_of(B, "boot-2"), advertise=address)
    here = msgspec.structs.replace(facts_of(A), advertise=address)
    both = drifts_of(report_of(B, at_b, facts=there), report_of(A, at_a, facts=here))
    assert list(both) == ["loopback:tiny-1/2"]
    same = msgspec.structs.replace(there, boot_id="boot-1")
    assert drifts_of(report_of(B, at_b, facts=same), report_of(A, at_a, facts=here)) == {}


def in_catalog(path: str = "tiny.gguf", engine: str = "llamacpp", **profile: Any) -> CatalogRead:
    shape = Profile(**{"ranks": 3, "hosts": (A, B), **profile})
    model = ModelView("tiny", (), engine, path, {"two-host": shape})
    return CatalogRead(at=1.0, unix_ms=UnixMs(77), models={"tiny": model}, words="")


def test_the_catalog_beside_the_load_record_names_each_field_and_option_that_differs() -> None:
    at_b = entities_of(a_shard(2))
    assert drifts_of(at_b, AT_A, in_catalog()) == {}
    found = drifts_of(at_b, AT_A, in_catalog(context=8192, port=18_090, options={"flash": True}))
    assert (found["profile-changed:tiny-1"].one, found["profile-changed:tiny-1"].other) == (
        "context 4096, port not set",
        "context 8192, port 18090",
    )
    assert (found["options:tiny-1"].one, found["options:tiny-1"].other) == ("flash not set", "flash True")
    assert only(drifts_of(at_b, AT_A, in_catalog(path="other.gguf"))).id == "model-path:tiny-1"
    assert only(drifts_of(at_b, AT_A, in_catalog(engine="vllm"))).id == "catalog-engine:tiny-1"


def a_model(digest: str) -> ModelFacts:
    return ModelFacts(
        path="tiny.gguf", file_bytes=Bytes(100), expected_bytes=Bytes(100), header_digest=digest, architecture="llama",
        name="tiny", n_layer=2, n_embd=8, n_head=1, n_head_kv=1, key_length=8, value_length=8, n_vocab=8,
        context_train=8, blocks=(), output_bytes=Bytes(0), token_embd_bytes=Bytes(0), has_output=False, tensor_types=(),
    )  # fmt: skip


@pytest.mark.parametrize(("digest", "at", "is_drift"), [("aa", 9, False), ("bb", 9, True), ("bb", 0, False)])
def test_a_model_file_that_was_read_since_and_is_another_one_is_drift(digest: str, at: int, is_drift: bool) -> None:
    plan = a_plan(model_facts=a_model("aa"))
    read = HeadersRead(at=1.0, unix_ms=UnixMs(9), headers={header_key(A, "tiny.gguf"): Header(digest, 100, UnixMs(at))})
    found = drifts_of(entities_of(a_shard(2)), entities_of(a_leader(), a_shard(1), plan=plan), read)
    assert ("model-file:tiny-1" in found) is is_drift


# --- hosts --------------------------------------------------------------------------------------------------------


def with_clock(report: HostReport, offset_ms: int) -> AnyFleetEvent:
    return msgspec.structs.replace(up(report), clock_offset_ms=offset_ms)


@pytest.mark.parametrize(
    ("offset", "severity", "other"),
    [
        (2000, None, ""),
        (2001, "warn", "2.0 s ahead"),
        (-4000, "warn", "4.0 s behind"),
        (301_000, "alarm", "301.0 s ahead"),
    ],
)
def test_a_clock_over_two_seconds_off_is_drift(offset: int, severity: str | None, other: str) -> None:
    found = folded(up(report_of(A)), with_clock(report_of(B), offset)).state.drifts
    assert [(drift.id, drift.severity, drift.other) for drift in found] == (
        [("clock:host-b", severity, other)] if severity else []
    )


def test_when_every_agent_agrees_against_this_clock_this_machine_is_named() -> None:
    fleet = folded(*(with_clock(report_of(host), 60_000) for host in (A, B, C)))
    (drift,) = fleet.state.drifts
    assert (drift.subject, drift.other) == ("this machine", "60.0 s behind")


def test_a_journal_that_goes_backwards_or_is_another_one_is_drift_from_the_moment_it_was_seen() -> None:
    fleet = folded(up(report_of(A, seq=10)), up(report_of(B, seq=10)))
    assert folded(up(report_of(B, seq=10)), up(report_of(A, seq=12)), fleet=fleet).state.drifts == ()
    (drift,) = folded(up(report_of(B, seq=9)), fleet=fleet).state.drifts
    assert (drift.id, drift.one, drift.other) == ("journal:host-b", "record 10", "record 9")
    (drift,) = folded(up(report_of(B, seq=90, journal_id="new")), fleet=fleet).state.drifts
    assert (drift.one, drift.other, drift.since_unix_ms) == ("journal-host to record 10", "new to record 90", 1000)


def test_a_generation_from_the_day_after_tomorrow_is_drift() -> None:
    ahead = Entities(highest_generation=1000 + 86_400_001)
    (drift,) = folded(up(report_of(B, ahead))).state.drifts
    assert (drift.id, drift.other) == ("highest-generation:host-b", "86401001")


# --- since, and acknowledgements ----------------------------------------------------------------------------------


def test_since_survives_a_value_that_moves_and_ends_with_the_drift() -> None:
    fleet = folded(up(report_of(A, AT_A)), up(report_of(B, entities_of(a_shard(2)))), in_catalog(context=1))
    moved = msgspec.structs.replace(in_catalog(context=2), unix_ms=UnixMs(500))
    fleet = folded(moved, fleet=fleet)
    (drift,) = fleet.state.drifts
    assert (drift.other, drift.since_unix_ms) == ("context 2", 77)
    fleet = folded(in_catalog(), fleet=fleet)
    assert fleet.state.drifts == ()
    (drift,) = folded(moved, fleet=fleet).state.drifts
    assert drift.since_unix_ms == 500


def acknowledged(drift: Drift, until: int = 5000) -> AcknowledgementsRead:
    known = Acknowledgement(
        drift=drift.id, note="known", by="alice", at_unix_ms=UnixMs(80), until_unix_ms=UnixMs(until),
        version=drift.version,
    )  # fmt: skip
    return AcknowledgementsRead(at=1.0, unix_ms=UnixMs(90), known={drift.id: known}, words="")


def test_an_acknowledged_drift_is_told_last_and_opens_again_when_it_runs_out_or_moves() -> None:
    at_b = entities_of(a_shard(2, release="build 2"))
    fleet = folded(up(report_of(A, AT_A)), up(report_of(B, at_b)), in_catalog(context=1))
    alarm, warning = fleet.state.drifts
    assert (alarm.severity, warning.severity) == ("alarm", "warn")
    fleet = folded(acknowledged(alarm), fleet=fleet)
    assert [(drift.id, drift.is_open) for drift in fleet.state.drifts] == [(warning.id, True), (alarm.id, False)]
    same = folded(Ticked(at=2.0, unix_ms=UnixMs(4999)), fleet=fleet)
    assert same.state.drifts is fleet.state.drifts
    late = folded(Ticked(at=3.0, unix_ms=UnixMs(5000)), fleet=fleet)
    assert all(drift.is_open for drift in late.state.drifts)
    moved = entities_of(a_shard(2, release="build 3"))
    assert all(drift.is_open for drift in folded(up(report_of(B, moved)), fleet=fleet).state.drifts)


def test_an_acknowledged_clock_stays_acknowledged_while_it_wanders() -> None:
    fleet = folded(up(report_of(A)), with_clock(report_of(B), 3000))
    fleet = folded(acknowledged(fleet.state.drifts[0]), fleet=fleet)
    (drift,) = folded(with_clock(report_of(B), 3400), fleet=fleet).state.drifts
    assert (drift.other, drift.is_open) == ("3.4 s ahead", False)
    (drift,) = folded(with_clock(report_of(B), 400_000), fleet=fleet).state.drifts
    assert drift.is_open


def test_nothing_is_told_anew_while_nothing_changes() -> None:
    fleet = folded(up(report_of(A, AT_A)), up(report_of(B, entities_of(a_shard(2, release="build 2")))))
    later = folded(Ticked(at=9.0, unix_ms=UnixMs(9000)), fleet=fleet)
    assert later.state is fleet.state
    assert REPLICA in later.drifts
    assert OpId("x") not in later.state.operations
