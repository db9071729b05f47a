"""A p4 agent's process and journal as its host sees them: real sockets of a real process, made-up folders of /proc."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.contract.p4.addresses import P4Address
from backend.engines.p4 import surroundings
from backend.engines.p4.journal import JournalSeen, look_at_journal
from backend.engines.p4.own_agent import JOURNAL_VARIABLE, find_listener, gauge, journal_given, life_of
from backend.engines.p4.place import P4Place
from backend.engines.p4.seen import devices_of, node_words
from backend.engines.p4.snapshot import NodeSeen, Snapshot
from backend.engines.p4.stage_processes import look_at_stages
from backend.engines.p4.surroundings import Lookout

LISTENER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The pid and port of a process that listens, started with a journal folder."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENER],
        env={JOURNAL_VARIABLE: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def test_the_process_behind_an_address_is_found_with_its_journal_and_slots(
    listener: tuple[int, int], tmp_path: Path
) -> None:
    pid, port = listener
    assert find_listener(port) == pid
    assert journal_given(pid) == str(tmp_path)
    assert life_of(pid).startswith(f"{pid}:")
    seen = gauge(pid)
    assert seen is not None
    assert (seen.sockets, seen.unique, seen.hidden) == (1, 1, 0)
    with socket.create_connection(("127.0.0.1", port)):
        assert gauge(pid) == seen, "a connection in the backlog is no socket of the process yet"


def test_a_port_that_nobody_listens_on_and_a_process_that_is_gone_are_unknown() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert find_listener(held.getsockname()[1]) is None
    assert gauge(2**22 + 1) is None
    assert journal_given(2**22 + 1) is None
    assert life_of(2**22 + 1) == ""


def test_a_socket_in_no_table_is_hidden(tmp_path: Path) -> None:
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "net").mkdir()
    for number, inode in enumerate((101, 102, 102, 103)):
        os.symlink(f"socket:[{inode}]", process / "fd" / str(number))
    os.symlink("/dev/null", process / "fd" / "9")
    row = "  0: 0100007F:1068 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 101 1 0 100 0 0 10 0"
    (process / "net" / "tcp").write_text(f"  sl  local_address\n{row}\n")
    (process / "net" / "unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 1 1 1 102 /x\n")
    seen = gauge(7, tmp_path)
    assert seen is not None
    assert (seen.sockets, seen.unique, seen.hidden) == (4, 3, 1)


def test_names_of_threads_and_sockets_may_be_any_bytes(tmp_path: Path) -> None:
    """The kernel cuts a thread's name at 15 bytes, in the middle of a letter too, and asks nothing of a socket's."""
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "net").mkdir()
    (process / "task" / "7").mkdir(parents=True)
    stat = b"7 (\xd0\xbc\xd0) S " + b" ".join(b"%d" % number for number in range(1, 40))
    (process / "stat").write_bytes(stat)
    (process / "task" / "7" / "stat").write_bytes(stat)
    (process / "task" / "7" / "children").write_text("7")
    (process / "cmdline").write_bytes(b"stage\0--port\x009\0")
    (process / "net" / "unix").write_bytes(b"Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 1 1 1 102 /\xff\n")
    assert life_of(7, tmp_path) == "7:19"
    assert gauge(7, tmp_path) is not None
    (stage,) = look_at_stages(7, tmp_path)
    assert (stage.port, stage.ticks) == (9, {7: 11 + 12})


def test_a_journal_is_counted_and_its_census_foretold(tmp_path: Path) -> None:
    for name in ("1.admission", "2.admission", "3.inbound"):
        (tmp_path / name).write_text("12345")
    seen = look_at_journal("", str(tmp_path))
    assert (seen.files, seen.bytes, seen.admissions, seen.state) == (3, 15, 2, "ok")
    assert "2 admitted requests" in seen.restart
    assert look_at_journal(str(tmp_path), None).files == 3, "what agent.toml says where the process does not tell"
    (tmp_path / "1.admission").unlink()
    (tmp_path / "2.admission").unlink()
    assert look_at_journal("", str(tmp_path)).restart == ""


def test_a_journal_that_is_not_there_is_no_journal(tmp_path: Path) -> None:
    assert "without one" in look_at_journal(str(tmp_path), "").state
    assert "nobody says where" in look_at_journal("", None).state
    assert "agent.toml says" in look_at_journal(str(tmp_path), str(tmp_path / "other")).state
    assert "cannot be read" in look_at_journal("", str(tmp_path / "none")).state


def test_devices_have_ggmls_names_and_a_nodes_text_is_quoted() -> None:
    gpus = [{"backend": "cuda"}, {"backend": "rocm"}, {"backend": "cuda"}, {"backend": "npu"}, 7]
    tree = {"machine": {"capability": {"gpus": gpus}}}
    snapshot = Snapshot(generated_at_unix_ms=0, nodes=(), failure_ids=(), tree=tree)
    assert devices_of(snapshot) == ("CPU", "CUDA0", "ROCm0", "CUDA1")
    assert devices_of(Snapshot(generated_at_unix_ms=0, nodes=(), failure_ids=(), tree={"machine": 7})) == ("CPU",)
    node = NodeSeen(
        node_id="s0",
        generation=1,
        adapter_kind="llamacpp",
        lifecycle_state="loaded",
        state="failed:stale",
        is_stopped=True,
        tree={},
    )
    assert node_words(node) == "loaded, its text is 'failed:stale', its task is dead"


async def test_without_a_descriptor_to_look_with_everything_around_is_unknown_injected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starve(folder: str, given: str | None) -> JournalSeen:
        raise OSError(errno.EMFILE, "Too many open files")

    address = P4Address("tcp://127.0.0.1:1")
    lookout = Lookout(P4Place(agent=address, advertise=address, binary="/stage", journal=str(tmp_path)))
    with monkeypatch.context() as starved:
        starved.setattr(surroundings, "look_at_journal", starve)
        seen = await lookout.seen(now=True)
    assert (seen.life, seen.pid, seen.gauge, seen.journal.files) == ("", None, None, None)
    assert seen.journal.state == "cannot be looked at: Too many open files"
    assert (await lookout.seen(now=True)).journal.state == "ok"
