"""A p4 agent is recovered by plan: each step with its stop condition, the journal moved aside and never deleted."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from backend.control.recovery_document import STEPS, DeviceFloor, read_recovery, sealed_recovery, write_recovery
from tests.e2e.fleet import until
from tests.e2e.p4_recovery_fleet import KILL, RecoverableFleet, recoverable_fleet
from tests.p4.peer import BarePeer, planned_ring
from tests.p4.ring import stage_binary

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(300)]

PATIENCE = "6s"
"""For a condition that must not come to hold; those that must have what they need."""
WHY = "its census stops a restart"
APPROVED = ("--move-journal", "--why", WHY)


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Any]:
    """Start fleets whose p4 agents can be ended and started; everything ends with the test."""
    with ExitStack() as stack:

        def start(**switches: Any) -> RecoverableFleet:
            return stack.enter_context(recoverable_fleet(tmp_path, **switches))

        yield start


def apply(
    fleet: RecoverableFleet, host: str, plan: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do what a plan says, to its end or to where it stops."""
    return fleet.run("p4", "recover", host, "--apply", str(plan), "--yes", *words, seconds=200, env=env)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """All that a command printed."""
    return done.stdout + done.stderr


def operation(fleet: RecoverableFleet) -> dict[str, Any]:
    """The recovery as its ledger has it."""
    (found,) = [each for each in fleet.json("ls", "operations") if each["kind"] == "recovery"]
    return dict(found)


