"""Wrong loads that the plan refuses: every guard at its edge and past it, before any agent is asked for anything."""

from __future__ import annotations

from typing import Any

import pytest

from backend.contract.entities import Hold
from backend.contract.words import HostId, LoadGeneration, NodeId, Port
from backend.planning.fleet import DAY_MS, FleetFacts
from tests.planning.worlds import (
    GIB,
    NOW,
    a_cordon,
    a_fleet,
    a_host,
    a_model,
    a_plan,
    a_reservation,
    a_shard,
    an_engine,
    holding,
)
from tests.refusals.rows import (
    CARD,
    WrongPlan,
    as_parameters,
    assert_refuses,
    both,
    gpus,
    listed_device,
    listing,
    many,
    needy,
    pair,
)

pytestmark = pytest.mark.refusals

MIB = 2**20
PORTS = tuple(Port(port) for port in range(18_000, 18_010))


def needed_on(host: str) -> int:
    """What the ordinary plan takes of one host's memory, to the byte."""
    return sum(shard.bound.memory for shard in a_plan().on_host(HostId(host)))


def a_hold(port: int) -> Hold:
    return Hold(
        node_id=NodeId("old-1/1"), load_generation=LoadGeneration(9), kind="port", ports=(Port(port),), until="its exit"
    )


def clocks(**offsets: int) -> Any:
    return a_fleet(clock_offsets_ms={HostId(name.replace("_", "-")): offset for name, offset in offsets.items()})


HOSTS = [
    WrongPlan(
        "a host with a typo", "host.unknown", ("host-q", "host-a, host-b"), lambda: a_plan(hosts=("host-a", "host-q"))
    ),
    WrongPlan(
        "a host of a context that has none",
        "host.unknown",
        ("host-a", "no hosts at all"),
        lambda: a_plan(FleetFacts(reports=()), hosts=("host-a",)),
    ),
    WrongPlan(
        "a host that does not answer",
        "host.unreachable",
        ("host-b", "connection refused", "a live agent"),
        lambda: a_plan(a_fleet(a_host("host-a"), unreachable=((HostId("host-b"), "connection refused"),))),
    ),
    WrongPlan(
        "a host that is silent without a reason",
        "host.unreachable",
        ("host-b", "silence"),
        lambda: a_plan(a_fleet(a_host("host-a"), unreachable=((HostId("host-b"), ""),))),
    ),
    WrongPlan(
        "no host whose journal can be written",
        "hosts.none",
        ("host-a, host-b: its journal is damaged",),
        lambda: a_plan(both(journal="damaged"), profile={"hosts": ()}),
    ),
    WrongPlan(
        "no host that has the engine",
        "hosts.none",
        ("host-a, host-b: has no llamacpp",),
        lambda: a_plan(both(engines=()), profile={"hosts": ()}),
    ),
    WrongPlan(
        "no host that has the device",
        "hosts.none",
        ("llamacpp there has CPU, not CUDA0",),
        lambda: a_plan(profile={"hosts": (), "device": "CUDA0"}),
    ),
    WrongPlan(
        "a host whose restart would kill its engines",
        "host.refuses",
        ("host-b", "KillMode=control-group"),
        lambda: a_plan(pair(refuses_loads="its unit says KillMode=control-group")),
    ),
    WrongPlan(
        "a leader's host that refuses loads",
        "host.refuses",
        ("host-a", "OOMPolicy=stop"),
        lambda: a_plan(pair("host-a", refuses_loads="its unit says OOMPolicy=stop")),
    ),
    WrongPlan(
        "a named host that somebody cordoned",
        "host.cordoned",
        ("host-b", "cordoned by alice@ops-1 since 2025-11-29 10:40 UTC: fan", "ringtop uncordon host-b"),
        lambda: a_plan(pair(entities=holding(cordon=a_cordon()))),
    ),
    WrongPlan(
        "a leader's host cordoned for two hours",
        "host.cordoned",
        ("host-a", "until 2025-11-29 12:40 UTC", "no reason given"),
        lambda: a_plan(pair("host-a", entities=holding(cordon=a_cordon(why="", left_ms=7_200_000)))),
    ),
    WrongPlan(
        "a fleet of cordoned hosts, none of them named",
        "hosts.none",
        ("host-a, host-b: cordoned by alice@ops-1",),
        lambda: a_plan(both(entities=holding(cordon=a_cordon())), profile={"hosts": ()}),
    ),
    WrongPlan(
        "a journal on a full disk",
        "journal.unhealthy",
        ("host-b", "disk full since 12:00", "can be written"),
        lambda: a_plan(pair(journal="disk full since 12:00")),
    ),
    WrongPlan(
        "an agent that says nothing of its journal",
        "journal.unhealthy",
        ("host-b", "no word of its journal"),
        lambda: a_plan(pair(journal="")),
    ),
]

