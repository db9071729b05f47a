"""`ringtop up` and `down`: a whole ring by one command, and nothing left of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backend.local.fleet import LocalFleet
from backend.local.tiny_model import TINY_COMPLETION
from tests.e2e.fleet import until
from tests.e2e.terminal import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.xdist_group("up")]


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ru", dir="/tmp"))
    yield path
    ringtop(path, "down")
    for process in left_of(path):
        process.kill()
    shutil.rmtree(path, ignore_errors=True)


def env(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "HOME")}
    return {**kept, "RINGTOP_HOME": str(home), "TERM": "xterm-256color"}


def ringtop(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "console.cli", *args],
        env=env(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def left_of(home: Path) -> list[psutil.Process]:
    """Every process of this home: by command line, environment or working folder."""
    found = []
    for process in psutil.process_iter():
        try:
            where = [*process.cmdline(), process.cwd(), process.environ().get("RINGTOP_HOME", "")]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(home) in text for text in where):
            found.append(process)
    return found


def test_once_loads_asks_drains_and_leaves_nothing(home: Path) -> None:
    done = ringtop(home, "up", "--once", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    (replica,) = said["replicas"]
    assert said["completion"] == TINY_COMPLETION
    assert (replica["model"], replica["state"], replica["world_size"]) == ("tiny", "ready", 3)
    assert {shard["host"] for shard in replica["shards"]} == {"host-a", "host-b"}
    for shard in replica["shards"]:
        assert shard["state"] == "ready"
        assert shard["node_generation"] == replica["load_generation"]
        assert shard["bound"].keys() >= {"derived", "reported", "limit"}
        assert shard["bound"]["agrees"] is True
    assert 0 < said["seconds"] < 100
    assert [host["host"] for host in said["hosts"]] == ["host-a", "host-b"]
    until("no process left", lambda: not left_of(home) or None)
    assert not LocalFleet(home).is_left


def test_without_a_terminal_up_is_once_and_prints_the_ring(home: Path) -> None:
    done = ringtop(home, "up")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("host-a", "host-b", "ready", TINY_COMPLETION.strip()):
        assert word in done.stdout
    until("no process left", lambda: not left_of(home) or None)


def test_up_in_a_terminal_shows_the_ring_and_down_stops_what_it_left(home: Path) -> None:
    terminal = Terminal([sys.executable, "-I", "-m", "console.cli", "up"], env(home))
    try:
        terminal.wait_for(lambda text: " ready " in text and "3/3" in text, seconds=60)
        agent = next(p for p in left_of(home) if "backend.agent" in p.cmdline() and "host-b" in " ".join(p.cmdline()))
        engines = {p.pid for p in left_of(home) if p.name() in ("llama-server", "ggml-rpc-server")}
        assert len(engines) == 3
        agent.kill()
        terminal.wait_for("1/2 hosts")
        terminal.wait_for(lambda text: "2/2 hosts" in text and " ready " in text and "3/3" in text)
        assert {p.pid for p in left_of(home) if p.name() in ("llama-server", "ggml-rpc-server")} == engines
        terminal.press("q")
        terminal.read(0.5)
        if "Quit" in terminal.text():
            terminal.press("q")
        terminal.wait_end()
    finally:
        terminal.close()
    assert left_of(home), "quitting the console stopped the fleet"
    stopped = ringtop(home, "down")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert len(list((home / "ledger").glob("unload-*.jsonl"))) == 1, "one unload of the one replica"
    until("no process left", lambda: not left_of(home) or None)
    again = ringtop(home, "down")
    assert (again.returncode, again.stdout.strip()) == (0, "nothing to stop")
