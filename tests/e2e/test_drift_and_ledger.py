"""Drift and ledger over a real ring: what differs is told and acknowledged, what was lost or left is put right."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


def drifts(fleet: Fleet, code: int = 1) -> dict[str, Any]:
    return {drift["id"]: drift for drift in fleet.json("drift", code=code)}


def without_its_end(fleet: Fleet, op_id: str) -> None:
    """The ledger as an owner leaves it that dies before the last line."""
    path = fleet.home / "ledger" / f"{op_id}.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def test_an_edited_catalog_and_a_changed_model_file_are_drift_until_somebody_answers_for_them(fleet: Fleet) -> None:
    fleet.load()
    assert fleet.json("drift") == []
    catalog = fleet.home / "catalog.toml"
    catalog.write_text(catalog.read_text().replace("sequences = 2", "sequences = 3"))
    with open(fleet.home / "models" / "tiny.gguf", "ab") as file:
        file.write(b"x" * 64)
    found = drifts(fleet)
    assert set(found) == {"profile-changed:tiny-1", "model-file:tiny-1"}
    changed = found["profile-changed:tiny-1"]
    assert (changed["one"], changed["other"]) == ("sequences 2", "sequences 3")
    assert changed["acknowledged"] is None
    assert "bytes" in found["model-file:tiny-1"]["other"]
    for name in ("profile", "model-file"):
        done = fleet.run("drift", "ack", name, "--note", "known for tonight", "--for", "2h")
        assert done.returncode == 0, done.stderr
    known = drifts(fleet, code=0)
    assert {drift["acknowledged"]["note"] for drift in known.values()} == {"known for tonight"}
    assert fleet.run("drift", "reopen", "model-file:tiny-1").returncode == 0
    text = fleet.run("drift")
    assert text.returncode == 1
    assert "1 open   1 acknowledged" in text.stdout
    wrong = fleet.run("drift", "ack", "nothing", "--note", "x", "--for", "1h")
    assert (wrong.returncode, "model-file:tiny-1" in wrong.stderr) == (2, True)


def test_a_lost_ledger_is_rebuilt_an_ownerless_load_settled_and_then_rolled_back(fleet: Fleet) -> None:
    fleet.load()
    (before,) = fleet.json("ledger")
    op_id = before["id"]
    shutil.rmtree(fleet.home / "ledger")
    assert fleet.json("ledger") == []
    rebuilt = fleet.json("ledger", "rebuild")
    assert [(entry["op_id"], entry["state"]) for entry in rebuilt["rebuilt"]] == [(op_id, "succeeded")]
    after = fleet.json("ledger", op_id)
    same = ("kind", "subject", "by", "load_generation", "targets", "plan_digest")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    without_its_end(fleet, op_id)
    listed = fleet.run("ledger")
    assert "has no owner" in listed.stderr
    settled = fleet.json("op", "settle", op_id)
    assert settled["lines"] == ["rank 0 on host-a: ready", "rank 1 on host-a: ready", "rank 2 on host-b: ready"]
    assert fleet.run("op", "settle", op_id).returncode == 2
    without_its_end(fleet, op_id)
    refused = fleet.run("op", "rollback", op_id)
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert fleet.run("op", "rollback", op_id, "--yes").returncode == 0

    def ended() -> Any:
        view = fleet.json("ledger", op_id)
        return view if view["ended_unix_ms"] else None

    assert "every rank is proven absent" in until("the end of the roll back", ended)["words"]
    assert fleet.engines() == []
    assert json.loads(fleet.run("ls", "replicas", "--json").stdout) == []
