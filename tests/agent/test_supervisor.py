"""Starting, adopting, watching and stopping engines, with real processes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from backend.agent import supervisor
from backend.agent.cgroup import group_memory, oom_kills
from backend.agent.process_identity import group_members, is_alive, open_identity, see_process
from backend.agent.run_folder import RunFolder, RunUnreadable, run_folder
from backend.agent.supervisor import EndedRun, SpawnFailed, StopOutcome
from backend.contract.entities import ProcessIdentity
from backend.contract.words import NodeId
from backend.engines.driver import StopStep
from tests.agent.run_world import SECONDS, kill, python, runs, said, seen, until

__all__ = ["runs"]

SLEEPER = python("import time; print('up', flush=True); time.sleep(600)")
STUBBORN = python("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
FORKING = python(
    "import os, signal, sys, time\n"
    "for _ in range(3):\n"
    "    if os.fork() == 0:\n"
    "        if sys.argv[1] == 'stubborn': signal.signal(15, signal.SIG_IGN)\n"
    "        if sys.argv[1] == 'elsewhere': os.setsid()\n"
    "        print('up', flush=True); time.sleep(600); os._exit(0)\n"
    "time.sleep(600)\n"
)
TERM = StopStep(signal.SIGTERM, SECONDS)


async def start(folder: Path, argv: list[str], ups: int = 1) -> ProcessIdentity:
    identity = await supervisor.spawn(folder, "nonce-1", argv, {})
    until(lambda: said(folder).count("up") == ups, f"{ups} processes are up")
    return identity


def a_sleeping_child() -> int:
    """A process that no shim started."""
    return os.posix_spawn("/bin/sleep", ["sleep", "600"], {})


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_run_has_a_folder_for_its_slot_and_generation() -> None:
    assert run_folder(Path("/runs"), NodeId("tiny-1/0"), 17) == Path("/runs/tiny-1_0-17")


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, None), ("exit 7", 7, None), ("kill -TERM $$", None, 15), ("kill -KILL $$", None, 9)],
)
async def test_how_an_engine_ended_is_told(runs: Path, script: str, code: int | None, number: int | None) -> None:
    identity = await supervisor.spawn(runs / "a", "nonce-1", ["/bin/sh", "-c", script], {})
    assert await supervisor.wait_ended(identity, runs / "a") == (code, number)
    assert supervisor.adopt(runs / "a", "nonce-1") == EndedRun(identity, code, number)
    assert not is_alive(identity)


async def test_a_missing_program_is_refused_by_name(runs: Path) -> None:
    with pytest.raises(SpawnFailed, match=r"cannot execute /no/llama-server: No such file or directory \(ENOENT\)"):
        await supervisor.spawn(runs / "a", "nonce-1", ["/no/llama-server"], {})
    ended = RunFolder(runs / "a").read_exit()
    assert ended is not None
    assert (ended.code, ended.exec_errno) == (127, 2)
    assert supervisor.adopt(runs / "a") is None


async def test_a_file_that_is_no_program_is_refused_by_reason(runs: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(SpawnFailed, match="Permission denied"):
        await supervisor.spawn(runs / "a", "nonce-1", [str(plain)], {})
    plain.chmod(0o755)
    with pytest.raises(SpawnFailed, match="Exec format error"):
        await supervisor.spawn(runs / "b", "nonce-1", [str(plain)], {})


@pytest.mark.parametrize(
    ("argv", "env", "nonce", "words"),
    [
        ([], {}, "n", "an empty command"),
        (["llama-server"], {}, "n", "no absolute path"),
        (["/bin/true", "a\0b"], {}, "n", "NUL"),
        (["/bin/true"], {"A=B": "c"}, "n", "'A=B' is not a usable name"),
        (["/bin/true"], {"": "c"}, "n", "'' is not a usable name"),
        (["/bin/true"], {"A": "b\0"}, "n", "'A' is not a usable name"),
        (["/bin/true"], {}, 'n"', "nonce"),
        (["/bin/true", "x" * 200_000], {}, "n", "longer than the kernel takes"),
    ],
)
async def test_what_could_only_fail_later_is_refused_before_anything_starts(
    runs: Path, argv: list[str], env: dict[str, str], nonce: str, words: str
) -> None:
    with pytest.raises(SpawnFailed, match=words):
        await supervisor.spawn(runs / "a", nonce, argv, env)
    assert supervisor.adopt(runs / "a") is None


async def test_without_descriptors_nothing_is_started(runs: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(SpawnFailed, match="no file descriptor left"):
            await supervisor.spawn(runs / "a", "nonce-1", SLEEPER, {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not (runs / "a").exists()
    identity = await start(runs / "a", SLEEPER)  # the same folder: the try left nothing in its way
    assert (await supervisor.stop(identity, runs / "a", ())).stopped


async def test_a_folder_is_used_once(runs: Path) -> None:
    identity = await supervisor.spawn(runs / "a", "nonce-1", ["/bin/true"], {})
    await supervisor.wait_ended(identity, runs / "a")
    with pytest.raises(SpawnFailed, match="Load with a new generation"):
        await supervisor.spawn(runs / "a", "nonce-2", ["/bin/true"], {})


async def test_a_start_that_takes_too_long_is_ended_and_nothing_runs(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SPAWN_SECONDS", 0.0)
    with pytest.raises(SpawnFailed, match="not executed within 0 s"):
        await supervisor.spawn(runs / "a", "nonce-1", SLEEPER, {})
    found = supervisor.adopt(runs / "a")
    assert found is None or isinstance(found, EndedRun)
    assert said(runs / "a") == ""


async def test_a_start_that_cannot_be_ended_is_no_failed_start(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep cannot be made here, so that KILL ends nothing is injected."""

    def recorded(point: str) -> None:
        if point == "supervisor.after_shim":
            until((runs / "a" / "spawn.json").exists, "the engine is recorded")

    async def stop(identity: ProcessIdentity, folder: Path, steps: object) -> StopOutcome:
        return StopOutcome(stopped=False, stuck_pids=(identity.pid,))

    monkeypatch.setattr(supervisor, "failpoint", recorded)
    monkeypatch.setattr(supervisor, "SPAWN_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "stop", stop)
    identity = await supervisor.spawn(runs / "a", "nonce-1", SLEEPER, {})
    record = RunFolder(runs / "a").read_spawn()
    assert record is not None
    assert identity == record.identity


async def test_a_restarted_agent_adopts_what_runs(runs: Path) -> None:
    identity = await start(runs / "a", SLEEPER)
    assert supervisor.adopt(runs / "a", "nonce-1") == identity
    assert supervisor.adopt(runs / "a") == identity
    assert is_alive(identity)


def test_a_run_without_a_folder_was_never_spawned(runs: Path) -> None:
    assert supervisor.adopt(runs / "never") is None
    assert not (runs / "never").exists()


async def test_another_starts_record_is_refused(runs: Path) -> None:
    identity = await start(runs / "a", SLEEPER)
    with pytest.raises(RunUnreadable, match="carries nonce nonce-1, the journal says nonce-2"):
        supervisor.adopt(runs / "a", "nonce-2")
    assert is_alive(identity)


async def test_a_damaged_record_is_refused_by_name(runs: Path) -> None:
    (runs / "a").mkdir(parents=True)
    (runs / "a" / "spawn.json").write_text('{"pid": 1')
    with pytest.raises(RunUnreadable, match=r"spawn\.json is damaged"):
        supervisor.adopt(runs / "a")
    (runs / "a" / "spawn.json").unlink()


async def test_a_record_that_names_a_process_no_shim_started_is_refused(runs: Path) -> None:
    identity = await start(runs / "a", SLEEPER)
    child = a_sleeping_child()
    try:
        forged = msgspec.json.decode((runs / "a" / "spawn.json").read_bytes())
        forged |= {"pid": child, "start_ticks": seen(child).start_ticks}
        (runs / "b").mkdir()
        (runs / "b" / "spawn.json").write_bytes(msgspec.json.encode(forged | {"shim_pid": 999_999_999}))
        with pytest.raises(RunUnreadable, match="not in one of its own"):
            supervisor.adopt(runs / "b")
        assert see_process(child) is not None
    finally:
        (runs / "b" / "spawn.json").unlink(missing_ok=True)
        end(child)
    assert is_alive(identity)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "00000000-0000-0000-0000-000000000000"}])
