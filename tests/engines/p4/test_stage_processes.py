"""Stages' processes as their host sees them: threads that spin while idle, and where what they print goes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from backend.engines.p4.stage_processes import IdleStages, StageSeen, look_at_stages
from backend.engines.p4.stage_words import INHERIT, begun, look_at_stderr, said_since

SECONDS = 30.0
AGENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1], "--port", "4711"], stdin=subprocess.PIPE)
other = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close(); other.stdin.close(); child.wait(); other.wait()
"""
STAGE = "import sys; sys.stdin.read()"
SPINNING = """
import sys, threading
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
sys.stdin.read()
"""


@contextlib.contextmanager
def agent_of(stage: str, environment: dict[str, str], stderr: int | None = None) -> Iterator[tuple[int, int]]:
    """Stands in for a p4 agent with one stage and one other child: its pid and the stage's."""
    command = [sys.executable, "-I", "-S", "-c", AGENT, stage]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.communicate("", timeout=SECONDS)


def look_until(agent: int, idle: IdleStages, holds: Callable[[float, int], bool]) -> tuple[float, int]:
    """Look at idle stages again and again until what they take is as asked; a busy machine gives a spinner less."""
    deadline = time.monotonic() + SECONDS
    while True:
        stages = look_at_stages(agent)
        idle.see(time.monotonic(), stages, "nothing crosses")
        (told,) = idle.processes(stages, {4711: "step-1/0"})
        if told.idle_cores is not None and told.spinning is not None and holds(told.idle_cores, told.spinning):
            return told.idle_cores, told.spinning
        assert time.monotonic() < deadline, told
        time.sleep(0.2)


def test_a_stage_that_spins_while_idle_is_told_from_one_that_sleeps() -> None:
    with agent_of(SPINNING, {"OMP_WAIT_POLICY": "ACTIVE"}) as (agent, pid):
        look_until(agent, IdleStages(), lambda cores, spinning: spinning == 1 and cores > 0)
        (seen,) = look_at_stages(agent)
        assert (seen.pid, seen.port, seen.wait_policy, len(seen.ticks)) == (pid, 4711, "ACTIVE", 2)
    with agent_of(STAGE, {}) as (agent, _):
        assert look_until(agent, IdleStages(), lambda cores, _: cores == 0.0) == (0.0, 0)
        (seen,) = look_at_stages(agent)
        assert seen.wait_policy == "", "not set, which is known"
    assert look_at_stages(agent) == ()


def stage(ticks: int) -> StageSeen:
    return StageSeen(7, "7:1", 4711, {7: ticks}, "")


def test_a_stage_that_worked_meanwhile_is_not_judged() -> None:
    idle, burnt = IdleStages(), 10 * os.sysconf("SC_CLK_TCK")
    idle.see(0.0, (stage(0),), 1)
    idle.see(10.0, (stage(burnt),), 2)
    assert idle.processes((stage(burnt),), {})[0].idle_cores is None, "something crossed it"
    idle.see(20.0, (stage(2 * burnt),), None)
    idle.see(30.0, (stage(3 * burnt),), None)
    assert idle.processes((stage(burnt),), {})[0].idle_cores is None, "it loads"
    idle.see(40.0, (stage(4 * burnt),), 2)
    idle.see(50.0, (stage(5 * burnt),), 2)
    (told,) = idle.processes((stage(burnt),), {})
    assert (told.idle_cores, told.spinning) == (1.0, 1)
    idle.see(50.2, (stage(5 * burnt),), 2)
    assert idle.processes((stage(burnt),), {})[0].idle_cores == 1.0, "the same look again says nothing"


def test_what_stages_print_is_kept_or_it_is_said_what_to_set(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    with log.open("w") as file, agent_of(STAGE, {INHERIT: "1"}, file.fileno()) as (agent, _):
        kept = look_at_stderr(agent)
        assert kept.file == str(log)
        offset = begun(kept)
        log.write_text("PLAN_APPLIED\nggml: failed to allocate 9 GiB\nbye\n")
        assert said_since(kept, offset) == "ggml: failed to allocate 9 GiB"
        log.unlink()
        assert "removed since" in look_at_stderr(agent).words
    with agent_of(STAGE, {}) as (agent, _):
        lost = look_at_stderr(agent)
        assert lost.file == ""
        assert f"thrown away: the p4 agent (pid {agent}) was started without {INHERIT}" in lost.words
        assert f"{INHERIT}=1 and its standard error in a file" in lost.words
    with agent_of(STAGE, {INHERIT: "1"}, subprocess.DEVNULL) as (agent, _):
        assert "writes it to /dev/null" in look_at_stderr(agent).words
    assert "unknown" in look_at_stderr(None).words