ENGINES = [
    WrongPlan(
        "a host without the engine",
        "engine.missing",
        ("host-b", "a working llamacpp", "none"),
        lambda: a_plan(pair(engines=())),
    ),
    WrongPlan(
        "an engine that does not say its release",
        "engine.missing",
        ("host-b", "does not say its release"),
        lambda: a_plan(pair(engines=(an_engine("CPU", release=""),))),
    ),
    WrongPlan(
        "a CUDA name on a ROCm host",
        "device.missing",
        ("CUDA0", "ROCm0, CPU", "host-b"),
        lambda: a_plan(pair(engines=(an_engine("ROCm0", "CPU"),)), profile={"device": "CUDA0"}),
    ),
    WrongPlan(
        "a device index one past the last",
        "device.missing",
        ("device CUDA2", "CUDA0, CUDA1"),
        lambda: a_plan(gpus(2), profile={"device": "CUDA2"}),
    ),
    WrongPlan(
        "a pattern that nothing matches",
        "device.missing",
        ("device Vulkan*", "CPU"),
        lambda: a_plan(profile={"device": "Vulkan*"}),
    ),
    WrongPlan(
        "a device whose memory neither a driver nor a list tells",
        "device.unmeasured",
        ("Vulkan0 on host-a", "CPU at the drivers", "[devices.Vulkan0] memory"),
        lambda: a_plan(listing(), profile={"device": "Vulkan0"}),
    ),
    WrongPlan(
        "a device of a list that is too small",
        "memory.short",
        ("Vulkan0 on host-b", "1.0 MiB neither"),
        lambda: a_plan(listing(listed_device(total=MIB)), profile={"device": "Vulkan0"}),
    ),
    WrongPlan(
        "a device that another replica has under the driver's name",
        "device.taken",
        ("Vulkan0 is used by glm-1/1",),
        lambda: a_plan(
            listing(
                CARD,
                listed_device(same_as="CUDA0"),
                entities=holding(a_shard("host-b", node="glm-1/1", device="CUDA0")),
            ),
            profile={"device": "Vulkan0"},
        ),
    ),
    WrongPlan(
        "a device in the wrong case", "device.missing", ("device cpu", "CPU"), lambda: a_plan(profile={"device": "cpu"})
    ),
    WrongPlan(
        "a release one commit apart",
        "release.differs",
        ("1-7e4c0a9, as on host-a", "1-7e4c0a8 on host-b"),
        lambda: a_plan(pair(engines=(an_engine("CPU", release="1-7e4c0a8"),))),
    ),
    WrongPlan(
        "a leader of another release than its workers",
        "release.differs",
        ("2-00c0ffe, as on host-a", "1-7e4c0a9 on host-b"),
        lambda: a_plan(pair("host-a", engines=(an_engine("CPU", release="2-00c0ffe"),))),
    ),
    WrongPlan(
        "the third of three hosts has another release",
        "release.differs",
        ("host-c", "1-7e4c0a8"),
        lambda: a_plan(
            a_fleet(
                a_host("host-a"), a_host("host-b"), a_host("host-c", engines=(an_engine("CPU", release="1-7e4c0a8"),))
            ),
            profile={"hosts": ("host-a", "host-b", "host-c")},
        ),
    ),
    WrongPlan(
        "another flavour of one release with exact_build",
        "release.differs",
        ("for CPU CUDA", "for CPU", "exact_build"),
        lambda: a_plan(pair(engines=(an_engine("CPU", "CUDA0"),)), profile={"exact_build": True}),
    ),
    WrongPlan(
        "a build with one backend more with exact_build, whatever devices there are",
        "release.differs",
        ("for cpu rpc vulkan", "for cpu rpc", "exact_build"),
        lambda: a_plan(
            a_fleet(
                a_host("host-a", engines=(an_engine("CPU", flavour="cpu rpc"),)),
                a_host("host-b", engines=(an_engine("CPU", flavour="cpu rpc vulkan"),)),
            ),
            profile={"exact_build": True},
        ),
    ),
    WrongPlan(
        "another processor build of one release with exact_build",
        "release.differs",
        ("needs avx_vnni", "exact_build"),
        lambda: a_plan(pair(engines=(an_engine("CPU", needs=("avx_vnni",)),)), profile={"exact_build": True}),
    ),
    WrongPlan(
        "quantized weights on a processor without the instructions",
        "cpu.features",
        ("avx_vnni", "q4_k weights", "a processor without", "signal 4"),
        lambda: a_plan(needy(), model=a_model(tensor_types=("f32", "q4_k"))),
    ),
    WrongPlan(
        "a quantized K cache on such a processor",
        "cpu.features",
        ("a q8_0 K cache", "signal 4"),
        lambda: a_plan(needy(), profile={"options": {"cache_type_k": "q8_0"}}),
    ),
    WrongPlan(
        "a 4-bit K cache on such a processor",
        "cpu.features",
        ("a q4_0 K cache",),
        lambda: a_plan(needy(), profile={"options": {"cache_type_k": "q4_0"}}),
    ),
    WrongPlan(
        "quantized weights and one of two processors too old",
        "cpu.features",
        ("host-b", "avx_vnni"),
        lambda: a_plan(
            a_fleet(
                a_host("host-a", engines=(an_engine("CPU", needs=("avx_vnni",)),), cpu_flags=("avx_vnni",)),
                a_host("host-b", engines=(an_engine("CPU", needs=("avx_vnni",)),)),
            ),
            model=a_model(tensor_types=("q8_0",)),
        ),
    ),
]

