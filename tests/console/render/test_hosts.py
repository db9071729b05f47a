"""What the hosts panel and the page of a host say of illness, holds and foreign engines."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec

from backend.contract.entities import Entities, Hold, ProcessIdentity, hold_key
from backend.contract.reports import DeviceFacts, ForeignProcess, Illness
from backend.contract.words import HostId, LoadGeneration, NodeId, Port, UnixMs
from backend.control.views import HostView
from console.render.cells import Look, line_text, text_lines
from console.render.hosts import host_page, host_table
from tests.console import worlds as w

LOOK = Look(zone=UTC, now=w.NOW, now_ms=w.NOW_MS)
SINCE = UnixMs(w.NOW_MS - 120_000)
SLOW = Illness("journal slow", "a sync of the journal takes 3.0 s", SINCE)
FULL = Illness("disk low", "100 MiB free under /state", SINCE, True, "/state")
STRANGER = ForeignProcess(
    pid=4711,
    program="llama-server",
    started_unix_ms=SINCE,
    user="bob",
    ports=(Port(18_007),),
    model="/models/big.gguf",
    memory=2 << 30,
)


def a_host(holds: tuple[Hold, ...] = (), **facts: Any) -> HostView:
    view = w.host()
    assert view.facts is not None
    entities = Entities(holds={hold_key(hold): hold for hold in holds})
    return msgspec.structs.replace(view, facts=msgspec.structs.replace(view.facts, **facts), entities=entities)


def row(view: HostView, width: int = 200) -> str:
    return text_lines(host_table(w.fleet(hosts={HostId("gpu-a"): view}), LOOK), width)[1]


def page(view: HostView) -> list[str]:
    return [line_text(line) for line in host_page(w.fleet(hosts={HostId("gpu-a"): view}), "gpu-a", LOOK)]


def test_a_healthy_host_has_nothing_to_say() -> None:
    assert row(a_host()).split()[-1] == "="
    assert not [line for line in page(a_host()) if "foreign" in line or "hold" in line]


def test_what_a_host_has_free_is_no_more_than_its_agent_may_promise() -> None:
    capped = DeviceFacts(name="CPU", uuid="", kind="cpu", total=4 << 30, free=22 << 30, committed=1 << 30)
    view = a_host(devices=(capped,))
    assert row(view).split()[4] == "3.0G"
    assert "device CPU  cpu  room for 3.0G of 4.0G, 1.0G promised, 22.0G free now" in page(view)


def test_an_illness_is_told_in_the_table_and_on_the_page() -> None:
    view = a_host(illnesses=(SLOW,))
    assert row(view).rstrip().endswith("journal slow: a sync of the journal takes 3.0 s")
    assert "journal slow  a sync of the journal takes 3.0 s  2 min ago" in page(view)


def test_what_refuses_loads_is_said_once_in_the_table() -> None:
    view = a_host(illnesses=(FULL, SLOW), refuses_loads=FULL.words)
    assert (
        row(view)
        .rstrip()
        .endswith("refuses loads: 100 MiB free under /state  journal slow: a sync of the journal takes 3.0 s")
    )
    assert "disk low  100 MiB free under /state  2 min ago  refuses loads" in page(view)


def test_a_host_whose_journal_is_damaged_has_that_for_its_state() -> None:
    damaged = Illness("journal damaged", "record 7 is damaged. Look at it: ringtop journal verify", UnixMs(0), True)
    assert "damaged journal" in row(a_host(illnesses=(damaged,)))


def test_foreign_engines_are_counted_in_the_table_and_described_on_the_page() -> None:
    view = a_host(foreign=(STRANGER,))
    assert row(view).rstrip().endswith("1 foreign engine")
    assert "foreign llama-server  process 4711 of bob, started 2 min ago  port 18007  2.0G  /models/big.gguf" in page(
        view
    )


def test_what_another_agent_of_the_same_machine_runs_is_not_foreign() -> None:
    ours = w.shard(rank=2, host="gpu-b", identity=ProcessIdentity(STRANGER.pid, 81_234, "b", "n-1"))
    runs = msgspec.structs.replace(w.host("gpu-b"), entities=Entities(shards={ours.node_id: ours}))
    state = w.fleet(hosts={HostId("gpu-a"): a_host(foreign=(STRANGER,)), HostId("gpu-b"): runs})
    assert "foreign" not in text_lines(host_table(state, LOOK), 200)[1]
    assert not [line for line in host_page(state, "gpu-a", LOOK) if "foreign" in line_text(line)]
    elsewhere = msgspec.structs.replace(ours, identity=ProcessIdentity(STRANGER.pid, 81_234, "other boot", "n-1"))
    runs = msgspec.structs.replace(runs, entities=Entities(shards={ours.node_id: elsewhere}))
    state = w.fleet(hosts={HostId("gpu-a"): a_host(foreign=(STRANGER,)), HostId("gpu-b"): runs})
    assert "1 foreign engine" in text_lines(host_table(state, LOOK), 200)[1]


def test_what_is_unknown_of_a_foreign_engine_is_a_question_mark() -> None:
    view = a_host(foreign=(ForeignProcess(pid=1, program="ggml-rpc-server"),))
    assert "foreign ggml-rpc-server  process 1 of ?, started ?  ?" in page(view)


def test_each_hold_says_what_is_kept_back_and_until_when() -> None:
    node, generation = NodeId("tiny-1/1"), LoadGeneration(17)
    view = a_host(
        holds=(
            Hold(node_id=node, load_generation=generation, kind="ports", ports=(Port(1), Port(2)), until="no listener"),
            Hold(node_id=node, load_generation=generation, kind="device", device="CUDA0", memory=3 << 30, until="x"),
            Hold(node_id=node, load_generation=generation, kind="stuck", device="CUDA0", until="process 9 is gone"),
        )
    )
    assert [line for line in page(view) if line.startswith("hold")] == [
        "hold 2 ports 1, 2 of tiny-1/1, until no listener",
        "hold 3.0G of CUDA0 of tiny-1/1, until x",
        "hold stuck CUDA0 of tiny-1/1, until process 9 is gone",
    ]


def test_a_page_goes_on_in_the_next_line_where_its_words_are_longer_than_the_screen() -> None:
    long = "the p4 agent holds 130 sockets, 2 of them hidden: connections that ended without FINISH and are lost"
    facts = w.host("gpu-a").facts
    assert facts is not None
    ill = Illness("p4 slots", long, UnixMs(w.NOW_MS))
    view = w.host("gpu-a", facts=msgspec.structs.replace(facts, illnesses=(ill,)))
    page = [line_text(each) for each in host_page(w.fleet(hosts={HostId("gpu-a"): view}), "gpu-a", LOOK, 78)]
    assert max(len(each.rstrip()) for each in page) <= 77
    assert " ".join(" ".join(page).split()).count(long) == 1, "whole, and once"
