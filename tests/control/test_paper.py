"""What needs no agent: the catalog as it is followed and checked, plans on a snapshot, a bound, the list of guards."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backend.contract.words import HostId
from backend.control.catalog_reader import CatalogReader
from backend.control.paper import PaperRefused, catalog_on_paper, guards_on_paper, p4_bound, plan_on_paper
from backend.control.snapshots import ModelRead, Snapshot, read_snapshot
from backend.planning.catalog import CatalogError
from backend.planning.guards import GUARDS
from tests.planning.worlds import NOW, a_fleet, a_host, a_model, a_plan

CATALOG = """
[models.tiny]
path = "tiny.gguf"
[models.tiny.profiles.two-host]
ranks = 3
hosts = ["host-a", "host-b"]
context = 2048
"""


def a_snapshot(path: Path, **changes: object) -> Path:
    taken = Snapshot(
        ringtop="0.1.0",
        context="prod",
        taken_unix_ms=NOW,
        fleet=a_fleet(a_host("host-a"), a_host("host-b"), unreachable=((HostId("host-c"), "timed out"),)),
        models={"tiny.gguf": ModelRead(a_model(), "host-a", "")},
    )
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(taken, **changes)))
    return path


def test_a_plan_on_a_snapshot_is_the_plan_of_its_moment(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_text(CATALOG)
    made = plan_on_paper(a_snapshot(tmp_path / "fleet.json"), tmp_path / "catalog.toml", "tiny")
    assert made.shards == a_plan().shards
    assert int(made.load_generation) == NOW
    reasons = {candidate.host: candidate.reason for candidate in made.candidates if not candidate.chosen}
    assert reasons == {"host-c": "not named; named: host-a, host-b"}
    assert made.findings == ()


def test_a_snapshot_survives_being_saved(tmp_path: Path) -> None:
    snapshot = read_snapshot(a_snapshot(tmp_path / "fleet.json"))
    assert snapshot.fleet.report("host-b") == a_host("host-b")
    assert snapshot.fleet.silence("host-c") == "timed out"


def test_a_snapshot_without_the_models_header_says_so_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_text(CATALOG)
    made = plan_on_paper(a_snapshot(tmp_path / "fleet.json", models={}), tmp_path / "catalog.toml", "tiny")
    (finding,) = made.findings
    assert finding.id == "model.unreadable"
    assert "no header of tiny.gguf" in finding.found


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is no snapshot"), ('{"ringtop": "x"}', "is no snapshot"), (None, "No such file")]
)
def test_a_file_that_is_no_snapshot_is_refused_by_name(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PaperRefused, match=words) as caught:
        plan_on_paper(path, tmp_path / "catalog.toml", "tiny")
    assert str(path) in str(caught.value)


def test_a_snapshot_of_another_format_says_both(tmp_path: Path) -> None:
    with pytest.raises(PaperRefused, match="of format 9, and this ringtop reads 1"):
        plan_on_paper(a_snapshot(tmp_path / "fleet.json", format=9), tmp_path / "catalog.toml", "tiny")


def test_an_unknown_target_on_paper_names_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_text(CATALOG)
    with pytest.raises(PaperRefused, match="did you mean 'tiny'"):
        plan_on_paper(a_snapshot(tmp_path / "fleet.json"), tmp_path / "catalog.toml", "tinny")


def test_a_catalog_on_paper_has_the_findings_of_every_profile(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(
        CATALOG
        + "split = [1]\noptions = { ngl = 3 }\n"
        + "[models.odd]\npath = 'x'\nengine = 'ollama'\n"
        + "[models.step]\npath = 'x'\nengine = 'p4'\n[models.step.profiles.p]\nranks = 1\n"
    )
    tiny, odd, step = catalog_on_paper(path)
    assert [finding.id for finding in tiny.profiles[0].findings] == ["split.length", "options.refused"]
    assert "'ollama'" in odd.trouble
    assert [finding.id for finding in step.profiles[0].findings] == ["ranks"]
    assert len(tiny.profiles[0].fingerprint) == 64


def test_a_reader_keeps_the_last_good_catalog_and_says_why_it_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    reader = CatalogReader(path)
    assert reader.read()[0] == {}
    with pytest.raises(CatalogError, match="No such file"):
        reader.current()
    path.write_text(CATALOG)
    views, words = reader.read()
    assert (list(views), words) == (["tiny"], "")
    assert list(views["tiny"].fingerprints) == ["two-host"]
    assert reader.current().stale == ""
    path.write_text(CATALOG + "rank = 1\n")
    views, words = reader.read()
    assert list(views) == ["tiny"]
    assert "unknown key 'rank'" in words
    assert "unknown key 'rank'" in reader.current().stale
    assert list(reader.current().models) == ["tiny"]
    path.unlink()
    assert "No such file" in reader.current().stale
    path.write_text(CATALOG.replace("tiny", "small") + "[models.odd]\npath = 'x'\nengine = 'ollama'\n")
    views, words = reader.read()
    assert list(views) == ["small", "odd"]
    assert words.startswith("odd: ")
    assert reader.current().stale == ""


def test_a_bound_on_paper_has_the_number_the_tree_and_the_pairs() -> None:
    found = p4_bound(n_batch=128, n_ubatch=32, n_seq_max=8, tensors=2, n_embd=4096)
    assert found.max_physical_result_bytes == 137_935_244
    assert found.fits
    assert [term.name for term in found.terms] == ["result that goes on", "result that ends"]
    assert found == p4_bound(n_batch=128, n_ubatch=32, n_seq_max=8, tensors=2, payload_bytes=1_048_576)
    assert not p4_bound(n_batch=128, n_ubatch=32, n_seq_max=8, tensors=2, n_embd=4096, store=137_935_243).fits
    with pytest.raises(PaperRefused, match="more than 2\\^64-1"):
        p4_bound(n_batch=65_536, n_ubatch=65_536, n_seq_max=8, tensors=16_384, n_embd=2**31)


def test_the_list_of_guards_is_the_registry() -> None:
    assert [guard.id for guard in guards_on_paper()] == [guard.id for guard in GUARDS]