ADDRESSES = [
    WrongPlan(
        f"{address} advertised across two machines",
        "address.loopback",
        (address, "host-a would dial itself", "host-a, host-b"),
        lambda address=address: a_plan(pair(advertise=address)),  # type: ignore[misc]  # bound early on purpose
    )
    for address in ("127.0.0.1", "127.255.255.254", "localhost", "::1", "::ffff:127.0.0.1")
]
ADDRESSES += [
    WrongPlan(
        "loopback advertised by the leader's host",
        "address.loopback",
        ("host-b would dial itself",),
        lambda: a_plan(pair("host-a", advertise="127.0.0.1")),
    ),
    WrongPlan(
        "loopback between agents that name no machine",
        "address.loopback",
        ("127.0.0.1",),
        lambda: a_plan(both(advertise="127.0.0.1", boot_id="")),
    ),
    WrongPlan(
        "0.0.0.0 advertised", "address.wildcard", ("0.0.0.0", "host-b"), lambda: a_plan(pair(advertise="0.0.0.0"))
    ),
    WrongPlan(":: advertised", "address.wildcard", ("::", "one address"), lambda: a_plan(pair(advertise="::"))),
    WrongPlan("nothing advertised", "address.wildcard", ("nothing",), lambda: a_plan(pair(advertise=""))),
    WrongPlan(
        "the first link-local address",
        "address.linklocal",
        ("169.254.0.0", "link-local"),
        lambda: a_plan(pair(advertise="169.254.0.0")),
    ),
    WrongPlan(
        "the last link-local address",
        "address.linklocal",
        ("169.254.255.255",),
        lambda: a_plan(pair(advertise="169.254.255.255")),
    ),
    WrongPlan(
        "a link-local IPv6 address", "address.linklocal", ("fe80::1",), lambda: a_plan(pair(advertise="fe80::1"))
    ),
]

