"""A real ring over two agents: loaded, asked, broken, drained, by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable

import psutil
import pytest

from backend.local.tiny_model import TINY_COMPLETION, TINY_PROMPT, TINY_TOKENS
from tests.e2e.fleet import Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


def ask(fleet: Fleet, replica: str = "tiny-1") -> str:
    answer = fleet.json("test", replica, "--prompt", TINY_PROMPT, "--max-tokens", str(TINY_TOKENS))
    return str(answer["text"])


def test_a_ring_is_loaded_over_two_hosts_and_drained_to_nothing(fleet: Fleet) -> None:
    replica = fleet.load()
    assert {shard["host"] for shard in replica["shards"]} == {"host-a", "host-b"}
    assert [shard["state"] for shard in replica["shards"]] == ["ready"] * 3
    assert {shard["node_generation"] for shard in replica["shards"]} == {replica["load_generation"]}
    assert all(shard["bound"]["agrees"] for shard in replica["shards"])
    assert ask(fleet) == TINY_COMPLETION
    drained = fleet.run("drain", "tiny-1", "--deadline", "60s")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert fleet.json("ls", "replicas") == []
    assert fleet.engines() == []


@pytest.mark.parametrize("profile", ["alone", "one-worker", "three-workers"])
def test_the_same_greedy_tokens_for_any_number_of_workers(fleet: Fleet, profile: str) -> None:
    replica = fleet.load(f"tiny:{profile}")
    assert all(shard["bound"]["agrees"] for shard in replica["shards"])
    assert ask(fleet) == TINY_COMPLETION


def test_a_killed_worker_is_named_with_rank_and_host_though_health_says_200(fleet: Fleet) -> None:
    replica = fleet.load()
    leader = fleet.pid_of("tiny-1/0")
    os.kill(leader, signal.SIGSTOP)  # so that the leader is still there to be asked
    os.kill(fleet.pid_of("tiny-1/2"), signal.SIGKILL)
    os.kill(leader, signal.SIGCONT)

    def failed() -> dict[str, object] | None:
        seen = fleet.replica()
        return seen if seen is not None and seen["state"] == "failed" else None

    seen = until("the replica's failure", failed)
    assert "rank 2 on host-b" in str(seen["words"])
    assert "signal 9" in str(seen["words"])
    shard = next(s for s in seen["shards"] if s["rank"] == 2)  # type: ignore[attr-defined]  # JSON
    assert shard["exit"]["signal"] == 9
    people = fleet.run("ls", "replicas").stdout
    assert "rank 2 on host-b" in people
    until("the leader's stop", lambda: not psutil.pid_exists(leader) or None)
    unloaded = fleet.run("unload", str(replica["id"]), "--yes")
    assert unloaded.returncode == 0, unloaded.stdout + unloaded.stderr
    until("no engine", lambda: not fleet.engines() or None)
    assert fleet.json("ls", "replicas") == []


def test_engines_and_a_running_stream_outlive_their_agents(fleet: Fleet) -> None:
    replica = fleet.load()
    pids = {shard["rank"]: shard["pid"] for shard in replica["shards"]}
    body = json.dumps({"prompt": "one two", "n_predict": 1500, "temperature": 0, "stream": True}).encode()
    request = urllib.request.Request(f"{replica['endpoint']}/completion", body, {"Content-Type": "application/json"})
    tokens: list[dict[str, object]] = []
    started = threading.Event()

    def stream() -> None:
        with urllib.request.urlopen(request, timeout=120) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    tokens.append(json.loads(line[6:]))
                    if len(tokens) > 20:
                        started.set()

    reader = threading.Thread(target=stream)
    reader.start()
    assert started.wait(60)
    fleet.kill_agent("host-a")
    fleet.kill_agent("host-b")
    fleet.start()
    reader.join(120)
    assert tokens[-1]["stop"] is True
    assert sum(1 for token in tokens if token.get("tokens")) >= 1500 or tokens[-1]["tokens_predicted"] == 1500

    def adopted() -> dict[str, object] | None:
        seen = fleet.replica()
        return seen if seen is not None and seen["state"] == "ready" else None

    again = until("the ring after the restart", adopted)
    assert again["load_generation"] == replica["load_generation"]
    assert {s["rank"]: s["pid"] for s in again["shards"]} == pids  # type: ignore[attr-defined]  # JSON
    assert ask(fleet) == TINY_COMPLETION


def test_an_engine_that_died_while_its_agent_was_down_is_failed_at_the_report(fleet: Fleet) -> None:
    fleet.load()
    pid = fleet.pid_of("tiny-1/2")
    fleet.kill_agent("host-b")
    os.kill(pid, signal.SIGKILL)
    until("the end of the engine", lambda: not psutil.pid_exists(pid) or None)
    fleet.start("host-b")

    def words() -> str | None:
        seen = fleet.replica()
        return str(seen["words"]) if seen is not None and seen["state"] == "failed" else None

    assert "rank 2 on host-b" in until("the failure", words)


def test_a_stream_in_flight_holds_the_drain_until_it_is_over(fleet: Fleet) -> None:
    replica = fleet.load()
    body = json.dumps({"prompt": "one two", "n_predict": 1800, "temperature": 0}).encode()
    request = urllib.request.Request(f"{replica['endpoint']}/completion", body, {"Content-Type": "application/json"})
    answers: list[dict[str, object]] = []

    def complete() -> None:
        with urllib.request.urlopen(request, timeout=120) as reply:
            answers.append(json.loads(reply.read()))

    reader = threading.Thread(target=complete)
    reader.start()

    def busy() -> bool | None:
        seen = fleet.replica()
        return True if seen is not None and seen["in_flight"] else None

    until("a request in flight", busy)
    drained = fleet.run("drain", "tiny-1", "--deadline", "100s", seconds=150)
    assert drained.returncode == 0, drained.stdout + drained.stderr
    reader.join(60)
    assert answers, "the drain cut the request"
    assert answers[0]["tokens_predicted"] == 1800
    assert "in flight 1" in drained.stdout


def test_a_drain_that_nobody_follows_still_ends(fleet: Fleet) -> None:
    fleet.load()
    drain = subprocess.Popen(
        fleet.command("drain", "tiny-1", "--deadline", "60s"),
        env=fleet.env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until("the drain's ledger", lambda: any(o["kind"] == "drain" for o in fleet.json("ls", "operations")) or None)
    drain.kill()
    drain.wait()
    until("no engine", lambda: not fleet.engines() or None, seconds=90)


def test_two_loads_for_the_same_memory_at_once_one_wins_everywhere(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    for index, name in enumerate(("host-a", "host-b")):
        fleet.write_agent(name, index, extra='[devices.CPU]\nmemory = "16MiB"')
    fleet.start()
    loads = [
        subprocess.Popen(
            fleet.command("load", "tiny:two-host", "--yes", "--json"),
            env=fleet.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    ends = [(process.communicate(timeout=120), process.returncode) for process in loads]
    codes = sorted(code for _, code in ends)
    assert codes == [0, 2], ends
    loser = next(out for (out, _), code in ends if code == 2)
    replicas = fleet.json("ls", "replicas")
    assert [(r["state"], r["ranks_ready"]) for r in replicas] == [("ready", 3)]
    assert "tiny-1" in loser  # refused by the plan, or at the reserve: either way it says who has the memory
    assert len(fleet.engines()) == 3


def test_ssh_reaches_an_agent_through_the_systems_ssh(fleet: Fleet, tmp_path: object) -> None:
    program = fleet.home / "bin" / "ssh"
    program.parent.mkdir()
    bridge = " ".join(fleet.command()[:2])
    program.write_text(
        "#!/bin/sh\n"
        'echo "$@" >> "$(dirname "$0")/asked"\n'
        f'exec {bridge} -m backend.agent connect --config "{fleet.home}/host-b.toml"\n'
    )
    program.chmod(0o755)
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}", "host-b": "ssh://ops@host-b"})
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    hosts = json.loads(fleet.run("ls", "hosts", "--json", env=path).stdout)
    assert {(h["host"], h["state"]) for h in hosts} == {("host-a", "live"), ("host-b", "live")}
    loaded = fleet.run("load", "tiny:two-host", "--yes", env=path)
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    asked = (program.parent / "asked").read_text()
    assert "ops@host-b ringtop-agent connect" in asked
    assert "BatchMode=yes" in asked