async def test_a_reused_pid_is_never_taken_for_the_engine(runs: Path, change: dict[str, object]) -> None:
    identity = await start(runs / "a", SLEEPER)
    other = msgspec.structs.replace(identity, **change)
    assert not is_alive(other)
    assert open_identity(other) is None
    assert group_members(other) == ()
    assert not supervisor.send_signal(other, signal.SIGKILL)
    record = runs / "b" / "spawn.json"
    record.parent.mkdir()
    tampered = msgspec.json.decode((runs / "a" / "spawn.json").read_bytes()) | change | {"shim_pid": 999_999_999}
    record.write_bytes(msgspec.json.encode(tampered))
    assert supervisor.adopt(runs / "b") == EndedRun(other, None, None)
    assert await supervisor.wait_ended(other, runs / "b") == (None, None)
    assert await supervisor.stop(other, runs / "b", [TERM]) == StopOutcome(stopped=True)
    assert is_alive(identity)


async def test_an_exit_that_nobody_could_see_is_unknown_and_never_0(runs: Path) -> None:
    identity = await start(runs / "a", SLEEPER)
    record = RunFolder(runs / "a").read_spawn()
    assert record is not None
    kill(record.shim_pid, record.shim_ticks)
    until(lambda: seen(identity.pid).parent != record.shim_pid, "the engine has another parent")
    assert supervisor.adopt(runs / "a") == identity
    assert await supervisor.stop(identity, runs / "a", [TERM]) == StopOutcome(stopped=True)
    assert await supervisor.wait_ended(identity, runs / "a") == (None, None)
    assert supervisor.adopt(runs / "a") == EndedRun(identity, None, None)


