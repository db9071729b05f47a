"""What stays unknown of an adopted engine is a question mark everywhere, and never equal."""

from __future__ import annotations

from datetime import UTC

import msgspec

from backend.contract.entities import TakenOver
from backend.contract.words import UnixMs
from backend.control.views import FleetState
from console.commands.facts import shard_facts
from console.render.cells import Look, line_text, text_lines
from console.render.details import shard_page
from console.render.replicas import replica_table
from console.render.ring import ring_lines
from console.render.shards import shard_table
from tests.console import worlds as w

LOOK = Look(zone=UTC, now=w.NOW, now_ms=w.NOW_MS)
TAKEN = TakenOver(
    by="alice",
    why="it serves",
    at_unix_ms=UnixMs(w.NOW_MS),
    program="llama-server",
    address="127.0.0.1",
    memory=2 << 30,
    started_by="bob",
    started_unix_ms=UnixMs(w.NOW_MS - 60_000),
)


def a_fleet() -> FleetState:
    """One replica, which was adopted."""
    bound = msgspec.structs.replace(w.bound(), derived=False)
    view = w.shard_view(0, bound="unknown", generation="unknown", reported=None)
    shard = msgspec.structs.replace(view.shard, taken_over=TAKEN, bound=bound)
    shards = (msgspec.structs.replace(view, shard=shard),)
    return w.fleet(w.replica("tiny-1", shards=shards, world_size=1, ranks_ready=1, bound="unknown", canary=None))


def test_bound_and_generation_are_question_marks_in_every_table() -> None:
    state = a_fleet()
    (view,) = state.replicas.values()
    row = text_lines(replica_table(state, LOOK), 200)[1]
    assert str(w.GENERATION) not in row
    assert row.split()[:3] == ["tiny-1", "ready", "?"]
    assert "=" not in row
    assert "=" not in text_lines(shard_table(view, LOOK), 200)[1]
    assert "generation ?" in line_text(ring_lines(state, "tiny-1", LOOK, 100)[0])


def test_the_page_of_the_shard_says_who_adopted_it_and_whose_it_was() -> None:
    page = "\n".join(line_text(each) for each in shard_page(a_fleet(), "tiny-1/0", LOOK, 200))
    assert "of the adoption: its engine knows of none" in page
    assert "adopted by alice at 12:04:31, because it serves: llama-server of bob, started 12:03:31" in page
    assert "bound ?: nobody derived one; it held 2.0G when it was adopted" in page


def test_programs_hear_null_for_what_nobody_knows() -> None:
    (view,) = a_fleet().replicas.values()
    facts = shard_facts(view.shards[0])
    assert (facts["node_generation"], facts["adopted_as"]) == (None, w.GENERATION)
    assert (facts["bound"]["derived"], facts["bound"]["reported"], facts["bound"]["agrees"]) == (None, None, None)
    assert facts["taken_over"] == TAKEN
