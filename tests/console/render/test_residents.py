"""An engine's own agent as people see it: what is known, what is not, and nodes that nobody here loaded."""

from __future__ import annotations

import msgspec

from backend.api import JournalGrowth, ResidentFacts, ResidentNode, ResidentProcess
from backend.contract.entities import Resident
from backend.contract.words import Bytes, NodeGeneration
from console.render.cells import Line, Look, folded, line_text
from console.render.details import shard_page
from console.render.residents import resident_lines
from console.render.shards import shard_cells
from tests.console.worlds import GENERATION, bound, fleet, replica, shard_view


def text(lines: list[Line]) -> str:
    return "\n".join("".join(str(piece.text) for piece in each) for each in lines)


def test_an_agent_that_is_well_says_its_address_journal_and_slots() -> None:
    said = text(
        resident_lines(
            ResidentFacts(
                address="tcp://10.0.0.7:4201",
                journal="ok",
                journal_files=26_510,
                journal_bytes=3 << 20,
                sockets=4,
                unique=3,
                hidden=0,
            )
        )
    )
    assert "tcp://10.0.0.7:4201" in said
    assert "journal ok   26 510 files" in said
    assert "restart possible" in said
    assert "4 of 256   unique 3   hidden 0" in said


def test_what_is_not_known_is_never_nothing() -> None:
    said = text(resident_lines(ResidentFacts(address="tcp://10.0.0.7:4201")))
    assert "? of 256   unique ?   hidden ?" in said
    assert "journal ?" in said


def test_a_foreign_node_has_its_place_by_its_record_and_its_text_as_text() -> None:
    nodes = (
        ResidentNode(
            name="s0", generation=7, phase="loaded", state="failed:stale", replica="step37", rank=0, world_size=4
        ),
        ResidentNode(name="s9", generation=8, phase="loading"),
        ResidentNode(name="tiny-1/0", generation=9, phase="loaded", is_ours=True),
    )
    said = text(resident_lines(ResidentFacts(address="a", nodes=nodes, restart="9 admitted", hidden=1)))
    assert "s0  generation 7  loaded, its text is 'failed:stale'  rank 0 of 4 of step37, by its record" in said
    assert "s9  generation 8  loading  of a ring that no record names" in said
    assert "tiny-1/0" not in said
    assert "restart refused" in said


def test_a_shard_that_its_engines_agent_runs_has_no_process_and_two_bounds() -> None:
    derived = msgspec.structs.replace(
        bound(), derived=False, result=Bytes(137_935_244), result_limit=Bytes(201_326_592), result_derived=True
    )
    who = Resident("tcp://10.0.0.7:4201", "tiny-1/0", NodeGeneration(GENERATION))
    view = shard_view(
        0,
        bound="equal",
        reported=None,
        resident=who,
        reported_result=137_935_244,
        reported_release="451b89bae patch 1 wire 4",
    )
    view = msgspec.structs.replace(view, shard=msgspec.structs.replace(view.shard, bound=derived))
    look = Look(wide=True)
    cells = " ".join(str(cell.text) for cell in shard_cells(view, look))
    assert "137 935 244" in cells
    said = text(shard_page(fleet(replica(shards=(view,))), "tiny-1/0", look, 200))
    assert "node tiny-1/0 generation" in said
    assert "which its own agent runs" in said
    assert "largest result 137 935 244   engine reported 137 935 244   of at most 201 326 592" in said
    assert "engine said it is 451b89bae patch 1 wire 4" in said


def test_growth_stages_and_where_their_words_go_are_said_at_eighty_columns() -> None:
    own = ResidentFacts(
        address="tcp://10.0.0.7:4201",
        journal="ok",
        growth=JournalGrowth(
            files=3200,
            bytes=12 << 20,
            seconds=1800,
            files_per_hour=6400,
            bytes_per_hour=24 << 20,
            tokens=6,
            files_per_1000_tokens=15_000,
            bytes_per_1000_tokens=58 << 20,
        ),
        processes=(
            ResidentProcess(
                pid=812, port=4711, node_id="tiny-1/0", threads=9, idle_cores=8.0, spinning=8, wait_policy="ACTIVE"
            ),
            ResidentProcess(pid=813, port=4712, threads=9, idle_cores=0.0, spinning=0, wait_policy=""),
            ResidentProcess(pid=814, port=4713, threads=9),
        ),
        stderr="thrown away: the p4 agent (pid 7) was started without A. Start it with A=1 and its standard error in a "
        "file (2>>FILE); that ends every stage it runs, so unload its rings first",
    )
    lines = [line_text(each) for each in folded(resident_lines(own), 76, 4)]
    assert max(len(each.rstrip()) for each in lines) <= 76
    said = "\n".join(each.rstrip() for each in lines)
    assert "its journal grew 3 200 files 12.0M in 30 min" in said
    assert "per hour 6 400 files 24.0M" in said
    assert "per 1000 tokens 15 000 files 58.0M   by 6 tokens of our own prompts" in said
    assert "stage tiny-1/0  pid 812  spins: 8.0 cores idle, 8 of 9 threads" in said
    assert "stage at port 4712  pid 813  idle cores 0.0, 9 threads  wait policy not" in said
    assert "stage at port 4713  pid 814  idle cores ?, 9 threads  wait policy ?" in said
    assert " ".join(said.split()).endswith("so unload its rings first")