PORTS_WRONG = [
    WrongPlan(
        "a port that another program listens on",
        "port.taken",
        ("port 18005 free", "something else"),
        lambda: a_plan(pair("host-a", ports_in_use=(Port(18_005),)), profile={"port": 18_005}),
    ),
    WrongPlan(
        "a port of a replica that runs",
        "port.taken",
        ("18005", "glm-2/0 (ready)"),
        lambda: a_plan(
            pair("host-a", entities=holding(a_shard("host-a", node="glm-2/0", ports=(18_005,)))),
            profile={"port": 18_005},
        ),
    ),
    WrongPlan(
        "a port of a shard whose state only a newer agent knows",
        "port.taken",
        ("18005", "glm-2/0 (hibernating)"),
        lambda: a_plan(
            pair("host-a", entities=holding(a_shard("host-a", node="glm-2/0", ports=(18_005,), state="hibernating"))),
            profile={"port": 18_005},
        ),
    ),
    WrongPlan(
        "a port that is reserved",
        "port.taken",
        ("18005", "reserved for qwen-1 by bob"),
        lambda: a_plan(
            pair("host-a", entities=holding(reservation=a_reservation(ports=(18_005,)))), profile={"port": 18_005}
        ),
    ),
    WrongPlan(
        "a port that is held until a proof",
        "port.taken",
        ("18005", "held after old-1/1 until its exit"),
        lambda: a_plan(pair("host-a", entities=holding(hold=a_hold(18_005))), profile={"port": 18_005}),
    ),
    WrongPlan(
        "the port below the range",
        "port.outside",
        ("18000-18009", "port = 17999"),
        lambda: a_plan(profile={"port": 17_999}),
    ),
    WrongPlan(
        "the port above the range",
        "port.outside",
        ("18000-18009", "port = 18010"),
        lambda: a_plan(profile={"port": 18_010}),
    ),
    WrongPlan(
        "a range in which something uses every port",
        "ports.none",
        ("tiny-1/2 on host-b", "18000-18009", "all 10"),
        lambda: a_plan(pair(ports_in_use=PORTS)),
    ),
    WrongPlan(
        "a range of one port for two ranks",
        "ports.none",
        ("tiny-1/1 on host-a", "18000-18000"),
        lambda: a_plan(pair("host-a", ports=(Port(18_000), Port(18_000)))),
    ),
    WrongPlan(
        "a range used up by a shard, a reservation, a hold and strangers",
        "ports.none",
        ("tiny-1/2 on host-b", "in use, held or reserved"),
        lambda: a_plan(
            pair(
                ports_in_use=PORTS[3:],
                entities=holding(
                    a_shard("host-b", node="glm-2/1", ports=(18_000,)),
                    reservation=a_reservation(ports=(18_001,)),
                    hold=a_hold(18_002),
                ),
            )
        ),
    ),
]

NUMBERS = [
    WrongPlan(
        "a stored generation one millisecond more than a day ahead",
        "generation.not_above",
        ("host-b", str(NOW + DAY_MS + 1), str(NOW)),
        lambda: a_plan(pair(entities=holding(highest=NOW + DAY_MS + 1))),
    ),
    WrongPlan(
        "a reservation of a generation from a broken clock",
        "generation.not_above",
        ("host-b", str(NOW + 9 * DAY_MS)),
        lambda: a_plan(pair(entities=holding(reservation=a_reservation(generation=NOW + 9 * DAY_MS)))),
    ),
    WrongPlan(
        "a clock one millisecond more than five minutes behind",
        "clock.off",
        ("5 minutes", "5 min behind", "2 agents"),
        lambda: a_plan(clocks(host_a=300_001, host_b=300_002)),
    ),
    WrongPlan(
        "a clock an hour ahead",
        "clock.off",
        ("5 minutes", "1 h ahead of"),
        lambda: a_plan(clocks(host_a=-3_600_000, host_b=-3_600_000)),
    ),
]