async def test_an_exit_is_known_without_a_shim_where_the_agent_is_init(runs: Path) -> None:
    libc, reaper = ctypes.CDLL(None), 36  # PR_SET_CHILD_SUBREAPER: orphans become ours, as in a container
    assert libc.prctl(reaper, 1, 0, 0, 0) == 0
    try:
        identity = await start(runs / "a", SLEEPER)
        record = RunFolder(runs / "a").read_spawn()
        assert record is not None
        kill(record.shim_pid, record.shim_ticks)
        until(lambda: seen(identity.pid).parent == os.getpid(), "the engine is our child")
        kill(identity.pid, identity.start_ticks)
        assert await supervisor.wait_ended(identity, runs / "a") == (None, signal.SIGKILL)
        assert see_process(identity.pid) is None
    finally:
        libc.prctl(reaper, 0, 0, 0, 0)


async def test_an_end_is_seen_while_others_wait(runs: Path) -> None:
    engines = [await start(runs / str(number), SLEEPER) for number in range(3)]
    waits = [
        asyncio.create_task(supervisor.wait_ended(engine, runs / str(n)))
        for n, engine in enumerate(engines)
        for _ in range(2)
    ]
    waits[5].cancel()
    assert supervisor.send_signal(engines[1], signal.SIGTERM)
    assert list(await asyncio.gather(waits[2], waits[3])) == [(None, 15), (None, 15)]
    assert not waits[0].done()
    assert not waits[4].done()
    for engine in (engines[0], engines[2]):
        assert supervisor.send_signal(engine, signal.SIGKILL)
    assert list(await asyncio.gather(waits[0], waits[1], waits[4])) == [(None, 9)] * 3


