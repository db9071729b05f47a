"""What the panels say of a fleet in many states, as text."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC
from typing import Any

import msgspec
import pytest

from backend.contract.entities import Canary
from backend.contract.plans import PhaseBound, Term, sealed
from backend.contract.reports import ClientSeen, LinkSeen, Measurement
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import HostId, NodeGeneration, NodeId, UnixMs
from backend.control.views import FleetState
from console.actions import Selection
from console.render.bars import banner_words, footer_line, header_line, message_lines, rule_line
from console.render.cells import Line, Look, Table, broken, line_text, text_lines
from console.render.details import shard_page
from console.render.drain import before_lines, live_lines
from console.render.drift import drift_lines, one_drift
from console.render.glyphs import ASCII
from console.render.help import help_lines
from console.render.hosts import host_page, host_table
from console.render.journal import journal_cells, journal_page
from console.render.operations import operation_lines, operation_table, quit_lines
from console.render.plan import plan_lines
from console.render.replicas import replica_table
from console.render.ring import ring_lines
from console.render.shards import shard_table
from console.render.trouble import trouble_lines
from console.safe_text import width_of
from tests.console import worlds as w

LOOK = Look(zone=UTC, now=w.NOW, now_ms=w.NOW_MS)


def _row(table: Table, key: str, width: int = 200) -> str:
    index = [row.key for row in table.rows].index(key)
    return text_lines(table, width)[index + 1]


def _text(lines: list[Line]) -> str:
    return "\n".join(line_text(each) for each in lines)


def test_a_ready_replica_is_quiet() -> None:
    row = _row(replica_table(w.fleet(w.replica()), LOOK), "tiny-1")
    assert row.split() == ["tiny-1", "ready", "…0123", "3/3", "28.1", "2", "0", "="]


def test_a_drain_shows_the_time_it_has_left() -> None:
    view = w.replica(state=ReplicaState.DRAINING, drain=w.drain(), drain_left_ms=102_000)
    assert _row(replica_table(w.fleet(view), LOOK), "tiny-1").endswith("1:42")


def test_unknown_counts_are_question_marks_and_those_of_an_ended_replica_are_dashes() -> None:
    table = replica_table(w.busy_fleet(), LOOK)
    assert _row(table, "qwen-122b-1").split()[3:8] == ["2/3", "?", "?", "?", "?"]
    assert _row(table, "glm-2").split()[4:7] == ["-", "-", "-"]


def test_overdue_counts_say_how_old_they_are() -> None:
    view = w.replica(measured_at=w.NOW - 70)
    assert "1 min old" in _row(replica_table(w.fleet(view), LOOK), "tiny-1")
    fresh = w.replica(measured_at=w.NOW - 5)
    assert "old" not in _row(replica_table(w.fleet(fresh), LOOK), "tiny-1")


def test_a_rollback_says_how_many_targets_are_unknown() -> None:
    view = w.replica(state=ReplicaState.ROLLING_BACK, unknown_targets=2)
    assert "rolling back (2 unknown)" in _row(replica_table(w.fleet(view), LOOK), "tiny-1")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (w.fleet(), "L loads a model"),
        (w.fleet(models={}, catalog_words="catalog.toml is missing"), "catalog.toml is missing"),
        (w.fleet(hosts={}), "ringtop up"),
        (w.fleet(hosts={HostId("a"): w.host("a", HostState.LOST)}), "No host answers"),
    ],
)
def test_an_empty_fleet_says_what_to_do(state: FleetState, words: str) -> None:
    assert words in text_lines(replica_table(state, LOOK), 80)[-1]


def test_a_generation_and_a_bound_that_differ_are_loud_with_their_value() -> None:
    state = w.busy_fleet()
    view = next(each for each in state.replicas.values() if each.id == "step37-1")
    row = _row(shard_table(view, LOOK), "step37-1/2")
    assert "≠ 1 " in row
    assert "≠ 59 136 012" in row
    assert _row(shard_table(view, LOOK), "step37-1/1").split()[4:7] == ["=", "137", "935"]


def test_the_leader_without_layers_is_compared_like_the_others() -> None:
    row = _row(shard_table(w.replica(), LOOK), "tiny-1/0")
    assert row.split()[4:8] == ["=", "137", "935", "244"]
    assert row.split()[8] == "="


def test_an_exited_shard_shows_how_it_ended_and_the_last_line_of_its_log() -> None:
    view = w.replica(shards=(w.exited(),))
    row = _row(shard_table(view, LOOK), "glm-2/2")
    assert "signal 9 (out of memory) after 41 s; its log ends: alloc failed: 61 GiB" in row


def test_a_word_of_a_newer_agent_stays_readable() -> None:
    view = w.replica(shards=(w.shard_view(1, state="simmering"),))
    assert "unknown(simmering)" in _row(shard_table(view, LOOK), "tiny-1/1")


def test_a_silent_host_says_why_and_what_it_has_is_unknown() -> None:
    row = _row(host_table(w.busy_fleet(), LOOK), "gpu-c")
    assert "unreachable" in row
    assert "next try" in row
    assert row.split()[2:5] == ["?", "?", "?"]


def test_what_a_silent_host_had_is_old_and_says_so() -> None:
    silent = w.host("gpu-a", HostState.UNREACHABLE, words="timed out", heard_at=w.NOW - 70)
    (row,) = host_table(w.fleet(hosts={HostId("gpu-a"): silent}), LOOK).rows
    assert [each.style for each in row.cells[2:5]] == ["old", "old", "old"]
    assert row.cells[-1].text == "timed out  1 min old"


def test_a_clock_that_is_off_is_said() -> None:
    assert "+2.1 s" in _row(host_table(w.busy_fleet(), LOOK), "gpu-b")


def test_the_header_counts_hosts_drifts_and_names_the_context() -> None:
    text = line_text(header_line(w.busy_fleet(), LOOK, 80))
    assert text.split() == ["ringtop", "PROD", "2/3", "hosts", "1", "running", "1", "drift", "live", "12:04"]
    assert width_of(text) == 80
    assert "READ-ONLY" in line_text(header_line(w.fleet(read_only=True), LOOK, 80))
    assert "connecting" in line_text(header_line(None, LOOK, 80))


def test_a_header_that_is_full_gives_up_the_time_and_never_what_is_wrong() -> None:
    full = msgspec.structs.replace(w.busy_fleet(), label="P" * 63, read_only=True, catalog_words="x")
    text = line_text(header_line(full, LOOK, 80))
    assert width_of(text) <= 80
    for words in ("PPPP…", "2/3 hosts", "READ-ONLY", "1 running", "1 drift", "catalog fault"):
        assert words in text
    assert text.rstrip().endswith("live   12:04") is False
    assert line_text(header_line(full, LOOK, 120)).endswith("live   12:04 ")


def test_what_is_said_at_the_bottom_is_whole_up_to_three_lines() -> None:
    words = "drain is not possible: there is no replica nobody here; there is: " + ", ".join(["glm-2"] * 8)
    assert " ".join(line_text(each).strip() for each in message_lines(words, "message", LOOK, 80)) == words
    long = [line_text(each) for each in message_lines(words * 9, "message", LOOK, 80)]
    assert (len(long), long[-1][-1]) == (3, "…")


def test_the_banner_comes_with_a_fault_and_with_a_backend_that_stands_still() -> None:
    assert banner_words(w.fleet(), w.NOW - 1, LOOK) == ""
    assert "does not move" in banner_words(w.fleet(), w.NOW - 3, LOOK)
    assert "RuntimeError: x" in banner_words(w.fleet(fault="Traceback\nRuntimeError: x"), w.NOW, LOOK)


def test_the_footer_names_only_what_works_now_and_always_help_and_quit() -> None:
    ready = line_text(footer_line(w.fleet(w.replica()), Selection(replica="tiny-1"), 80))
    assert "D drain" in ready
    failed = line_text(footer_line(w.fleet(w.replica(state=ReplicaState.FAILED)), Selection(replica="tiny-1"), 80))
    assert "D drain" not in failed
    assert "R reload" in failed, "the remedy is named where it is needed"
    for width in (30, 80):
        text = line_text(footer_line(w.fleet(w.replica()), Selection(replica="tiny-1"), width))
        assert "? help  q quit" in text
        assert width_of(text.rstrip()) <= width


def test_a_plan_shows_bounds_candidates_findings_and_the_longest_time() -> None:
    text = _text(plan_lines(w.plan(refused=True, warned=True), w.fleet(), LOOK, 100))
    for words in (
        "137 935 244",
        "refuse address.loopback",
        "gpu-b advertises 127.0.0.1",
        "warn   clock.offset",
        "not chosen  gpu-c: unreachable",
        "Takes up to 6 min 10 s",
        "61 GiB / 0.2 GiB/s",
        "Load refused by 1 finding",
    ):
        assert words in text
    assert text.index("refuse ") < text.index("warn ")
    assert "tensors of blocks" in _text(plan_lines(w.plan(), None, LOOK, 100, derivation=True))


def test_no_line_of_a_plan_is_wider_than_its_room() -> None:
    long = msgspec.structs.replace(w.plan(warned=True), phases=(PhaseBound("loading", 1.0, "x " * 200),))
    for width in (74, 100, 200):
        assert max(width_of(line_text(each)) for each in plan_lines(sealed(long), w.fleet(), LOOK, width)) <= width


def test_a_drain_says_its_three_numbers_and_who_counted() -> None:
    view = w.replica(state=ReplicaState.DRAINING, drain=w.drain(), drain_left_ms=102_000)
    text = _text(live_lines(view, "tiny-1", LOOK, 80))
    for words in ("in flight 2", "oldest 38 s", "left 1:42", "from the engine's metrics, 0 s ago", "admission is open"):
        assert words in text
    assert "nobody counts" in _text(before_lines(w.replica(source=""), LOOK, 80))
    assert "in flight ?" in _text(before_lines(w.replica(in_flight=None), LOOK, 80))
    assert "given up" in _text(live_lines(w.replica(drain=w.drain(outcome="given up")), "tiny-1", LOOK, 80))
    assert "is gone" in _text(live_lines(None, "tiny-1", LOOK, 80))


def test_a_drain_says_what_came_since_and_from_whom_and_unknown_is_no_zero() -> None:
    clients = (ClientSeen("10.0.3.7", 2), ClientSeen("10.0.3.9", 1))
    draining: dict[str, Any] = {"state": ReplicaState.DRAINING, "drain": w.drain(), "drain_left_ms": 102_000}
    view = w.replica(**draining, arrived=5, clients=clients, clients_beyond=3)
    for width in (60, 80, 140):
        text = _text(live_lines(view, "tiny-1", LOOK, width))
        assert "arrived since the drain began: at least 5" in text
        assert "connections from 10.0.3.7 (2), 10.0.3.9 (1)" in text
        assert "and 3 more addresses" in " ".join(text.split())
    unknown = _text(live_lines(w.replica(**draining), "tiny-1", LOOK, 80))
    assert "began: ?" in unknown
    assert "connections from ?" in unknown
    quiet = _text(live_lines(w.replica(**draining, arrived=0, clients=()), "tiny-1", LOOK, 80))
    assert "began: 0" in quiet
    assert "no client is connected" in quiet


def test_a_ring_says_how_long_a_round_trip_takes_and_from_where_to_where_between_hosts() -> None:
    near = LinkSeen(rank=1, local="192.168.0.6", remote="192.168.0.6", round_trip_us=100)
    far = LinkSeen(rank=2, local="192.168.0.6", remote="192.168.0.29", round_trip_us=432, owed_seconds=6.0)
    text = _text(ring_lines(w.fleet(w.replica(links=(near, far))), "tiny-1", LOOK, 100))
    assert "│   0.1 ms\n" in text
    assert "│   0.4 ms  from rank 0  192.168.0.6 ─▶ 192.168.0.29\n             │   no answer for 6 s\n" in text
    assert "round trip ?" in _text(ring_lines(w.fleet(w.replica()), "tiny-1", LOOK, 100))
    slow = msgspec.structs.replace(far, round_trip_us=123_400)
    assert "│   0.1 s  from" in _text(ring_lines(w.fleet(w.replica(links=(near, slow))), "tiny-1", LOOK, 100))


def test_a_replica_that_serves_and_does_not_get_on_says_so_on_its_row_and_at_its_rank() -> None:
    words = (
        "requests in flight, and no decode for 14 s; rank 2 on gpu-b at 192.168.0.29:18001 has not answered for 13.9 s"
    )
    stalled = Measurement(node_id=NodeId("tiny-1/0"), observed_unix_ms=UnixMs(w.NOW_MS), in_flight=1, words=words)
    whole = w.replica()
    leader = msgspec.structs.replace(whole.shards[0], measurement=stalled)
    view = w.replica(shards=(leader, *whole.shards[1:]))
    (row,) = replica_table(w.fleet(view), LOOK).rows
    assert (row.cells[-1].text, row.cells[-1].style) == (words, "state.warn")
    first = shard_table(view, LOOK).rows[0].cells[-1]
    assert (first.text, first.style) == (words, "state.warn")
    ended = msgspec.structs.replace(view, state=ReplicaState.STOPPED)
    assert replica_table(w.fleet(ended), LOOK).rows[0].cells[-1].text == ""


def test_why_a_canary_failed_is_said_whole_and_once() -> None:
    words = "no completion within 10 s; rank 2 on gpu-b at 192.168.0.29:18001 has not answered for 10.0 s"
    lost = Canary(False, 10.0, UnixMs(w.NOW_MS - 20_000), words)
    for said in ("", f"unresponsive: {words}"):
        text = _text(ring_lines(w.fleet(w.replica(canary=lost, words=said)), "tiny-1", LOOK, 74))
        assert " ".join(text.split()).count(words) == 1
        assert "…" not in text


def test_a_rank_that_owes_an_answer_for_long_breaks_the_ring() -> None:
    owes = LinkSeen(rank=2, local="192.168.0.6", remote="192.168.0.29", owed_seconds=12.0)
    text = _text(ring_lines(w.fleet(w.replica(links=(owes,))), "tiny-1", LOOK, 100))
    assert "╳   the ring is broken here: rank 2 on gpu-b has not answered for 12 s" in text
    assert "└─▶ client" not in text


def test_a_rank_that_owes_an_answer_breaks_the_ring_once_a_canary_was_lost() -> None:
    owes = LinkSeen(rank=2, local="192.168.0.6", remote="192.168.0.29", owed_seconds=2.0)
    lost = Canary(False, 10.0, UnixMs(w.NOW_MS - 20_000), "no completion within 10 s")
    text = _text(ring_lines(w.fleet(w.replica(links=(owes,), canary=lost)), "tiny-1", LOOK, 100))
    assert "╳   the ring is broken here: rank 2 on gpu-b has not answered for 2 s" in text
    assert "└─▶ client" not in text


def test_a_ring_says_where_it_is_broken_and_closes_when_it_is_not() -> None:
    whole = _text(ring_lines(w.fleet(w.replica()), "tiny-1", LOOK, 80))
    assert "└─▶ client" in whole
    assert "broken" not in whole
    headless = w.replica(shards=(w.shard_view(0, state="failed"), *w.replica().shards[1:]))
    first = _text(ring_lines(w.fleet(headless), "tiny-1", LOOK, 80))
    assert first.index("the ring is broken here: rank 0 on gpu-a is failed") < first.index("client ─▶ 0")
    assert first.count("broken") == 1
    broken = _text(ring_lines(w.busy_fleet(), "glm-2", LOOK, 80))
    assert broken.index("1  gpu-a") < broken.index("the ring is broken here") < broken.index("2  gpu-b")
    missing = _text(ring_lines(w.fleet(w.replica(shards=())), "tiny-1", LOOK, 80))
    assert missing.count("no agent reports this rank") == 3


def test_a_host_may_say_any_number_of_its_rank_and_the_ring_is_drawn() -> None:
    odd = w.shard_view(2**40, world_size=2**40)
    text = _text(ring_lines(w.fleet(w.replica(shards=(w.shard_view(0), odd), world_size=3)), "tiny-1", LOOK, 80))
    assert str(2**40) in text
    assert text.count("no agent reports this rank") == 2
    assert ring_lines(w.fleet(w.replica(shards=(odd,), world_size=2**40)), "tiny-1", LOOK, 80)


def test_drift_says_both_values_what_comes_of_it_and_what_to_do() -> None:
    text = _text(drift_lines(w.busy_fleet(), LOOK, 80))
    for words in ("step37-1/3", "1764412800123", "gpu-b 1", "hangs", "Load again"):
        assert words in text
    assert "Nothing differs" in _text(drift_lines(w.fleet(), LOOK, 80))


def test_a_drift_has_both_values_on_one_line_and_the_keys_that_do_something_about_it() -> None:
    keys = (("R", "reload step37-1"), ("k", "acknowledge"))
    for width in (60, 74, 108):
        lines = [line_text(each) for each in one_drift(w.drift(), LOOK, width, is_chosen=True, keys=keys)]
        assert any("1764412800123" in text and "registered at gpu-b 1" in text for text in lines)
        assert any("R reload step37-1     k acknowledge" in text for text in lines)
        assert max(map(width_of, lines)) <= width


def test_a_plan_says_in_one_line_where_its_largest_bound_and_its_time_come_from() -> None:
    plan = w.plan()
    assert "= weights 100 000 000 + kv 37 935 244" in _text(plan_lines(plan, None, LOOK, 108))
    formula = Term("result that goes on", 137_935_244, "B", "header + n_batch × (capsule + row)")
    largest = Term("largest result", 137_935_244, "B", "the larger of two", (formula,))
    bound = msgspec.structs.replace(plan.shards[0].bound, terms=(largest,))
    shards = tuple(msgspec.structs.replace(each, bound=bound) for each in plan.shards)
    p4 = msgspec.structs.replace(
        plan, shards=shards, phases=(PhaseBound("loading", 370.0, "61 GiB / 0.2 GiB/s + 60 s"),)
    )
    text = _text(plan_lines(sealed(p4), None, LOOK, 108))
    assert "rank 0: 137 935 244 = header + n_batch × (capsule + row)" in text
    assert "Takes up to 6 min 10 s = 61 GiB / 0.2 GiB/s + 60 s. Replaces nothing. Cuts no stream." in text
    guessed = msgspec.structs.replace(bound, derived=False)
    shards = tuple(msgspec.structs.replace(each, bound=guessed) for each in plan.shards)
    assert "rank 0: " not in _text(plan_lines(sealed(msgspec.structs.replace(plan, shards=shards)), None, LOOK, 108))


def test_operations_show_their_steps_and_quitting_says_what_goes_on() -> None:
    state = w.busy_fleet()
    assert "tiny-1/1 loading" in _row(operation_table(state, LOOK), "op-1")
    assert "reads 61 GiB" in _text(operation_lines(state, "op-1", LOOK, 80))
    assert "Waiting" in _text(operation_lines(state, "op-7", LOOK, 80))
    refused = w.fleet(answers={"op-7": w.answer("op-7", exit_code=2, words="the plan is old")})
    assert "the plan is old" in _text(operation_lines(refused, "op-7", LOOK, 80))
    leaving = _text(quit_lines(state, 80))
    assert "load tiny-1" in leaving
    assert "drain of tiny-1 goes on" in leaving
    assert "Nothing is under way" in _text(quit_lines(w.fleet(), 80))


def test_journal_lines_keep_their_level_readable_without_colour() -> None:
    alarm = line_text(journal_cells(w.journal_line(level="alarm", kind="shard.exited"), LOOK))
    assert alarm.startswith(" 12:04:31!!gpu-a")
    assert "exited" in alarm
    assert line_text(journal_cells(w.journal_line(level="warn"), LOOK)).startswith(" 12:04:31! gpu-a")
    assert "shard.ready" in _text(journal_page([w.journal_line(by="alice")], LOOK, 80))


@pytest.mark.parametrize("width", [1, 2, 5, 9, 16, 33, 80])
def test_no_width_of_a_terminal_is_too_small_to_be_drawn_on(width: int) -> None:
    state = w.busy_fleet()
    silent = w.host("gpu-z" * 12, HostState.LOST, words="silent for 95 s " * 9)
    state = msgspec.structs.replace(state, hosts={**state.hosts, HostId("gpu-z"): silent})
    assert header_line(state, LOOK, width)
    assert trouble_lines(state, width, "…")
    assert message_lines("many words " * 40 + "模" * 60, "message", LOOK, width)
    assert footer_line(state, Selection(), width)
    for view in state.replicas.values():
        assert ring_lines(state, view.id, LOOK, width)
        assert live_lines(view, view.id, LOOK, width)
    assert plan_lines(w.plan(refused=True), state, LOOK, width, derivation=True)
    assert drift_lines(state, LOOK, width)


@pytest.mark.parametrize("width", [4, 10, 23])
@pytest.mark.parametrize("text", ["--despite-silence of tiny-1/2", "模型模型模型 模型", "  indented", "x" * 60, ""])
def test_a_text_is_broken_at_blanks_and_nothing_of_it_is_lost(width: int, text: str) -> None:
    rows = broken(text, width, first=3)
    assert max(map(width_of, rows)) <= width
    assert "".join("".join(rows).split()) == "".join(text.split())
    assert "--despite-silence" not in text or width < 17 or any("--despite-silence" in row for row in rows)


def _everything(state: FleetState, look: Look) -> str:
    views = list(state.replicas.values())
    tables = [replica_table(state, look), host_table(state, look), operation_table(state, look)]
    tables += [shard_table(view, look) for view in views]
    pages = [drift_lines(state, look, 80), help_lines(state, Selection(), 80), quit_lines(state, 80)]
    pages += [ring_lines(state, view.id, look, 80) for view in views]
    pages += [shard_page(state, each.shard.node_id, look, 80) for view in views for each in view.shards]
    pages += [live_lines(view, view.id, look, 80) for view in views]
    pages += [host_page(state, host, look) for host in state.hosts]
    pages += [plan_lines(w.plan(refused=True), state, look, 80, derivation=True)]
    pages += [[header_line(state, look, 80), rule_line("shards", look, 80, note="n", focused=True)]]
    text = [each for table in tables for each in text_lines(table, 80, glyphs=look.glyphs)]
    return "\n".join(text + [_text(lines) for lines in pages])


def test_in_ascii_nothing_is_left_that_is_not_ascii() -> None:
    look = Look(glyphs=ASCII, zone=UTC, now=w.NOW, now_ms=w.NOW_MS)
    strange = [each for each in _everything(w.busy_fleet(), look) if not each.isascii()]
    assert not strange


def _hostile(value: Any, text: str) -> Any:
    """Every free text field of a structure replaced by this text."""
    if isinstance(value, msgspec.Struct):
        changed = {}
        for name in value.__struct_fields__:
            old = getattr(value, name)
            keep = name in ("state", "bound", "generation", "severity", "digest", "at_deadline", "status")
            changed[name] = old if keep and isinstance(old, str) else _hostile(old, text)
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, dict):
        return {key: _hostile(each, text) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_hostile(each, text) for each in value)
    return text if isinstance(value, str) else value


@pytest.mark.parametrize("text", ["\x1b]52;c;AAAA\x07", "[/x][bold", "\u202e\u200b\x9b2J", "模" * 200, "x" * 9000, ""])
def test_whatever_a_host_says_in_any_field_is_shown_and_steers_nothing(text: str) -> None:
    shown = _everything(_hostile(w.busy_fleet(), text), LOOK)
    assert not set(shown) & set("\x1b\x07\x9b\u202e\u200b")


def test_a_node_generation_of_any_size_is_shown() -> None:
    view = w.shard_view(1, node_generation=NodeGeneration(2**64 - 1), generation="differs")
    assert "≠ 18446744073709551615" in _row(shard_table(w.replica(shards=(view,)), LOOK), "tiny-1/1")


def test_what_the_one_shot_commands_use_imports_neither_textual_nor_rich() -> None:
    code = (
        "import sys, console, console.actions, console.safe_text\n"
        "import console.render.bars, console.render.details, console.render.help, console.render.journal\n"
        "import console.render.operations, console.render.plan, console.render.ring, console.render.drift\n"
        "import console.render.replicas, console.render.hosts, console.render.drain, console.render.catalog\n"
        "bad = [each for each in sys.modules if each.partition('.')[0] in ('textual', 'rich')]\n"
        "sys.exit(f'imported: {bad}' if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