SHAPES = [
    WrongPlan(
        "one layer count too few",
        "split.length",
        ("2 layer counts", "1 in split = [4]"),
        lambda: a_plan(profile={"split": (4,)}),
    ),
    WrongPlan(
        "one layer count too many",
        "split.length",
        ("2 layer counts", "3 in split = [2, 1, 1]"),
        lambda: a_plan(profile={"split": (2, 1, 1)}),
    ),
    WrongPlan(
        "two layer counts for a leader alone",
        "split.length",
        ("1 layer counts", "one rank that holds every layer"),
        lambda: a_plan(profile={"ranks": 1, "hosts": ("host-a",), "split": (2, 2)}),
    ),
    WrongPlan(
        "one layer too many in the split",
        "split.sum",
        ("4 layers", "5 in split = [2, 3]"),
        lambda: a_plan(profile={"split": (2, 3)}),
    ),
    WrongPlan(
        "one layer too few in the split",
        "split.sum",
        ("4 layers", "3 in split = [2, 1]"),
        lambda: a_plan(profile={"split": (2, 1)}),
    ),
    WrongPlan(
        "one worker more than the model has layers",
        "ranks",
        ("at most 5", "ranks = 6"),
        lambda: a_plan(profile={"ranks": 6}),
    ),
    WrongPlan(
        "the most ranks there are", "ranks", ("at most 5", "ranks = 512"), lambda: a_plan(profile={"ranks": 512})
    ),
    WrongPlan(
        "one host more than ranks",
        "ranks",
        ("at most 3 hosts", "4 named: host-a, host-b, host-c, host-d"),
        lambda: a_plan(many(4), hosts=("host-a", "host-b", "host-c", "host-d")),
    ),
    WrongPlan(
        "two workers for one GPU",
        "ranks",
        ("at most 1 ranks there", "tiny-1/1, tiny-1/2"),
        lambda: a_plan(gpus(1), profile={"device": "CUDA*", "ranks": 4}),
    ),
]

OPTIONS = [
    WrongPlan(
        "a misspelt option",
        "options.unknown",
        ("flash_atn", "Did you mean flash_attn", "cache_type_k"),
        lambda: a_plan(profile={"options": {"flash_atn": "on"}}),
    ),
    WrongPlan(
        "an option in the shape of a flag",
        "options.unknown",
        ("--grp-attn-n",),
        lambda: a_plan(profile={"options": {"--grp-attn-n": 4}}),
    ),
    *(
        WrongPlan(
            f"{name} = {value!r} as an option",
            "options.refused",
            (name, repr(value), why),
            lambda name=name, value=value: a_plan(profile={"options": {name: value}}),  # type: ignore[misc]  # bound early
        )
        for name, value, why in (
            ("n_gpu_layers", 0, "offloads every layer"),
            ("ngl", 99, "offloads every layer"),
            ("tensor_split", "1,1", "set split"),
            ("rpc", "10.0.0.9:50052", "names the workers"),
            ("device", "RPC0", "set device"),
            ("host", "0.0.0.0", "agent's own configuration"),
            ("api_key", "secret", "a secret"),
            ("ubatch_size", 4_000_000, "set n_ubatch"),
            ("fit", "on", "change what was planned"),
            ("mmproj", "eye.gguf", "no derived bound"),
            ("kv_unified", False, "spare slot"),
            ("cache_idle_slots", True, "over the network"),
        )
    ),
    *(
        WrongPlan(
            f"{name} = {value!r}, outside its values",
            "options.value",
            (repr(value), allowed),
            lambda name=name, value=value: a_plan(profile={"options": {name: value}}),  # type: ignore[misc]  # bound early
        )
        for name, value, allowed in (
            ("cache_type_k", "q9_0", "q8_0"),
            ("cache_type_v", 16, "f16"),
            ("flash_attn", True, "auto, on, off"),
            ("cram", -1, "an integer of 0..1048576"),
            ("cram", 1_048_577, "an integer of 0..1048576"),
            ("cram", "64", "an integer"),
            ("cram", True, "an integer"),
        )
    ),
    WrongPlan(
        "a quantized V cache without flash attention",
        "options.value",
        ("q8_0", "flash_attn = 'off'", "exits at its start"),
        lambda: a_plan(profile={"options": {"flash_attn": "off", "cache_type_v": "q8_0"}}),
    ),
]