async def test_no_descriptor_and_no_child_is_left_over(runs: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        identity = await start(runs / str(number), SLEEPER)
        watch = asyncio.create_task(supervisor.wait_ended(identity, runs / str(number)))
        await supervisor.stop(identity, runs / str(number), [TERM])
        await watch
        record = RunFolder(runs / str(number)).read_spawn()
        assert record is not None
        assert see_process(record.shim_pid) is None
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_polite_engine_is_stopped_by_its_first_step(runs: Path) -> None:
    identity = await start(runs / "a", SLEEPER)
    assert await supervisor.stop(identity, runs / "a", [TERM]) == StopOutcome(stopped=True)
    assert group_members(identity) == ()
    assert await supervisor.wait_ended(identity, runs / "a") == (None, signal.SIGTERM)


async def test_a_stubborn_engine_is_killed_after_its_grace(runs: Path) -> None:
    identity = await start(runs / "a", STUBBORN)
    began = time.monotonic()
    assert await supervisor.stop(identity, runs / "a", [StopStep(signal.SIGTERM, 0.3)]) == StopOutcome(stopped=True)
    assert time.monotonic() - began >= 0.3
    assert await supervisor.wait_ended(identity, runs / "a") == (None, signal.SIGKILL)


async def test_a_stopped_engine_can_be_ended(runs: Path) -> None:
    identity = await start(runs / "a", SLEEPER)
    os.kill(identity.pid, signal.SIGSTOP)
    assert await supervisor.stop(identity, runs / "a", [StopStep(signal.SIGTERM, 0.1)]) == StopOutcome(stopped=True)


@pytest.mark.parametrize("kind", ["plain", "stubborn", "elsewhere"])
async def test_what_an_engine_forked_is_stopped_with_it(runs: Path, kind: str) -> None:
    identity = await start(runs / "a", [*FORKING, kind], ups=3)
    members = group_members(identity)
    assert len(members) == 4
    grace = 0.3 if kind == "stubborn" else SECONDS
    assert await supervisor.stop(identity, runs / "a", [StopStep(signal.SIGTERM, grace)]) == StopOutcome(stopped=True)
    for member in members:
        left = see_process(member.pid)
        assert left is None or left.is_gone or left.start_ticks != member.start_ticks


async def test_without_steps_the_whole_run_is_killed_at_once(runs: Path) -> None:
    identity = await start(runs / "a", [*FORKING, "stubborn"], ups=3)
    assert await supervisor.stop(identity, runs / "a", ()) == StopOutcome(stopped=True)
    assert await supervisor.wait_ended(identity, runs / "a") == (None, signal.SIGKILL)


async def test_a_copy_of_its_parent_is_told_from_a_program_of_its_own(runs: Path) -> None:
    identity = await start(runs / "a", [*FORKING, "plain"], ups=3)
    executed = {member.pid: member.has_executed for member in group_members(identity)}
    assert executed.pop(identity.pid) is True
    assert list(executed.values()) == [False] * 3


async def test_a_dead_leader_does_not_mean_that_the_group_is_empty(runs: Path) -> None:
    identity = await start(runs / "a", [*FORKING, "plain"], ups=3)
    kill(identity.pid, identity.start_ticks)
    assert await supervisor.wait_ended(identity, runs / "a") == (None, signal.SIGKILL)
    assert supervisor.adopt(runs / "a") == EndedRun(identity, None, signal.SIGKILL)
    assert len(group_members(identity)) == 3
    assert await supervisor.stop(identity, runs / "a", [TERM]) == StopOutcome(stopped=True)
    assert group_members(identity) == ()


async def test_a_zombie_counts_as_gone(runs: Path) -> None:
    identity = await start(runs / "a", SLEEPER)
    record = RunFolder(runs / "a").read_spawn()
    assert record is not None
    os.kill(record.shim_pid, signal.SIGSTOP)  # so that nobody reaps the engine
    until(lambda: seen(record.shim_pid).state == "T", "the shim is stopped")
    os.kill(identity.pid, signal.SIGKILL)
    until(lambda: seen(identity.pid).state == "Z", "the engine is a zombie")
    assert not is_alive(identity)
    assert group_members(identity) == ()
    assert not supervisor.send_signal(identity, signal.SIGTERM)
    assert supervisor.adopt(runs / "a") == identity  # its shim is still to write down how it ended
    os.kill(record.shim_pid, signal.SIGCONT)
    assert await supervisor.wait_ended(identity, runs / "a") == (None, signal.SIGKILL)


async def test_processes_that_cannot_be_ended_are_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep cannot be made here, so KILL is injected to reach nobody."""
    identity = await start(runs / "a", SLEEPER)
    monkeypatch.setattr(supervisor, "KILL_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "send_signal", lambda identity, signum, members=None: False)
    monkeypatch.setattr(supervisor, "signal_one", lambda process, signum: False)
    outcome = await supervisor.stop(identity, runs / "a", [StopStep(signal.SIGTERM, 0.1)])
    assert outcome == StopOutcome(stopped=False, stuck_pids=(identity.pid,))


async def test_groups_are_signalled_on_older_kernels_too(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = await start(runs / "a", [*FORKING, "plain"], ups=3)
    monkeypatch.setattr("backend.agent.process_identity.TO_GROUP", 1 << 30)  # answered as a kernel before 6.9 does
    assert await supervisor.stop(identity, runs / "a", [TERM]) == StopOutcome(stopped=True)


def test_an_end_is_named_for_a_person() -> None:
    words = supervisor.exit_words
    assert [words(0, None), words(1, None), words(None, None)] == ["exit code 0", "exit code 1", "exit unknown"]
    assert [words(None, 9), words(None, 6)] == ["signal 9 (killed)", "signal 6 (aborted)"]
    assert words(None, 4) == (
        "signal 4 (illegal instruction: the engine build needs a processor feature that this host lacks)"
    )


def test_the_kills_in_the_group_of_a_process_that_is_gone_are_unknown() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(child, 0)
    assert oom_kills(child) is None


def a_proc(tmp_path: Path, cgroup: str, mount: str) -> Path:
    """A /proc that says where a control group is, as an injected fact."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mount)
    return tmp_path / "proc"


def test_an_injected_group_of_version_2_tells_kills_and_limit(tmp_path: Path) -> None:
    proc = a_proc(
        tmp_path, "0::/system.slice/ringtop.service\n", f"30 1 0:2 / {tmp_path} rw - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    group = tmp_path / "system.slice" / "ringtop.service"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\nhigh 3\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n")
    (group / "memory.max").write_text("4096000\n")
    (group / "memory.current").write_text("3000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    assert oom_kills(proc=proc) == 2
    memory = group_memory(proc=proc)
    assert memory is not None
    assert (memory.limit, memory.used) == (4_096_000, 2_000_000)
    (group / "memory.max").write_text("max\n")
    assert group_memory(proc=proc) is None


def test_an_injected_group_of_version_1_in_a_container_tells_kills(tmp_path: Path) -> None:
    proc = a_proc(
        tmp_path,
        "4:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n",
        f"30 1 0:2 /docker/abc {tmp_path}/memory rw - cgroup cgroup rw,memory\n31 1 0:3 / /x rw - tmpfs none rw\n",
    )
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert oom_kills(proc=proc) == 5
