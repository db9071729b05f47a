"""Reload of a real ring: a stream that runs goes on, what was loaded serves, and a killed operation is finished."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from backend.local.tiny_model import TINY_COMPLETION, TINY_PROMPT, TINY_TOKENS
from tests.e2e.fleet import CATALOG, Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.timeout(150)]


def ask(fleet: Fleet, replica: str) -> str:
    answer = fleet.json("test", replica, "--prompt", TINY_PROMPT, "--max-tokens", str(TINY_TOKENS))
    return str(answer["text"])


class Stream:
    """One long completion at an endpoint, token by token."""

    def __init__(self, endpoint: str, tokens: int) -> None:
        body = json.dumps({"prompt": "one two", "n_predict": tokens, "temperature": 0, "stream": True}).encode()
        self._request = urllib.request.Request(f"{endpoint}/completion", body, {"Content-Type": "application/json"})
        self.heard: list[dict[str, Any]] = []
        self.runs = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self.runs.wait(60)

    def _read(self) -> None:
        with urllib.request.urlopen(self._request, timeout=120) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    self.heard.append(json.loads(line[6:]))
                    if len(self.heard) > 20:
                        self.runs.set()

    def ended(self) -> dict[str, Any]:
        """Its last word."""
        self._reader.join(120)
        return self.heard[-1]


def test_replacement_first_does_not_break_the_stream_that_runs(fleet: Fleet) -> None:
    old = fleet.load("tiny:one-worker")
    stream = Stream(str(old["endpoint"]), 1500)
    done = fleet.run("reload", "tiny-1", "--yes", "--deadline", "100s", seconds=140)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replacement first: there is room beside it" in done.stdout
    assert "tiny-1 is replaced: tiny-2 is ready at generation" in done.stdout
    last = stream.ended()
    assert (last["stop"], last["tokens_predicted"]) == (True, 1500)
    (new,) = fleet.json("ls", "replicas")
    assert (new["id"], new["state"]) == ("tiny-2", "ready")
    assert new["load_generation"] > old["load_generation"]
    assert ask(fleet, "tiny-2") == TINY_COMPLETION
    assert len(fleet.engines()) == 2


def without_room(make_fleet: Callable[..., Fleet]) -> Fleet:
    """Two hosts with memory for one ring."""
    fleet = make_fleet()
    for index, name in enumerate(("host-a", "host-b")):
        fleet.write_agent(name, index, extra='[devices.CPU]\nmemory = "16MiB"')
    fleet.start()
    return fleet


def test_without_room_it_is_drained_first_and_keeps_its_name(make_fleet: Callable[..., Fleet]) -> None:
    fleet = without_room(make_fleet)
    old = fleet.load("tiny:two-host")
    done = fleet.run("reload", "tiny-1", "--yes", seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in place" in done.stdout
    assert "there is no room beside it" in done.stdout
    (new,) = fleet.json("ls", "replicas")
    assert (new["id"], new["state"]) == ("tiny-1", "ready")
    assert new["load_generation"] > old["load_generation"]
    assert ask(fleet, "tiny-1") == TINY_COMPLETION
    assert len(fleet.engines()) == 3


@pytest.mark.parametrize("line", [3, 10, 17, 23])
@pytest.mark.parametrize("way", ["beside", "in place"])
@pytest.mark.thorough
@pytest.mark.faults("the reload's process is killed at this line of its ledger: another one finishes it, once")
def test_a_reload_whose_process_was_killed_is_finished_by_another(
    make_fleet: Callable[..., Fleet], way: str, line: int
) -> None:
    fleet = without_room(make_fleet) if way == "in place" else make_fleet()
    if way == "beside":
        fleet.start()
    fleet.load("tiny:two-host")
    arming = {"RINGTOP_TEST": "1", "RINGTOP_FAILPOINTS": f"ledger.before_step=kill@{line}"}
    fleet.run("reload", "tiny-1", "--yes", env=arming, seconds=120)

    def stopped() -> dict[str, Any] | None:
        found = [op for op in fleet.json("ls", "operations") if op["kind"] == "reload"]
        return dict(found[0]) if found and found[0]["state"] == "ownerless" else None

    operation = until("the end of its process", stopped)
    done = fleet.run("op", "resume", str(operation["id"]))
    assert done.returncode == 0, done.stdout + done.stderr

    def ended() -> dict[str, Any] | None:
        (found,) = [op for op in fleet.json("ls", "operations") if op["kind"] == "reload"]
        return dict(found) if found["state"] not in ("running", "ownerless") else None

    assert until("its end", ended, seconds=100)["state"] == "succeeded"
    (new,) = fleet.json("ls", "replicas")
    assert (new["id"], new["state"]) == ("tiny-1" if way == "in place" else "tiny-2", "ready")
    assert ask(fleet, str(new["id"])) == TINY_COMPLETION
    assert len(fleet.engines()) == 3


def test_nobody_is_reloaded_without_a_confirmation_and_an_unknown_one_is_named(fleet: Fleet) -> None:
    fleet.load("tiny:alone")
    pid = fleet.pid_of("tiny-1/0")
    done = fleet.run("reload", "tiny-1")
    assert done.returncode == 2
    assert "reloading tiny-1 must be confirmed, and there is no terminal to ask at; add --yes" in done.stderr
    assert "there is no replica 'tiny-9'" in fleet.json("reload", "tiny-9", "--yes", code=2)["error"]["words"]
    assert fleet.pid_of("tiny-1/0") == pid
    assert [op["kind"] for op in fleet.json("ls", "operations")] == ["load"]


def test_the_present_catalog_is_what_now_means_and_a_failed_replica_is_loaded_again_in_place(fleet: Fleet) -> None:
    fleet.load("tiny:alone")
    (fleet.home / "catalog.toml").write_text(CATALOG.replace("context = 2048", "context = 1024"))
    facts = fleet.json("reload", "tiny-1", "--yes", "--plan-of", "last")
    assert (facts["mode"], facts["replica"]["id"]) == ("replacement first", "tiny-2")
    old = facts["replica"]["load_generation"]
    assert fleet.run("drift", "--no-files").returncode == 1, "it was loaded by the profile of its load record"
    os.kill(fleet.pid_of("tiny-2/0"), signal.SIGKILL)
    until("the failure", lambda: (fleet.replica("tiny-2") or {}).get("state") == "failed")
    facts = fleet.json("reload", "tiny-2", "--yes", "--plan-of", "now")
    assert (facts["mode"], facts["replica"]["id"]) == ("in place", "tiny-2")
    assert facts["replica"]["load_generation"] > old
    assert fleet.run("drift", "--no-files").returncode == 0
    assert ask(fleet, "tiny-2") == TINY_COMPLETION