MODELS = [
    WrongPlan(
        "a model that nobody could read",
        "model.unreadable",
        ("the header of tiny.gguf", "host-a: no such file"),
        lambda: a_plan(model=None, model_words="host-a: no such file"),
    ),
    WrongPlan(
        "a model that nobody was asked to read",
        "model.unreadable",
        ("nobody has read it",),
        lambda: a_plan(model=None),
    ),
    WrongPlan(
        "a file one byte short",
        "model.truncated",
        ("1479296 bytes by its header", "1479295 bytes, 1 short"),
        lambda: a_plan(model=a_model(file_bytes=1_479_295)),
    ),
    WrongPlan(
        "a file that ends after its header",
        "model.truncated",
        ("1479296", "20480 bytes"),
        lambda: a_plan(model=a_model(file_bytes=20_480)),
    ),
    WrongPlan(
        "a micro-batch whose result is larger than may be kept",
        "bound.result",
        ("268435456", str(64 * 2**20 * 4 + 8), "n_ubatch = 64"),
        lambda: a_plan(model=a_model(n_embd=2**20), profile={"n_ubatch": 64}),
    ),
    WrongPlan(
        "logits larger than may be kept",
        "bound.result",
        ("268435456", str(3 * 2**25 * 4 + 8)),
        lambda: a_plan(model=a_model(n_vocab=2**25)),
    ),
]

MEMORY = [
    WrongPlan(
        "one byte less free than the leader's host needs",
        "memory.short",
        ("CPU on host-a", "tiny-1/0", "tiny-1/1"),
        lambda: a_plan(pair("host-a", devices={"CPU": (needed_on("host-a") - 1, 0)})),
    ),
    WrongPlan(
        "one byte less free than a worker's host needs",
        "memory.short",
        ("CPU on host-b", "tiny-1/2"),
        lambda: a_plan(pair(devices={"CPU": (needed_on("host-b") - 1, 0)})),
    ),
    WrongPlan(
        "two shards that count the same free memory",
        "memory.short",
        ("tiny-1/1", "tiny-1/2", "CPU on host-a"),
        lambda: a_plan(
            a_fleet(a_host("host-a", devices={"CPU": (max(needed_on("host-a"), needed_on("host-b")), 0)})),
            hosts=("host-a",),
        ),
    ),
    WrongPlan(
        "a context whose cache is larger than the memory",
        "memory.short",
        ("CPU on host-a", "lower context"),
        lambda: a_plan(profile={"context": 40_000_000}),
    ),
    WrongPlan(
        "n_ubatch of the whole context, and the context large",
        "memory.short",
        ("CPU on host-b",),
        lambda: a_plan(profile={"context": 131_072, "n_batch": 131_072, "n_ubatch": 131_072}),
    ),
    WrongPlan(
        "more parallel logits than a device has room for",
        "memory.short",
        ("CUDA0 on host-b", "tiny-1/2"),
        lambda: a_plan(gpus(1, free=3 * MIB), profile={"device": "CUDA0"}),
    ),
    WrongPlan(
        "a prompt cache larger than the leader's host",
        "memory.short",
        ("tiny-1/0", "CPU on host-a"),
        lambda: a_plan(profile={"options": {"cram": 20_480}}),
    ),
    WrongPlan(
        "memory that a reservation has been promised",
        "memory.short",
        ("CPU on host-b", "0.0 MiB"),
        lambda: a_plan(pair(entities=holding(reservation=a_reservation(memory={"CPU": 20 * GIB})))),
    ),
    WrongPlan(
        "memory that a replica under load will take",
        "memory.short",
        ("CPU on host-b", "0.0 MiB"),
        lambda: a_plan(pair(entities=holding(a_shard("host-b", node="glm-1/1", state="loading", memory=20 * GIB)))),
    ),
    WrongPlan(
        "memory beyond the cap that the agent may hand out",
        "memory.short",
        ("CPU on host-b", "0.0 MiB"),
        lambda: a_plan(pair(devices={"CPU": (20 * GIB, 24 * GIB)})),
    ),
]

ROWS = [*HOSTS, *ENGINES, *ADDRESSES, *PORTS_WRONG, *NUMBERS, *SHAPES, *OPTIONS, *MODELS, *MEMORY]


@pytest.mark.parametrize("row", as_parameters(ROWS))
def test_wrong(row: WrongPlan) -> None:
    """A wrong load is refused in the plan: by id, with both values and a remedy."""
    plan = row.make()
    assert plan.is_refused
    assert_refuses(plan.findings, row.id, row.words)
