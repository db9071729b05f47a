"""Each guard fires on its own case, stays silent on the one beside it, and names both values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from backend.contract.findings import Finding
from backend.contract.plans import Plan
from backend.contract.words import HostId, Port
from backend.planning.fleet import DAY_MS, FleetFacts
from backend.planning.guards import GUARDS
from backend.planning.guards.addresses import is_loopback
from backend.planning.guards.numbers import generation_differs
from tests.planning.worlds import GIB, NOW, a_fleet, a_host, a_model, a_plan, a_reservation, a_shard, an_engine, holding

MIB = 2**20


def pair(name: str = "host-b", **changes: Any) -> FleetFacts:
    """host-a and host-b, one of them changed."""
    other = "host-a" if name == "host-b" else "host-b"
    return a_fleet(*sorted((a_host(name, **changes), a_host(other)), key=lambda report: report.host))


def both(**changes: Any) -> FleetFacts:
    return a_fleet(a_host("host-a", **changes), a_host("host-b", **changes))


def clocks(**offsets: int) -> FleetFacts:
    return a_fleet(clock_offsets_ms={HostId(name.replace("_", "-")): offset for name, offset in offsets.items()})


def gpu(count: int) -> FleetFacts:
    return both(devices={"CPU": (20 * GIB, 0)} | {f"CUDA{index}": (20 * GIB, 0) for index in range(count)})


def needy(**facts: Any) -> FleetFacts:
    return both(engines=(an_engine("CPU", "CUDA0", needs=("avx_vnni",)),), **facts)


Case = Callable[[], Plan]

# id of the finding, the case that fires it, its neighbour that does not, and words that the finding must hold.
CASES: list[tuple[str, str, Case, Case, tuple[str, ...]]] = [
    (
        "host.unknown",
        "refuse",
        lambda: a_plan(hosts=("host-a", "host-x")),
        lambda: a_plan(hosts=("host-a",)),
        ("host-a, host-b", "host-x", "Did you mean"),
    ),
    (
        "host.unreachable",
        "refuse",
        lambda: a_plan(a_fleet(a_host("host-a"), unreachable=((HostId("host-b"), "connection refused"),))),
        lambda: a_plan(a_fleet(a_host("host-a"), a_host("host-b"), unreachable=((HostId("host-c"), "down"),))),
        ("host-b", "connection refused"),
    ),
    (
        "hosts.none",
        "refuse",
        lambda: a_plan(both(journal="damaged"), profile={"hosts": ()}),
        lambda: a_plan(pair(journal="damaged"), profile={"hosts": ()}),
        ("host-a, host-b: its journal is damaged",),
    ),
    (
        "host.refuses",
        "refuse",
        lambda: a_plan(pair(refuses_loads="KillMode=control-group")),
        lambda: a_plan(pair(refuses_loads="KillMode=control-group"), hosts=("host-a",)),
        ("host-b", "KillMode=control-group"),
    ),
    (
        "journal.unhealthy",
        "refuse",
        lambda: a_plan(pair(journal="disk full since 12:00")),
        lambda: a_plan(pair(journal="ok")),
        ("host-b", "disk full since 12:00"),
    ),
    (
        "engine.missing",
        "refuse",
        lambda: a_plan(pair(engines=())),
        lambda: a_plan(pair(engines=(an_engine("CPU"),))),
        ("host-b", "llamacpp", "none"),
    ),
    (
        "device.missing",
        "refuse",
        lambda: a_plan(pair(engines=(an_engine("ROCm0", "CPU"),)), profile={"device": "CUDA0"}),
        lambda: a_plan(gpu(1), profile={"device": "CUDA0"}),
        ("CUDA0", "ROCm0, CPU"),
    ),
    (
        "release.differs",
        "refuse",
        lambda: a_plan(pair(engines=(an_engine("CPU", release="1-aaaaaaa"),))),
        lambda: a_plan(pair(engines=(an_engine("CPU", "CUDA0"),))),
        ("1-7e4c0a9", "1-aaaaaaa", "host-a", "host-b"),
    ),
    (
        "release.differs",
        "refuse",
        lambda: a_plan(pair(engines=(an_engine("CPU", "CUDA0"),)), profile={"exact_build": True}),
        lambda: a_plan(gpu(2), profile={"exact_build": True}),
        ("for CPU CUDA", "for CPU", "exact_build"),
    ),
    (
        "cpu.features",
        "refuse",
        lambda: a_plan(needy(), model=a_model(tensor_types=("f32", "q4_k"))),
        lambda: a_plan(needy()),
        ("avx_vnni", "q4_k weights", "signal 4"),
    ),
    (
        "cpu.features",
        "refuse",
        lambda: a_plan(needy(), profile={"options": {"cache_type_k": "q8_0"}}),
        lambda: a_plan(needy(), profile={"options": {"cache_type_v": "q8_0"}}),
        ("a q8_0 K cache",),
    ),
    (
        "cpu.features",
        "refuse",
        lambda: a_plan(needy(), model=a_model(tensor_types=("q8_0",))),
        lambda: a_plan(needy(cpu_flags=("avx_vnni",)), model=a_model(tensor_types=("q8_0",))),
        ("host-a",),
    ),
    (
        "cpu.features",
        "refuse",
        lambda: a_plan(needy(), model=a_model(tensor_types=("q8_0",))),
        lambda: a_plan(needy(), model=a_model(tensor_types=("q8_0",)), profile={"device": "CUDA0"}),
        ("signal 4",),
    ),
    (
        "address.loopback",
        "refuse",
        lambda: a_plan(pair(advertise="127.0.0.1")),
        lambda: a_plan(both(advertise="127.0.0.1", boot_id="one machine")),
        ("127.0.0.1", "host-a, host-b", "host-a would dial itself"),
    ),
    (
        "address.loopback",
        "refuse",
        lambda: a_plan(pair("host-a", advertise="localhost")),
        lambda: a_plan(pair(advertise="localhost"), hosts=("host-b",)),
        ("localhost", "host-b would dial itself"),
    ),
    (
        "address.wildcard",
        "refuse",
        lambda: a_plan(pair(advertise="0.0.0.0")),
        lambda: a_plan(pair(advertise="10.0.0.0")),
        ("0.0.0.0",),
    ),
    (
        "address.linklocal",
        "refuse",
        lambda: a_plan(pair(advertise="169.254.3.4")),
        lambda: a_plan(pair(advertise="169.253.3.4")),
        ("169.254.3.4",),
    ),
    (
        "port.taken",
        "refuse",
        lambda: a_plan(
            pair("host-a", entities=holding(a_shard("host-a", node="glm-2/0", ports=(18_005,)))),
            profile={"port": 18_005},
        ),
        lambda: a_plan(
            pair("host-a", entities=holding(a_shard("host-a", node="glm-2/0", ports=(18_005,), state="stopped"))),
            profile={"port": 18_005},
        ),
        ("18005", "glm-2/0 (ready)"),
    ),
    (
        "port.taken",
        "refuse",
        lambda: a_plan(pair("host-a", ports_in_use=(Port(18_005),)), profile={"port": 18_005}),
        lambda: a_plan(pair("host-b", ports_in_use=(Port(18_005),)), profile={"port": 18_005}),
        ("something else",),
    ),
    (
        "port.outside",
        "refuse",
        lambda: a_plan(profile={"port": 8_080}),
        lambda: a_plan(profile={"port": 18_009}),
        ("18000-18009", "8080"),
    ),
    (
        "ports.none",
        "refuse",
        lambda: a_plan(pair(ports_in_use=tuple(Port(port) for port in range(18_000, 18_010)))),
        lambda: a_plan(pair(ports_in_use=tuple(Port(port) for port in range(18_000, 18_009)))),
        ("tiny-1/2 on host-b", "all 10"),
    ),
    (
        "generation.not_above",
        "refuse",
        lambda: a_plan(pair(entities=holding(highest=NOW + DAY_MS + 1))),
        lambda: a_plan(pair(entities=holding(highest=NOW + DAY_MS))),
        ("host-b", str(NOW + DAY_MS + 1), str(NOW)),
    ),
    (
        "generation.ahead",
        "warn",
        lambda: a_plan(pair(entities=holding(highest=NOW + 3 * DAY_MS)), hosts=("host-a",)),
        lambda: a_plan(pair(entities=holding(highest=NOW + 1)), hosts=("host-a",)),
        ("host-b", "3 days ahead"),
    ),
    (
        "clock.off",
        "refuse",
        lambda: a_plan(clocks(host_a=301_000, host_b=302_000)),
        lambda: a_plan(clocks(host_a=299_000, host_b=302_000)),
        ("5 minutes", "5 min 01 s behind"),
    ),
    (
        "clock.offset",
        "warn",
        lambda: a_plan(clocks(host_a=0, host_b=2_100)),
        lambda: a_plan(clocks(host_a=0, host_b=1_900)),
        ("host-b", "2.1 s ahead of"),
    ),
    (
        "split.length",
        "refuse",
        lambda: a_plan(profile={"split": (4,)}),
        lambda: a_plan(profile={"split": (2, 2)}),
        ("2 layer counts", "1 in split = [4]"),
    ),
    (
        "split.sum",
        "refuse",
        lambda: a_plan(profile={"split": (2, 3)}),
        lambda: a_plan(profile={"split": (3, 1)}),
        ("4 layers", "5 in split"),
    ),
    (
        "ranks",
        "refuse",
        lambda: a_plan(profile={"ranks": 6}),
        lambda: a_plan(profile={"ranks": 5}),
        ("4 layers", "ranks = 6"),
    ),
    (
        "ranks",
        "refuse",
        lambda: a_plan(a_fleet(*(a_host(f"host-{n}") for n in "abcd")), hosts=("host-a", "host-b", "host-c", "host-d")),
        lambda: a_plan(a_fleet(*(a_host(f"host-{n}") for n in "abcd")), hosts=("host-a", "host-b", "host-c")),
        ("at most 3 hosts", "4 named"),
    ),
    (
        "ranks",
        "refuse",
        lambda: a_plan(gpu(1), profile={"device": "CUDA*", "ranks": 4}),
        lambda: a_plan(gpu(2), profile={"device": "CUDA*", "ranks": 4}),
        ("at most 1 ranks", "tiny-1/1, tiny-1/2"),
    ),
    (
        "options.unknown",
        "refuse",
        lambda: a_plan(profile={"options": {"flash_atn": "on"}}),
        lambda: a_plan(profile={"options": {"flash_attn": "on"}}),
        ("flash_atn", "Did you mean flash_attn"),
    ),
    (
        "options.refused",
        "refuse",
        lambda: a_plan(profile={"options": {"parallel": 4}}),
        lambda: a_plan(profile={"options": {}}),
        ("parallel", "sequences"),
    ),
    (
        "model.unreadable",
        "refuse",
        lambda: a_plan(model=None, model_words="tiny.gguf: No such file"),
        lambda: a_plan(),
        ("tiny.gguf: No such file",),
    ),
    (
        "model.truncated",
        "refuse",
        lambda: a_plan(model=a_model(file_bytes=1_000_000)),
        lambda: a_plan(model=a_model(file_bytes=1_479_297)),
        ("1479296", "1000000", "479296 short"),
    ),
    (
        "model.architecture",
        "warn",
        lambda: a_plan(model=a_model(architecture="gemma3")),
        lambda: a_plan(),
        ("gemma3", "llama"),
    ),
    (
        "context.training",
        "warn",
        lambda: a_plan(profile={"context": 4_097}),
        lambda: a_plan(profile={"context": 4_096}),
        ("4096", "4097"),
    ),
    (
        "bound.result",
        "refuse",
        lambda: a_plan(model=a_model(n_embd=2**20), profile={"n_ubatch": 65}),
        lambda: a_plan(model=a_model(n_embd=2**20), profile={"n_ubatch": 63}),
        ("268435456", str(65 * 2**20 * 4 + 8), "n_ubatch = 65"),
    ),
    (
        "memory.short",
        "refuse",
        lambda: a_plan(pair("host-a", devices={"CPU": (10 * MIB, 0)})),
        lambda: a_plan(pair("host-a", devices={"CPU": (11 * MIB, 0)})),
        ("10.0 MiB", "tiny-1/0", "tiny-1/1", "CPU on host-a"),
    ),
    (
        "memory.short",
        "refuse",
        lambda: a_plan(profile={"options": {"cram": 30_000}}),
        lambda: a_plan(profile={"options": {"cram": 3_000}}),
        ("tiny-1/0 30002", "CPU on host-a"),
    ),
    (
        "memory.short",
        "refuse",
        lambda: a_plan(pair(entities=holding(reservation=a_reservation(memory={"CPU": 20 * GIB})))),
        lambda: a_plan(pair(entities=holding(reservation=a_reservation(memory={"CPU": 19 * GIB})))),
        ("CPU on host-b", "0.0 MiB", "promised to others; there are qwen-1"),
    ),
    (
        "memory.mapped",
        "warn",
        lambda: a_plan(pair("host-a", devices={"CPU": (12 * MIB, 0)})),
        lambda: a_plan(pair("host-a", devices={"CPU": (13 * MIB, 0)})),
        ("12.0 MiB", "1.4 MiB of mapped file"),
    ),
]


@pytest.mark.parametrize(("id", "severity", "case", "neighbour", "words"), CASES, ids=[case[0] for case in CASES])
def test_the_guard_fires_and_its_neighbour_does_not(
    id: str, severity: str, case: Case, neighbour: Case, words: tuple[str, ...]
) -> None:
    fired = [finding for finding in case().findings if finding.id == id]
    assert fired, f"{id} stayed silent"
    assert {finding.severity for finding in fired} == {severity}
    said = " | ".join(finding.words for finding in fired)
    for word in words:
        assert word in said
    assert all(finding.remedy.endswith(".") for finding in fired)
    assert id not in [finding.id for finding in neighbour().findings]


def test_a_sound_plan_has_no_findings_at_all() -> None:
    assert a_plan().findings == ()


def test_a_node_generation_that_is_not_the_load_generation_names_both() -> None:
    plan = a_plan()
    odd = msgspec.structs.replace(plan.shards[1], node_generation=1)
    plan = msgspec.structs.replace(plan, shards=(plan.shards[0], odd, plan.shards[2]))
    found: list[Finding] = list(generation_differs(plan))
    assert [finding.subject for finding in found] == ["tiny-1/1 on host-a"]
    assert str(NOW) in found[0].expected
    assert found[0].found == "node generation 1"


def test_findings_arrive_together_with_the_refusals_first() -> None:
    plan = a_plan(pair(advertise="127.0.0.1", journal="damaged"), profile={"context": 8_192, "options": {"nope": 1}})
    severities = [finding.severity for finding in plan.findings]
    assert {"address.loopback", "journal.unhealthy", "options.unknown", "context.training"} <= {
        finding.id for finding in plan.findings
    }
    assert severities == sorted(severities, key=lambda severity: severity != "refuse")
    assert plan.is_refused


def test_loopback_is_known_in_every_spelling() -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1", "localhost", "LocalHost."):
        assert is_loopback(address), address
    for address in ("10.0.0.1", "gpu-a", "128.0.0.1", "localhost.example"):
        assert not is_loopback(address), address


def test_every_guard_has_an_id_of_its_own_and_says_what_it_looks_at() -> None:
    assert len({guard.id for guard in GUARDS}) == len(GUARDS)
    assert all(guard.source for guard in GUARDS)


def test_no_guard_raises_when_everything_is_wrong_at_once() -> None:
    fleet = a_fleet(
        a_host("host-a", engines=(), advertise="", journal="", ports=(Port(1), Port(1)), ports_in_use=(Port(1),)),
        unreachable=((HostId("host-b"), ""),),
    )
    plan = a_plan(fleet, hosts=("host-a", "host-b", "host-x"), model=None, profile={"split": (9, 9, 9), "port": 7})
    assert {"host.unknown", "host.unreachable", "engine.missing", "address.wildcard", "model.unreadable"} <= {
        finding.id for finding in plan.findings
    }
