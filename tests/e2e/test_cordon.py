"""A cordon over real agents and a real engine: nothing new comes, what runs runs on, and the host can be emptied."""

from __future__ import annotations

import json

import pytest

from tests.e2e.fleet import Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


def cordon_of(fleet: Fleet, host: str = "host-b") -> dict[str, object] | None:
    found = next(each["cordon"] for each in fleet.json("ls", "hosts") if each["host"] == host)
    return None if found is None else dict(found)


def test_a_cordoned_host_takes_no_load_over_a_restart_of_its_agent(fleet: Fleet) -> None:
    fleet.json("plan", "tiny:two-host", "-o", str(fleet.home / "saved.json"), code=1)
    fleet.json("cordon", "host-b", "--why", "fan", "--for", "2h")
    kept = cordon_of(fleet)
    assert kept is not None
    assert kept["why"] == "fan"
    assert "cordoned by" in fleet.run("ls", "hosts").stdout
    for args in (("load", "tiny:two-host", "--yes"), ("load", "--plan", str(fleet.home / "saved.json"), "--yes")):
        done = fleet.run(*args)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "host.cordoned" in done.stdout + done.stderr
        assert "ringtop uncordon host-b" in done.stdout + done.stderr
    assert fleet.engines() == []
    fleet.kill_agent("host-b")
    fleet.start("host-b")
    assert cordon_of(fleet) == kept
    assert fleet.run("uncordon", "host-b").stdout.strip() == "host-b takes new shards again"
    assert fleet.run("uncordon", "host-b").stdout.strip() == "nothing to do: host-b is not cordoned"
    assert fleet.run("cordon", "host-q").returncode == 2
    said = fleet.json("journal", "--tail", "400")
    assert {"cordoned", "uncordoned"} <= {line["kind"] for line in said}


@pytest.mark.thorough
@pytest.mark.faults("a host drained by its name: cordoned, every replica with a rank on it emptied and stopped")
def test_a_host_is_drained_with_every_replica_that_has_a_rank_there(fleet: Fleet) -> None:
    fleet.load()
    asked = fleet.run("drain", "--host", "host-b")
    assert asked.returncode == 2
    assert "tiny-1: 1 rank on host-b, 2 elsewhere" in asked.stderr
    assert cordon_of(fleet) is None
    done = fleet.run("drain", "--host", "host-b", "--yes", "--deadline", "40s", "--json", seconds=90.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line["replica"] for line in json.loads(done.stdout)["drained"]] == ["tiny-1"]
    assert cordon_of(fleet) is not None
    assert cordon_of(fleet, "host-a") is None
    until("the end of every engine", lambda: not fleet.engines())
