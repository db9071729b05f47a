"""Documents that people save and confirm: what is wrong with a file is said before what follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.contract.plans import sealed
from backend.control.adoption import classify
from backend.control.adoption_document import AdoptionUnreadable, read_adoption, write_adoption
from backend.control.plan_files import PlanUnreadable, read_plan, write_plan
from tests.control.factories import a_plan
from tests.control.test_keeper import bare, fleet


def saved(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    write_adoption(classify(fleet(*bare())), path)
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    return path


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    document = classify(fleet(*bare()))
    write_adoption(document, tmp_path / "a.json")
    assert read_adoption(tmp_path / "a.json") == document
    write_plan(sealed(a_plan()), tmp_path / "p.json")
    assert read_plan(tmp_path / "p.json") == sealed(a_plan())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.update(format=2, hosts=7, more=[1]), "is of format 2, and this ringtop reads 1. Make a new"),
        (lambda tree: tree.update(hosts=7), "its content gives"),
        (lambda tree: tree.update(digest=""), "its digest is missing"),
        (lambda tree: tree.pop("hosts"), "is no adoption document of ringtop: Object missing required field `hosts`"),
        (lambda tree: tree.update(format="two"), "is no adoption document of ringtop: Expected `int | null`"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    path = saved(tmp_path / "a.json", change)
    with pytest.raises(AdoptionUnreadable) as refused:
        read_adoption(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'"plan"'])
def test_what_is_no_document_at_all_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(data)
    with pytest.raises(PlanUnreadable, match=r"p\.json: is no plan of ringtop"):
        read_plan(path)
    with pytest.raises(PlanUnreadable, match="cannot be read: Is a directory"):
        read_plan(tmp_path)
