"""The shim: an engine outlives whoever started it, and how it ended is always written down."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.agent import supervisor
from backend.agent.process_identity import boot_id, is_alive, see_process
from backend.agent.run_folder import RunFolder
from backend.contract.entities import ProcessIdentity
from tests.agent.run_world import kill, python, runs, said, seen, until

__all__ = ["runs"]

SLEEPER = python("import time; print('up', flush=True); time.sleep(600)")
STARTER = """
import asyncio, sys, time
from pathlib import Path
from backend.agent.supervisor import spawn
asyncio.run(spawn(Path(sys.argv[1]), "nonce-1", sys.argv[2:], {}))
print("started", flush=True)
time.sleep(600)
"""
REPORT = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "env": dict(os.environ), "fds": sorted(int(f) for f in os.listdir("/proc/self/fd"))[:-1],
    "blocked": int(status["SigBlk"], 16),
    "stdin": os.readlink("/proc/self/fd/0"), "stdout": os.readlink("/proc/self/fd/1"),
    "flags": open("/proc/self/fdinfo/1").read(), "cwd": os.getcwd(),
    "tty": open("/proc/self/stat").read().rpartition(")")[2].split()[4],
}))
"""


def status_of(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status by name."""
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


def shim_command(folder: Path, *argv: str, env: tuple[str, ...] = ()) -> list[str]:
    settings = [str(folder), "nonce-1", "engine.log", str(len(env)), *env, "--"]
    return [sys.executable, "-I", "-S", str(supervisor.SHIM), *settings, *argv]


@pytest.fixture
def starter(runs: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that starts an engine through the supervisor, in a session of its own, as an agent would."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", STARTER, str(runs / "a"), *SLEEPER],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


def test_the_shim_is_one_small_file_that_imports_three_modules() -> None:
    text = supervisor.SHIM.read_text()
    imported = [a.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for a in node.names]
    assert sorted(imported) == ["os", "signal", "sys"]
    assert "from " not in {line.split("import")[0] for line in text.splitlines() if "import" in line}
    assert len(text.splitlines()) < 80


def test_an_engine_outlives_a_starter_that_is_killed(runs: Path, starter: subprocess.Popen[str]) -> None:
    assert starter.stdout is not None
    assert starter.stdout.readline() == "started\n"
    starter.kill()
    starter.wait()
    found = supervisor.adopt(runs / "a", "nonce-1")
    assert isinstance(found, ProcessIdentity)
    assert is_alive(found)
    until(lambda: said(runs / "a") == "up\n", "the engine writes after its starter is gone")


def test_a_hangup_to_the_starters_group_right_after_the_spawn_loses_nothing(runs: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from backend.agent import supervisor
from backend.agent.run_folder import RunFolder
signal.signal(signal.SIGHUP, signal.SIG_DFL)
supervisor._start_shim(RunFolder(Path(sys.argv[1])), "nonce-1", sys.argv[2:], {})
os.killpg(0, signal.SIGHUP)
"""
    command = [sys.executable, "-I", "-c", program]
    for number in range(5):
        folder = runs / str(number)
        ended = subprocess.run([*command, str(folder), *SLEEPER], start_new_session=True, check=False, timeout=60)
        assert ended.returncode == -signal.SIGHUP
    for number in range(5):
        until(lambda folder=runs / str(number): said(folder) == "up\n", f"engine {number} runs")  # type: ignore[misc]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_shim_ignores_what_ends_a_session(runs: Path, number: signal.Signals) -> None:
    folder = runs / "a"
    identity = await supervisor.spawn(folder, "nonce-1", SLEEPER, {})
    record = RunFolder(folder).read_spawn()
    assert record is not None
    os.kill(record.shim_pid, number)
    os.kill(identity.pid, signal.SIGKILL)
    assert await supervisor.wait_ended(identity, folder) == (None, signal.SIGKILL)


async def test_the_record_is_there_before_the_engine_executes(runs: Path) -> None:
    folder = runs / "a"
    shows_record = python("print(open('spawn.json').read(), end='')")
    identity = await supervisor.spawn(folder, "nonce-1", shows_record, {})
    await supervisor.wait_ended(identity, folder)
    record = json.loads(said(folder))
    assert (record["pid"], record["start_ticks"]) == (identity.pid, identity.start_ticks)
    assert (record["boot_id"], record["nonce"]) == (boot_id(), "nonce-1")


async def test_the_engine_gets_what_it_was_given_and_nothing_else(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_TOOLS", "all")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    inheritable = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    child_signal = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    folder = runs / "a"
    given = {"LANG": "C.UTF-8", "EMPTY": "", "HAS": "a=b c\nd", "NAME": "größe"}
    try:
        identity = await supervisor.spawn(folder, "nonce-1", python(REPORT), given)
    finally:
        signal.signal(signal.SIGCHLD, child_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(inheritable)
    assert await supervisor.wait_ended(identity, folder) == (0, None)
    report = json.loads(said(folder))
    assert report["env"] == given
    assert report["fds"] == [0, 1, 2]
    assert report["blocked"] == 0
    assert report["stdin"] == "/dev/null"
    assert report["stdout"] == str(folder / "engine.log")
    flags = int(report["flags"].split("flags:")[1].split()[0], 8)
    assert flags & os.O_APPEND
    assert report["tty"] == "0"
    assert report["cwd"] == str(folder)


async def test_only_the_broken_pipe_signal_is_ignored_in_the_engine(runs: Path) -> None:
    identity = await supervisor.spawn(runs / "a", "nonce-1", ["/bin/sleep", "600"], {})
    fields = status_of(identity.pid)
    of_the_c_library = 0b11 << 31  # signals 32 and 33, which no program may set
    assert int(fields["SigIgn"], 16) & ~of_the_c_library == 1 << (signal.SIGPIPE - 1)
    assert int(fields["SigCgt"], 16) == 0
    assert int(fields["SigBlk"], 16) == 0


async def test_the_engine_has_a_session_of_its_own(runs: Path) -> None:
    identity = await supervisor.spawn(runs / "a", "nonce-1", SLEEPER, {})
    record = RunFolder(runs / "a").read_spawn()
    assert record is not None
    engine, shim = seen(identity.pid), seen(record.shim_pid)
    assert engine.session == engine.group == identity.pid
    assert shim.session == record.shim_pid != seen(os.getpid()).session


async def test_a_stopped_engine_stays_stopped_when_its_shim_is_killed(runs: Path) -> None:
    folder = runs / "a"
    identity = await supervisor.spawn(folder, "nonce-1", SLEEPER, {})
    until(lambda: said(folder) == "up\n", "the engine runs")
    os.kill(identity.pid, signal.SIGSTOP)
    until(lambda: seen(identity.pid).state == "T", "the engine is stopped")
    record = RunFolder(folder).read_spawn()
    assert record is not None
    kill(record.shim_pid, record.shim_ticks)
    until(lambda: seen(identity.pid).parent != record.shim_pid, "the engine has another parent")
    assert seen(identity.pid).state == "T"
    os.kill(identity.pid, signal.SIGCONT)
    until(lambda: seen(identity.pid).state in "SR", "the engine goes on")


def test_an_abandoned_start_executes_nothing(runs: Path) -> None:
    folder = runs / "a"
    folder.mkdir(parents=True)
    assert supervisor.adopt(folder) is None  # an agent that restarted found no record
    late = subprocess.run(shim_command(folder, *SLEEPER), env={}, capture_output=True, text=True, check=False)
    assert late.returncode == 1
    assert "FileExistsError" in late.stderr
    assert said(folder) == ""
    assert supervisor.adopt(folder) is None


def test_a_second_start_in_the_same_folder_executes_nothing(runs: Path) -> None:
    folder = runs / "a"
    folder.mkdir(parents=True)
    command = shim_command(folder, "/bin/sh", "-c", "echo once")
    assert subprocess.run(command, env={}, check=False).returncode == 0
    assert subprocess.run(command, env={}, check=False, stderr=subprocess.DEVNULL).returncode == 1
    assert said(folder) == "once\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 KiB; skipped where this user may not mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take every block that is left."""
    with open(folder / "ballast", "ab", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            return


def test_the_exit_is_written_on_a_disk_that_has_become_full(small_disk: Path) -> None:
    folder = small_disk / "a"
    folder.mkdir()
    with subprocess.Popen(shim_command(folder, "/bin/sh", "-c", "sleep 600 & wait; exit 1"), env={}) as shim:
        until(lambda: (folder / "spawn.json").exists(), "the engine is recorded")
        record = RunFolder(folder).read_spawn()
        assert record is not None
        until(lambda: seen(record.pid).has_executed, "the engine executes")
        fill(small_disk)
        os.killpg(record.pid, signal.SIGKILL)
        assert shim.wait(timeout=30) == 0
    ended = RunFolder(folder).read_exit()
    assert ended is not None
    assert (ended.code, ended.signal) == (None, signal.SIGKILL)


async def test_nothing_is_executed_on_a_disk_that_is_full_already(small_disk: Path) -> None:
    folder = small_disk / "a"
    folder.mkdir()
    (folder / "shim.err").touch()
    fill(small_disk)
    with pytest.raises(supervisor.SpawnFailed, match="its shim ended early"):
        await supervisor.spawn(folder, "nonce-1", SLEEPER, {})
    assert supervisor.adopt(folder) is None
    assert said(folder) == ""


def test_a_shim_that_is_killed_before_it_records_leaves_nothing_behind(runs: Path) -> None:
    folder = runs / "a"
    shim = supervisor._start_shim(RunFolder(folder), "nonce-1", SLEEPER, {})
    os.kill(shim, signal.SIGKILL)
    os.waitpid(shim, 0)
    found = supervisor.adopt(folder)
    if isinstance(found, ProcessIdentity):  # it was quick: then the engine counts as started
        assert see_process(found.pid) is not None
    else:
        until(lambda: said(folder) == "", "no engine wrote a word")
