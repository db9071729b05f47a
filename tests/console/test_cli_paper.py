"""The commands that need no fleet: bound, guards, catalog, and a plan on a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console.cli import run
from tests.control.test_paper import CATALOG, a_snapshot
from tests.planning.worlds import a_fleet, a_host

P4 = ("bound", "p4", "--n-batch", "2048", "--n-ubatch", "512", "--n-seq-max", "8", "--tensors", "2")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGTOP_HOME", str(tmp_path))
    (tmp_path / "contexts.toml").write_text('[contexts.test.hosts]\nhost-a = "unix:/nowhere.sock"\n')
    (tmp_path / "catalog.toml").write_text(CATALOG)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """What a command prints as JSON; its exit code must be ``code``."""
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints for people, on both streams."""
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_the_bound_of_the_issue_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *P4, "--n-embd", "4096", "--store", "256MiB")
    assert found["max_physical_result_bytes"] == 34_419_218_444
    assert found["fits"] is False
    assert {"n_batch": 2048, "n_ubatch": 3, "max_physical_result_bytes": 260_806_668} in found["fitting_pairs"]
    assert {"name", "value", "unit", "source", "terms"} == set(found["terms"][0])
    same = answer(capsys, *P4, "--payload-bytes", "16777216")
    assert same["max_physical_result_bytes"] == found["max_physical_result_bytes"]
    faster = answer(capsys, *P4, "--n-embd", "4096", "--speculative")
    assert faster["max_physical_result_bytes"] == 34_419_218_444


def test_the_bound_for_people_shows_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    said = text(capsys, *P4, "--n-embd", "4096")
    assert "34 419 218 444 bytes" in said
    assert "does not fit" in said
    assert "payload 16 777 216 B (those tensors at n_ubatch = 512 rows)" in said
    assert "260 806 668" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give either --n-embd or --payload-bytes"),
        (("--n-embd", "4096", "--payload-bytes", "1"), "give either --n-embd or --payload-bytes"),
        (("--n-embd", "4096", "--store", "much"), "is no size"),
        (("--n-embd", "4096", "--n-ubatch", "4096"), "above n_batch 2048"),
        (("--payload-bytes", str(2**60)), "more than 2^64-1"),
    ],
)
def test_a_bound_that_cannot_be_derived_says_why(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in text(capsys, *P4, *arguments, code=2)


def test_the_last_stage_needs_no_payload(capsys: pytest.CaptureFixture[str]) -> None:
    tail = ("bound", "p4", "--n-batch", "2048", "--n-ubatch", "512", "--n-seq-max", "8", "--tensors", "0")
    assert answer(capsys, *tail)["max_physical_result_bytes"] == 59_136_012


def test_guards_are_listed_by_the_step_at_which_they_can_know(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "guards")
    assert len(found) > 80
    assert {guard["step"] for guard in found} == {"plan", "recheck", "check", "start", "load", "adopt", "recover"}
    said = text(capsys, "guards")
    assert said.index("address.loopback") < said.index("address.unreachable") < said.index("placement.differs")


def test_a_good_catalog_is_ok_and_a_wrong_one_says_where(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "catalog", "check")["ok"] is True
    assert "ok      tiny:two-host" in text(capsys, "catalog", "check")
    (home / "catalog.toml").write_text(CATALOG + "split = [9]\n")
    said = text(capsys, "catalog", "check", code=2)
    assert "refuse  tiny:two-host" in said
    assert "split.length" in said
    (home / "catalog.toml").write_text(CATALOG + "splitt = [9]\n")
    assert "did you mean 'split'" in text(capsys, "catalog", "check", code=2)
    other = home / "other.toml"
    other.write_text("[models.a]\npath = 'x'\nengine = 'ollama'\n")
    assert answer(capsys, "catalog", "check", str(other), code=2)["models"][0]["trouble"]
    assert "'ollama'" in text(capsys, "catalog", "check", str(other), code=2)


def test_the_catalog_is_shown_with_fingerprints_and_what_each_rank_takes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "catalog.toml").write_text(
        CATALOG
        + 'memory = "2GiB"\npower = 300\npool = "night"\n'
        + '[models.tiny.scaling]\nmode = "on_demand"\nidle_timeout = "30m"\n'
    )
    (model,) = answer(capsys, "catalog", "show", "tiny")
    assert len(model["profiles"][0]["fingerprint"]) == 64
    assert model["profiles"][0]["profile"]["memory"] == 2 * 2**30
    assert (model["mode"], model["idle_seconds"]) == ("on_demand", 1800)
    said = text(capsys, "catalog", "show")
    for words in ("idle for 30 min", "at least 2.0G each", "300 W each", "host-a host-b"):
        assert words in said
    assert "known: tiny" in text(capsys, "catalog", "show", "nope", code=2)


def test_a_plan_on_a_snapshot_asks_nobody(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = str(a_snapshot(home / "fleet.json"))
    made = answer(capsys, "plan", "tiny", "--fleet", fleet, code=1)
    assert [shard["host"] for shard in made["shards"]] == ["host-a", "host-a", "host-b"]
    said = text(capsys, "plan", "tiny:two-host", "--fleet", fleet, "--derivation", "-o", str(home / "p.json"), code=1)
    assert "tiny-1" in said
    assert "KV " in said
    assert "     cells 2 048 (context 2048 padded to 256, one unified cache)" in said
    assert json.loads((home / "p.json").read_text())["digest"] == made["digest"]
    assert "is no snapshot" in text(capsys, "plan", "tiny", "--fleet", str(home / "catalog.toml"), code=2)
    assert "--catalog goes with --fleet" in text(capsys, "plan", "tiny", "--catalog", "x", code=2)


def test_a_refused_plan_on_a_snapshot_exits_with_2(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "other.toml").write_text(CATALOG.replace("ranks = 3", "ranks = 9"))
    fleet, other = str(a_snapshot(home / "fleet.json")), str(home / "other.toml")
    said = text(capsys, "plan", "tiny", "--fleet", fleet, "--catalog", other, code=2)
    assert "ranks" in said
    assert "It cannot be confirmed" in said


def test_a_large_fleet_is_told_in_few_lines_and_whole_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [a_host(f"host-{name}{number:02}") for name in "ab" for number in range(20)]
    fleet = str(a_snapshot(home / "fleet.json", fleet=a_fleet(*hosts)))
    (home / "catalog.toml").write_text(CATALOG.replace('hosts = ["host-a", "host-b"]\n', ""))
    assert len(answer(capsys, "plan", "tiny", "--fleet", fleet, code=1)["candidates"]) == 40
    assert "not chosen  host-a01, host-a02, host-a03 and 36 more: not needed" in text(
        capsys, "plan", "tiny", "--fleet", fleet, code=1
    )
