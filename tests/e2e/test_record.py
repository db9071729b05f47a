"""A live fleet recorded and rehearsed by the command line: the file ends as it should, and shows what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


def rehearse(fleet: Fleet, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = fleet.json("rehearse", str(path), "--catalog", str(fleet.home / "catalog.toml"))
    return found


def test_a_recording_that_a_person_ends_shows_the_load_and_the_death_of_a_worker(fleet: Fleet) -> None:
    path = fleet.home / "events.jsonl"
    recorder = subprocess.Popen(
        fleet.command("record", "-o", str(path)),
        env=fleet.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    part = path.with_name("events.jsonl.part")
    try:
        until("both reports", lambda: part.exists() and part.read_text().count('"type":"report"') == 2)
        loaded = fleet.load()
        os.kill(fleet.pid_of("tiny-1/2"), signal.SIGKILL)
        until("the failure", lambda: (fleet.replica() or {}).get("state") == "failed")
        until("its record", lambda: "signal 9" in part.read_text())
        recorder.send_signal(signal.SIGINT)
        out, err = recorder.communicate(timeout=30)
    finally:
        recorder.kill()
    assert recorder.returncode == 0, out + err
    assert "Stopped by a person." in out
    assert not part.exists()
    assert json.loads(path.read_text().splitlines()[-1])["end"] == "stopped by a person"
    found = rehearse(fleet, path)
    assert found["bad"] == []
    states = [(each["before"], each["after"]) for each in found["shown"] if each["what"] == "replica"]
    assert ("loading", "ready") in states
    assert states[-1][1] == "failed"
    reason = [each["words"] for each in found["shown"] if each["after"] == "failed"][-1]
    assert "rank 2 on host-b" in reason
    assert "signal 9" in reason
    (replica,) = found["replicas"]
    assert (replica["id"], replica["load_generation"]) == ("tiny-1", loaded["load_generation"])
    people = fleet.run("rehearse", str(path), "--catalog", str(fleet.home / "catalog.toml"))
    assert people.returncode == 0
    assert "At the end, after" in people.stdout


def test_a_host_that_is_not_there_makes_the_exit_code_4_and_the_rest_is_recorded(fleet: Fleet) -> None:
    fleet.kill_agent("host-b")
    path = fleet.home / "events.jsonl"
    facts = fleet.json("record", "-o", str(path), "--for", "2s", code=4)
    assert facts["frames"]["host-a"] >= 2
    assert list(facts["never_heard"]) == ["host-b"]
    hosts = {host["host"]: host["state"] for host in rehearse(fleet, path)["hosts"]}
    assert hosts == {"host-a": "live", "host-b": "unreachable"}
    again = fleet.run("record", "-o", str(path), "--for", "1s")
    assert again.returncode == 2
    assert "is there already, and is kept" in again.stderr


def test_a_bad_line_is_named_with_its_file_and_number(fleet: Fleet) -> None:
    path = fleet.home / "hand.jsonl"
    path.write_text('{"at": 0, "host": "host-a", "link": "down", "words": "cut"}\n{"at": 1, "host": "host-a"}\n')
    done = fleet.run("rehearse", str(path), "--catalog", str(fleet.home / "catalog.toml"))
    assert done.returncode == 2
    assert f"{path}:2: has nothing; expected one of frame, link, slept, end" in done.stderr
    assert "connecting" in done.stdout
    assert "unreachable" in done.stdout