def resume(fleet: RecoverableFleet, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Give the recovery another process, and wait until that has ended."""
    op_id = operation(fleet)["id"]
    before = lives(fleet, op_id)
    done = fleet.run("op", "resume", op_id, *words, env=env)
    assert done.returncode == 0, said(done)
    until("its new process", lambda: lives(fleet, op_id) > before)
    return until("the end of its process", lambda: _left(fleet), 150.0)


def lives(fleet: RecoverableFleet, op_id: str) -> int:
    """How many processes have run it."""
    return sum(step["what"] == "connect" for step in fleet.json("op", "show", op_id)["steps"])


def finish(fleet: RecoverableFleet, *words: str) -> None:
    """Resume the recovery; this time it must come to its end."""
    ended = resume(fleet, *words)
    assert ended["state"] == "succeeded", ended["words"]


def _left(fleet: RecoverableFleet) -> dict[str, Any] | None:
    found = operation(fleet)
    return found if found["state"] != "running" else None


def proven(fleet: RecoverableFleet) -> list[str]:
    """The names of the steps that were proven, in order."""
    shown = fleet.json("op", "show", operation(fleet)["id"])
    return [step["target"] for step in shown["steps"] if step["what"] == "proven"]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def asides(fleet: RecoverableFleet, host: str) -> list[Path]:
    """Where journals of this host were moved."""
    journal = fleet.sim(host).journal
    return sorted(journal.parent.glob(f"{journal.name}.aside-*"))


def kinds(fleet: RecoverableFleet, host: str) -> dict[str, list[str]]:
    """The words of every record of the agent's own journal, by kind."""
    found: dict[str, list[str]] = {}
    done = fleet.run("journal", "export", host)
    for line in done.stdout.splitlines():
        record = msgspec.json.decode(line)
        found.setdefault(record["kind"], []).append(record["words"])
    return found


@pytest.mark.faults("a p4 agent that has served and cannot start again by its census is recovered, its journal whole")
def test_a_p4_agent_that_could_not_start_again_is_recovered(fleets: Any) -> None:
    fleet = fleets()
    before = fleet.load("step:ring")
    sim = fleet.sim("host-a")
    shown = fleet.run("p4", "recover", "host-a", "--plan", "--cut")
    assert shown.returncode == 1, said(shown)
    for words in ("would it start again? No", "kill -TERM", "never KILL", "approved with --move-journal", "is now"):
        assert words in shown.stdout
    plan = fleet.plan("host-a", "--cut")
    held = contents(sim.journal)
    assert held
    done = apply(fleet, "host-a", plan, *APPROVED)
    assert done.returncode == 0, said(done)

    (aside,) = asides(fleet, "host-a")
    assert contents(aside) == held, "moved whole, nothing deleted"
    after = fleet.replica("step-1")
    assert after is not None
    assert after["state"] == "ready"
    assert after["load_generation"] > before["load_generation"]
    assert {shard["node_generation"] for shard in after["shards"]} == {after["load_generation"]}
    assert fleet.again("host-a").ask()["slots"]["leaked"] == 0
    records = kinds(fleet, "host-a")
    (approval,) = records["resident.move_journal.accepted"]
    assert f"{len(held)} files, " in approval.replace(" and ", ", ")
    assert f"from {sim.journal} to {aside}: {WHY}" in approval
    assert len(records["resident.move_journal.succeeded"]) == 1
    moving = [step for step in fleet.json("op", "show", operation(fleet)["id"])["steps"] if step["what"] == "moving"]
    assert WHY in moving[0]["words"]
    assert proven(fleet)[-1] == "prompt"


@pytest.mark.faults("a p4 agent was started again and its census refused it: it is recovered from where it is, down")
def test_a_p4_agent_that_is_down_already_is_recovered(fleets: Any) -> None:
    fleet = fleets()
    before = fleet.load("step:short")
    sim = fleet.sim("host-a")
    held = contents(sim.journal)
    with pytest.raises(RuntimeError, match="recovery census"):
        fleet.ring.restart(0, n_layer=4)
    fleet.start_script("host-a")
    path = fleet.plan("host-a")
    assert (read_recovery(path).look.life, read_recovery(path).moves_journal) == ("", True)
    done = apply(fleet, "host-a", path, *APPROVED)
    assert done.returncode == 0, said(done)
    (aside,) = asides(fleet, "host-a")
    assert contents(aside) == held
    after = fleet.replica("step-1")
    assert after is not None
    assert (after["state"], after["load_generation"] > before["load_generation"]) == ("ready", True)


@pytest.mark.faults("without an approval of the move nothing is touched: the p4 agent serves on, and it is said why")
def test_a_recovery_that_needs_an_approval_begins_with_it(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:short")
    plan = fleet.plan("host-a", "--cut")
    done = apply(fleet, "host-a", plan)
    assert done.returncode == 2, said(done)
    assert "Nobody approved that, so nothing was touched" in said(done)
    assert "--move-journal --why TEXT" in said(done)
    read_only = fleet.run("--read-only", "p4", "recover", "host-a", "--apply", str(plan), "--yes", *APPROVED)
    assert read_only.returncode == 2
    assert "read-only" in said(read_only)
    no_reason = apply(fleet, "host-a", plan, "--move-journal")
    assert no_reason.returncode == 2
    assert "add --why TEXT" in said(no_reason)
    assert fleet.sim("host-a").is_running
    assert fleet.json("test", "step-1", "--max-tokens", "1")["tokens"] == 1
    assert not [each for each in fleet.json("ls", "operations") if each["kind"] == "recovery"]


@pytest.mark.faults("a request is admitted while the p4 agent ends: the move waits for an approval, given on resuming")
def test_a_census_that_came_later_waits_for_its_approval(fleets: Any) -> None:
    fleet = fleets()
    late = fleet.sim("host-b").journal / "late.admission"
    stop = fleet.script("stop-b", f"echo prefill-v3 > {shlex.quote(str(late))}\nexec {KILL} -TERM $1")
    told = fleet.home / "restarted"
    bridge = fleet.script("restart-bridge", f"echo x >>{told}")
    fleet.configure(
        "host-b",
        1,
        stop=(str(stop), "{pid}"),
        start=(str(fleet.start_script("host-b")),),
        more=f'[engines.p4.bridge]\nrestart = ["{bridge}"]',
    )
    fleet.kill_agent("host-b")
    fleet.start("host-b")
    plan = fleet.plan("host-b", "--cut")
    done = apply(fleet, "host-b", plan)
    assert done.returncode == 2, said(done)
    assert "stopped at census" in said(done)
    assert "admitted requests" in said(done)
    assert not asides(fleet, "host-b")
    refused = fleet.run("op", "resume", operation(fleet)["id"], "--move-journal")
    assert refused.returncode == 2
    assert "add --why TEXT" in said(refused)
    finish(fleet, *APPROVED)
    (aside,) = asides(fleet, "host-b")
    assert contents(aside) == {"late.admission": b"prefill-v3\n"}
    assert told.read_text() == "x\n", "the bridge was restarted, once"


@pytest.mark.faults("a process under the p4 agent outlives it: the recovery stops with its pid, and goes on without it")
def test_an_orphan_stops_it(fleets: Any, tmp_path: Path) -> None:
    fleet = fleets(stage_processes=True)
    real = stage_binary(tmp_path, n_layer=4)
    left = fleet.home / "left"
    # Only under the p4 agent is it a stage, which begins another process; for a memory plan it knows no such option.
    begins = f"grep -q simulator /proc/$PPID/cmdline || exit 2\nsleep 600 </dev/null & echo $! >>{left}"
    fleet.binary("host-a").write_text(f'#!/bin/sh\n{begins}\nexec {shlex.quote(str(real))} "$@"\n')
    fleet.load("step:short")
    pids = [int(pid) for pid in left.read_text().split()]
    try:
        plan = fleet.plan("host-a", "--cut")
        assert len(read_recovery(plan).look.processes) >= 4, "two stages, and what each has begun"
        done = apply(fleet, "host-a", plan, *APPROVED, "--patience", PATIENCE)
        assert done.returncode == 5, said(done)
        assert "stopped at end: orphans are left" in said(done)
        assert all(str(pid) in said(done) for pid in pids)
        assert proven(fleet) == ["leave"]
        assert not asides(fleet, "host-a"), "nothing is moved while something of it lives"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    finish(fleet)


@pytest.mark.faults("the port of the p4 agent is taken by something else: nothing is moved or started")
def test_a_port_that_is_taken_stops_it(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:short")
    port = fleet.sim("host-a").dial[1]
    up = fleet.home / "listens"
    listen = f"import socket,time; s=socket.create_server(('127.0.0.1', {port})); open('{up}', 'w'); time.sleep(600)"
    stop = fleet.script(
        "stop-a",
        f"{KILL} -TERM $1\nwhile {KILL} -0 $1 2>/dev/null && ! grep -q ') Z' /proc/$1/stat; do sleep 0.05; done\n"
        f'setsid python3 -c "{listen}" </dev/null >/dev/null 2>&1 &\necho $! >>{fleet.pids}\n'
        f"while [ ! -e {up} ]; do sleep 0.05; done",
    )
    fleet.configure("host-a", 0, stop=(str(stop), "{pid}"), start=(str(fleet.start_script("host-a")),))
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    until("the replica", lambda: (fleet.replica("step-1") or {}).get("state") == "ready")
    done = apply(fleet, "host-a", fleet.plan("host-a", "--cut"), *APPROVED, "--patience", PATIENCE)
    assert done.returncode == 5, said(done)
    assert f"stopped at port: port {port} is taken" in said(done)
    assert "expected: free" in said(done)
    assert not asides(fleet, "host-a")


@pytest.mark.faults("injected baseline: device memory that does not come back stops it, with both values")
def test_memory_that_is_not_back_stops_it(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:short")
    path = fleet.plan("host-a", "--cut")
    floors = (DeviceFloor("CUDA0", 1 << 30, 20 << 30, 21 << 30),)
    write_recovery(sealed_recovery(msgspec.structs.replace(read_recovery(path), floors=floors)), path)
    done = apply(fleet, "host-a", path, *APPROVED, "--patience", PATIENCE)
    assert done.returncode == 5, said(done)
    assert "stopped at memory" in said(done)
    assert f"expected {21 << 30} or more ({1 << 30} before, {20 << 30} taken by its stages)" in said(done)
    assert proven(fleet) == ["leave", "end", "port"]
    assert not asides(fleet, "host-a")


@pytest.mark.faults("the p4 agent does not come up: it stops there, and goes on from there once it can")
def test_an_agent_that_does_not_come_up_stops_it(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:short")
    start = fleet.start_script("host-a")
    whole = start.read_text()
    start.write_text("#!/bin/sh\nexit 0\n")
    done = apply(fleet, "host-a", fleet.plan("host-a"), *APPROVED, "--patience", PATIENCE)
    assert done.returncode == 5, said(done)
    assert "leave proven step-1 is drained" in said(done)
    assert "stopped at begin: the p4 agent does not come up within 6 s: no process of it runs" in said(done)
    assert proven(fleet) == ["leave", "end", "port", "memory", "census"]
    start.write_text("#!/bin/sh\necho its binary is missing >&2\nexit 3\n")
    words = resume(fleet)["words"]
    assert "ended with exit 3: its binary is missing" in words
    start.write_text(whole)
    finish(fleet)
    assert proven(fleet) == list(STEPS), "what is proven is not looked at again"
    assert len(asides(fleet, "host-a")) == 1
    assert len(kinds(fleet, "host-a")["resident.end.succeeded"]) == 1


@pytest.mark.faults("a generation far ahead was seen: nothing is loaded under a lesser one, and both are named")
def test_a_generation_that_is_not_greater_stops_it(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:short")
    ahead = time.time_ns() // 1_000_000 + 48 * 3_600_000
    sim = fleet.sim("host-b")
    stage = planned_ring([fleet.sim("host-a").address, sim.address], generation=ahead)[-1]
    peer = BarePeer(sim.dial, sim.address)
    sim.set(n_layer=45, devices=["CUDA0"])
    assert peer.result(peer.load(stage)) is not None
    until("the node of somebody else", lambda: str(ahead) in str(fleet.json("ls", "hosts")))
    done = apply(fleet, "host-a", fleet.plan("host-a", "--cut"), *APPROVED)
    assert done.returncode == 2, said(done)
    assert "stopped at load: the new generation of step-1 is" in said(done)
    assert f"and {ahead} has been seen; expected a greater one" in said(done)
    loads = [each["id"] for each in fleet.json("ls", "operations") if each["kind"] == "load"]
    assert not [op_id for op_id in loads if op_id.startswith("recovery-")]


@pytest.mark.faults("the recovery's process is killed again and again: resumed, each thing is done once")
def test_a_recovery_that_is_killed_is_resumed(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:short")
    held = contents(fleet.sim("host-a").journal)
    path = fleet.plan("host-a", "--cut")

    def at(rule: str) -> dict[str, str]:
        return {"RINGTOP_TEST": "1", "RINGTOP_FAILPOINTS": rule}

    done = apply(fleet, "host-a", path, *APPROVED, env=at("recovery.before_step=kill@2"))
    assert done.returncode == 3, said(done)
    assert operation(fleet)["state"] == "ownerless"
    for rule in ("recovery.before_move=kill", "recovery.before_step=kill@2", "recovery.before_child=kill"):
        assert resume(fleet, env=at(rule))["state"] == "ownerless"
    finish(fleet)
    (aside,) = asides(fleet, "host-a")
    assert contents(aside) == held
    records = kinds(fleet, "host-a")
    for deed in ("end", "move_journal", "begin"):
        assert len(records[f"resident.{deed}.succeeded"]) == 1, deed
    assert (fleet.replica("step-1") or {})["state"] == "ready"


@pytest.mark.faults(
    "our agent is killed right after it moved a journal: nobody moves it twice, and the recovery goes on"
)
@pytest.mark.parametrize("point", ["recovery.before_tend", "recovery.after_tend"])
def test_our_agent_killed_around_the_move(fleets: Any, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    fleet = fleets()
    fleet.load("step:short")
    held = contents(fleet.sim("host-a").journal)
    monkeypatch.setenv("RINGTOP_TEST", "1")
    monkeypatch.setenv("RINGTOP_FAILPOINTS", f"{point}=kill@2")
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    monkeypatch.delenv("RINGTOP_FAILPOINTS")
    agent = fleet.agents["host-a"]
    until("the replica", lambda: (fleet.replica("step-1") or {}).get("state") == "ready")
    path = fleet.plan("host-a", "--cut")
    command = fleet.command("p4", "recover", "host-a", "--apply", str(path), "--yes", *APPROVED)
    running = subprocess.Popen(
        command, env=fleet.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    agent.wait(60)
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    words, _ = running.communicate(timeout=150)
    assert running.returncode == 5, words
    assert "was started again while resident.move_journal was under way" in words
    finish(fleet)
    (aside,) = asides(fleet, "host-a")
    assert contents(aside) == held


@pytest.mark.faults(
    "agent.toml has no commands: a person ends and starts the p4 agent by the exact words, and it goes on"
)
def test_a_persons_steps_are_said_and_waited_for(fleets: Any) -> None:
    fleet = fleets()
    fleet.configure("host-a", 0)
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    fleet.load("step:short")
    path = fleet.plan("host-a", "--cut")
    steps = {step.name: step for step in read_recovery(path).steps}
    pid = fleet.sim("host-a").pid
    assert (steps["end"].by, steps["end"].command) == ("a person", f"kill -TERM {pid}")
    done = apply(fleet, "host-a", path, *APPROVED, "--wait", "1s")
    assert done.returncode == 2, said(done)
    assert f"a person's part on host-a: end the p4 agent by TERM, never by KILL: kill -TERM {pid}" in said(done)
    assert psutil.pid_exists(pid)
    fleet.sim("host-a").end()
    words = resume(fleet)["words"]
    assert "stopped at begin: a person's part on host-a: start the p4 agent: P4_EVENT_OUTBOUND_JOURNAL_DIR=" in words
    assert len(asides(fleet, "host-a")) == 1
    address, port = fleet.sim("host-a").dial
    command = steps["begin"].command.replace(f" {address}:0 ", f" {address}:{port} ")  # it bound a free one at first
    fleet.start_script("host-a")  # the routes of its network, which a host has by itself
    log = fleet.home / "by-hand.log"
    by_hand = fleet.script("by-hand", f"setsid env {command} >{log} 2>&1 </dev/null &\necho $! >>{fleet.pids}")
    subprocess.run([str(by_hand)], check=True)
    finish(fleet)
