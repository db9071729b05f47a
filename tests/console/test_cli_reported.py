"""``ringtop bound p4 --reported``: the cut of an unknown architecture from the ledger of this home and a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.words import LoadGeneration, OpId, UnixMs
from backend.control.ledger import ENDED, Operation, Step, create
from backend.control.snapshots import Snapshot
from console.cli import run
from tests.planning.engines.test_p4_reported import a_chain, hosts, loaded, ready
from tests.planning.worlds import NOW

ASKED = ("bound", "p4", "--n-batch", "128", "--n-ubatch", "32", "--n-seq-max", "8", "--n-embd", "4096")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGTOP_HOME", str(tmp_path))
    (tmp_path / "contexts.toml").write_text('[contexts.test.hosts]\nhost-a = "unix:/nowhere.sock"\n')
    return tmp_path


def failed_load(home: Path, n_ubatch: int = 32) -> None:
    """The ledger has a load whose first stage reported another bound than was derived."""
    made = a_chain(n_ubatch=n_ubatch)
    planned = int(made.shards[0].bound.result)
    operation = Operation(
        op_id=OpId(f"load-{n_ubatch}-ab"),
        kind="load",
        subject=made.replica,
        by="alice",
        context="test",
        load_generation=LoadGeneration(int(made.load_generation)),
        targets=(),
        options={},
        started_unix_ms=UnixMs(n_ubatch),
        plan=made,
    )
    writer = create(home / "ledger", operation)
    words = f"rank 0: resource profile physical result mismatch: profile={planned}, READY={ready(n_ubatch)}"
    writer.append(Step(at_unix_ms=NOW, target=f"{made.replica}/0", what="failed", words=words))
    writer.append(Step(at_unix_ms=NOW, target="", what=ENDED, words="rolled back", exit_code=5))
    writer.close()


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert run([*ASKED, *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_load_that_failed_is_enough_to_derive_the_next_bound(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed_load(home)
    found = answer(capsys, "--reported", "glm5")
    assert found["max_physical_result_bytes"] == ready()
    assert found["cut"] == {"tensors": 3, "row_bytes": 57_344}
    assert found["sources"] == ["load load-32-ab, failed"]
    assert found["other_cuts"] == []
    assert run([*ASKED, "--reported", "glm5"]) == 0
    assert "cut_tensors = 3, cut_row_bytes = 57344, from load load-32-ab, failed" in capsys.readouterr().out


def test_a_snapshot_is_asked_as_well_and_what_is_vague_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed_load(home, n_ubatch=1)
    vague = answer(capsys, "--reported", "glm5")
    assert vague["other_cuts"]
    assert run([*ASKED, "--reported", "glm5"]) == 0
    assert "As well possible" in capsys.readouterr().out
    said = f"profile={a_chain().shards[0].bound.result}, READY={ready()}"
    taken = Snapshot(ringtop="0", context="test", taken_unix_ms=NOW, fleet=hosts(loaded(said)))
    (home / "fleet.json").write_bytes(msgspec.json.encode(taken))
    sharp = answer(capsys, "--reported", "glm5", "--fleet", str(home / "fleet.json"))
    assert sharp["cut"] == {"tensors": 3, "row_bytes": 57_344}
    assert sharp["other_cuts"] == []
    assert len(sharp["sources"]) == 2


def test_what_nobody_reported_is_refused_with_what_was(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "reported: none" in answer(capsys, "--reported", "glm5", code=2)["error"]["words"]
    failed_load(home)
    words = answer(capsys, "--reported", "qwen9", code=2)["error"]["words"]
    assert "no load reported a cut of qwen9 with n_embd 4096" in words
    assert "glm5 with n_embd 4096" in words


@pytest.mark.parametrize(
    "arguments", [("--reported", "glm5", "--tensors", "2"), ("--fleet", "x.json", "--tensors", "2"), ()]
)
def test_two_ways_of_saying_it_exclude_each_other(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert "--reported" in answer(capsys, *arguments, code=2)["error"]["words"]
