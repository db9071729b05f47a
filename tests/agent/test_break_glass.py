"""The emergency stop on the host: real engines, no agent, a typed confirmation, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from backend.agent import break_glass, supervisor
from backend.agent.break_glass import BEGUN, Note, drop_note, live_runs, read_notes, stop_runs
from backend.agent.journal import Journal, SystemClock
from backend.agent.process_identity import is_alive
from backend.contract.entities import JournalRecord, ProcessIdentity
from tests.agent.run_world import SECONDS, python, runs, said, seen, until

__all__ = ["runs"]

SLEEPER = python("import time; print('up', flush=True); time.sleep(600)")


async def start(runs: Path, name: str) -> ProcessIdentity:
    identity = await supervisor.spawn(runs / name, "nonce-1", SLEEPER, {})
    until(lambda: "up" in said(runs / name), f"{name} is up")
    return identity


@pytest.fixture
def config(tmp_path: Path, runs: Path) -> Path:
    """The agent's configuration, with the runs of this test under its state."""
    path = tmp_path / "agent.toml"
    path.write_text(f'host = "host-a"\nstate = "{runs.parent}"\nsocket = "{tmp_path / "s"}"\n')
    return path


def command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-m", "backend.agent", "stop", *arguments, "--config", str(config)]


def run(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(config, *arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def typing(config: Path, text: str, *arguments: str) -> tuple[int, str]:
    """Run it at a terminal and type; returns its exit code and what it said on standard error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(config, *arguments), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, f"{text}\n".encode())
    _, err = process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, err


@pytest.mark.faults("journal cannot be written: a person on the host stops one engine past the agent")
async def test_one_slot_is_stopped_without_an_agent_and_the_others_go_on(runs: Path, config: Path) -> None:
    stopped, kept = await start(runs, "tiny-1_0-17"), await start(runs, "tiny-1_1-17")
    done = run(config, "tiny-1/0", "--break-glass", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"tiny-1/0 generation 17: stopped (process {stopped.pid})" in done.stdout
    assert not is_alive(stopped)
    assert is_alive(kept)
    (note,) = read_notes(runs.parent).values()
    assert note.outcomes == {"tiny-1/0 generation 17": f"stopped (process {stopped.pid})"}
    assert "emergency stop past the agent by " in note.words


async def test_a_person_without_a_name_can_stop_too(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id that no table knows, as in a container, is injected."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    monkeypatch.delenv("SUDO_USER", raising=False)
    identity = await start(runs, "tiny-1_0-17")
    found, _ = live_runs(runs.parent)
    note, _ = await asyncio.to_thread(stop_runs, runs.parent, found)
    assert note.by == f"uid-{os.getuid()}"
    assert not is_alive(identity)


async def test_all_are_stopped_when_asked(runs: Path, config: Path) -> None:
    both = [await start(runs, name) for name in ("tiny-1_0-17", "big-2_1-18")]
    done = run(config, "--break-glass", "--all", "--yes")
    assert done.returncode == 0, done.stderr
    assert not any(is_alive(identity) for identity in both)
    again = run(config, "--break-glass", "--all", "--yes")
    assert (again.returncode, "no engine of the agent under" in again.stdout) == (0, True)


async def test_the_slot_must_be_typed(runs: Path, config: Path) -> None:
    identity = await start(runs, "tiny-1_0-17")
    code, err = typing(config, "tiny-1/1", "tiny-1/0", "--break-glass")
    assert (code, "nothing was touched" in err) == (2, True)
    assert is_alive(identity)
    code, err = typing(config, "tiny-1/0", "tiny-1/0", "--break-glass")
    assert code == 0, err
    assert not is_alive(identity)


async def test_for_all_of_them_their_number_must_be_typed(runs: Path, config: Path) -> None:
    identity = await start(runs, "tiny-1_0-17")
    assert typing(config, "all", "--break-glass", "--all")[0] == 2
    assert is_alive(identity)
    assert typing(config, "all 1", "--break-glass", "--all")[0] == 0
    assert not is_alive(identity)


async def test_without_a_terminal_and_without_yes_nothing_is_touched(runs: Path, config: Path) -> None:
    identity = await start(runs, "tiny-1_0-17")
    done = run(config, "tiny-1/0", "--break-glass")
    assert (done.returncode, "say --yes" in done.stderr) == (2, True)
    assert is_alive(identity)


def test_what_must_be_said_is_asked_for(config: Path) -> None:
    for arguments, words in (
        (("tiny-1/0",), "a stop goes through the agent: ringtop unload"),
        (("--break-glass",), "name one NODE"),
        (("tiny-1/0", "--all", "--break-glass"), "name one NODE"),
    ):
        done = run(config, *arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


async def test_an_unknown_slot_is_refused_with_those_that_run(runs: Path, config: Path) -> None:
    await start(runs, "tiny-1_0-17")
    done = run(config, "tiny-9/0", "--break-glass", "--yes")
    assert done.returncode == 2
    assert "no engine of tiny-9/0" in done.stdout
    assert "running: tiny-1/0 generation 17" in done.stdout


def a_bystander() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)


def serve(config: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", str(config)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


async def test_a_record_whose_process_is_another_one_now_is_never_signalled(runs: Path, config: Path) -> None:
    bystander = a_bystander()
    try:
        ticks = seen(bystander.pid).start_ticks
        identity = await start(runs, "tiny-1_0-17")
        record = msgspec.json.decode((runs / "tiny-1_0-17" / "spawn.json").read_bytes())
        forged = runs / "big-1_0-5"
        forged.mkdir()
        (forged / "spawn.json").write_bytes(
            msgspec.json.encode({**record, "pid": bystander.pid, "start_ticks": ticks - 1})
        )
        damaged = runs / "big-2_0-5"
        damaged.mkdir()
        (damaged / "spawn.json").write_text("{")
        done = run(config, "--break-glass", "--all", "--yes")
        assert f"left alone: {damaged}/spawn.json is damaged" in done.stderr
        assert not is_alive(identity)
        assert bystander.poll() is None
        damaged.joinpath("spawn.json").unlink()
        forged.joinpath("spawn.json").unlink()
    finally:
        bystander.kill()
        bystander.wait()


async def test_the_systems_log_is_told(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    stand_in_syslog = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stand_in_syslog.bind(str(folder / "log"))
    stand_in_syslog.settimeout(SECONDS)
    try:
        monkeypatch.setattr(break_glass, "SYSLOG", folder / "log")
        monkeypatch.setenv("SUDO_USER", "alice")
        await start(runs, "tiny-1_0-17")
        found, _ = live_runs(runs.parent)
        note, troubles = await asyncio.to_thread(stop_runs, runs.parent, found)
        assert troubles == ()
        text = stand_in_syslog.recv(4096).decode()
        assert "ringtop-agent: emergency stop past the agent by alice: tiny-1/0 generation 17: stopped" in text
        assert note.by == "alice"
    finally:
        stand_in_syslog.close()
        shutil.rmtree(folder)


async def test_where_no_note_can_be_left_the_engine_is_stopped_all_the_same(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = await start(runs, "tiny-1_0-17")
    (runs.parent / "break-glass").write_text("in the way")
    monkeypatch.setattr(break_glass, "SYSLOG", runs.parent / "absent")
    found, _ = live_runs(runs.parent)
    note, troubles = await asyncio.to_thread(stop_runs, runs.parent, found)
    assert not is_alive(identity)
    assert note.outcomes["tiny-1/0 generation 17"].startswith("stopped")
    assert any("no note for the journal could be left" in words for words in troubles)
    assert any("the system's log was not told" in words for words in troubles)


def test_a_note_of_a_stop_that_still_runs_waits_for_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "break-glass").mkdir()
    for name, pid in (("1-1.json", os.getpid()), ("2-2.json", 4_000_000)):
        note = Note(by="alice", at_unix_ms=1, pid=pid, outcomes={"tiny-1/0": BEGUN})
        (tmp_path / "break-glass" / name).write_bytes(msgspec.json.encode(note))
    (tmp_path / "break-glass" / "3-3.json").write_text("{")
    notes = read_notes(tmp_path)
    assert notes.keys() == {"2-2.json", "3-3.json"}
    assert "cannot be read" in notes["3-3.json"].words
    drop_note(tmp_path, "2-2.json")
    drop_note(tmp_path, "2-2.json")
    assert read_notes(tmp_path).keys() == {"3-3.json"}


async def journaled(state: Path) -> list[JournalRecord]:
    journal = Journal.open(state / "journal", host="host-a", clock=SystemClock())
    try:
        return list(journal.replay())
    finally:
        await journal.close()


async def test_the_next_start_of_the_agent_takes_the_note_into_its_journal(runs: Path, config: Path) -> None:
    await start(runs, "tiny-1_0-17")
    assert run(config, "tiny-1/0", "--break-glass", "--yes").returncode == 0
    agent = serve(config)
    try:
        until(lambda: not read_notes(runs.parent), "the note is taken in")
    finally:
        agent.terminate()
        agent.wait(SECONDS)
    alarms = [record for record in await journaled(runs.parent) if record.kind == "break_glass"]
    assert [(record.level, "tiny-1/0 generation 17: stopped" in record.words) for record in alarms] == [("alarm", True)]
