"""A snapshot of a fleet that runs, and plans on it once nobody answers any more."""

from __future__ import annotations

import json

import pytest

from tests.e2e.fleet import Fleet

pytestmark = [pytest.mark.e2e]


def test_a_snapshot_plans_what_the_fleet_planned_when_nobody_answers_any_more(fleet: Fleet) -> None:
    live = fleet.json("plan", "tiny:two-host", code=1)
    file = fleet.home / "fleet.json"
    saved = fleet.json("snapshot", "-o", str(file))
    assert saved == {"file": str(file), "hosts": ["host-a", "host-b"]}
    printed = fleet.json("snapshot")
    assert list(printed["models"]) == ["tiny.gguf"]
    assert printed["models"]["tiny.gguf"]["facts"]["n_layer"] == 4
    facts = printed["fleet"]["reports"][0]["facts"]
    assert facts["ephemeral"][0] > 0
    assert "127.0.0.1" not in facts["addresses"]

    for name in ("host-a", "host-b"):
        fleet.kill_agent(name)
    assert fleet.run("plan", "tiny:two-host").returncode == 4
    paper = fleet.json("plan", "tiny:two-host", "--fleet", str(file), code=1)
    assert [(shard["host"], shard["layers"], shard["ports"]) for shard in paper["shards"]] == [
        (shard["host"], shard["layers"], shard["ports"]) for shard in live["shards"]
    ]
    assert paper["shards"][1]["bound"]["terms"] == live["shards"][1]["bound"]["terms"]
    assert paper["load_generation"] < live["load_generation"] + 600_000


def test_a_model_of_an_unknown_engine_leaves_the_others_to_be_planned(fleet: Fleet) -> None:
    catalog = fleet.home / "catalog.toml"
    catalog.write_text(
        catalog.read_text() + '\n[models.odd]\npath = "x"\nengine = "ollama"\n[models.odd.profiles.p]\nranks = 1\n'
    )
    assert fleet.json("plan", "tiny:two-host", code=1)["findings"] == []
    refused = fleet.run("plan", "odd", "--json")
    assert refused.returncode == 2
    assert "'ollama'" in json.loads(refused.stdout)["error"]["words"]


def test_an_engine_that_no_agent_has_is_planned_and_refused_with_words(fleet: Fleet) -> None:
    catalog = fleet.home / "catalog.toml"
    catalog.write_text(
        catalog.read_text() + '\n[models.glm]\nid = "org/glm"\nengine = "vllm"\n'
        '[models.glm.profiles.p]\nranks = 1\nhosts = ["host-a"]\n'
    )
    plan = fleet.json("plan", "glm", code=2)
    assert "engine.missing" in [finding["id"] for finding in plan["findings"]]
    assert fleet.engines() == []
