"""Engines that somebody else started, as real processes under the engines' names: seen, described, never touched."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from backend.agent import foreign
from backend.agent.foreign import find_foreign
from backend.agent.process_identity import boot_id, see_process
from backend.contract.entities import Entities, ProcessIdentity
from backend.contract.reports import ForeignProcess
from backend.contract.words import NodeId
from backend.engines.recognise import option
from tests.agent.core.world import World
from tests.agent.run_world import until
from tests.factories import GENERATION, make_plan

ELSEWHERE = 1
"""The agent's process: not this one, whose own children are no strangers."""
LISTENING = (
    "import socket, sys, time\n"
    "server = socket.create_server(('127.0.0.1', 0))\n"
    "open(sys.argv[1], 'w').write(str(server.getsockname()[1]))\n"
    "time.sleep(600)\n"
)


class Stranger:
    """A process under an engine's name that listens; ``folder`` is where it runs."""

    def __init__(self, tmp_path: Path, folder: Path, model: str = "/models/big.gguf") -> None:
        program = tmp_path / "llama-server"
        program.symlink_to(os.path.realpath(sys.executable))
        said = tmp_path / "port"
        folder.mkdir(parents=True, exist_ok=True)
        here = os.getcwd()
        os.chdir(folder)
        try:
            command = [str(program), "-I", "-S", "-c", LISTENING, str(said), "--model", model]
            self.pid = os.posix_spawn(str(program), command, {})
        finally:
            os.chdir(here)
        until(lambda: said.exists() and said.read_text(), "it listens")
        self.port = int(said.read_text())

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    monkeypatch.setattr(foreign, "YOUNG_SECONDS", 0.0)
    made = Stranger(tmp_path, tmp_path / "runs" / f"tiny-1_1-{GENERATION}")
    yield made
    made.end()


def found(stranger: Stranger, entities: Entities, runs: Path) -> ForeignProcess | None:
    """Among the foreign engines of this shared machine, ours."""
    return next((each for each in find_foreign(entities, runs, ELSEWHERE).processes if each.pid == stranger.pid), None)


def test_a_stranger_is_described_with_its_port_model_and_memory(stranger: Stranger, tmp_path: Path) -> None:
    seen = found(stranger, Entities(), tmp_path / "elsewhere")
    assert seen is not None
    assert (seen.program, seen.ports, seen.model) == ("llama-server", (stranger.port,), "/models/big.gguf")
    assert seen.memory is not None
    assert seen.memory > 1 << 20
    assert seen.started_unix_ms is not None
    assert abs(seen.started_unix_ms / 1000 - time.time()) < 120
    assert found(stranger, Entities(), tmp_path / "elsewhere") == msgspec.structs.replace(seen)


@pytest.mark.parametrize("model", ["m.gguf", "m" * 100_000])
def test_whatever_a_stranger_is_called_a_report_can_carry_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(foreign, "YOUNG_SECONDS", 0.0)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/no-text-\xff"))
    folder.mkdir()
    (folder / "m.gguf").touch()
    made = Stranger(tmp_path, folder, model)
    try:
        seen = found(made, Entities(), tmp_path / "elsewhere")
        assert seen is not None
        assert len(msgspec.json.encode(seen)) < 6000
        assert seen.model == (f"{tmp_path}/no-text-\ufffd/m.gguf" if model == "m.gguf" else "m" * 4096)
    finally:
        made.end()


def test_files_that_a_stranger_has_mapped_count_as_memory_in_use(stranger: Stranger, tmp_path: Path) -> None:
    assert find_foreign(Entities(), tmp_path, ELSEWHERE).mapped > 1 << 20


def worker_world() -> World:
    world = World()
    world.bring_up(make_plan())
    return world


def test_a_shards_process_is_no_stranger(stranger: Stranger, tmp_path: Path) -> None:
    entities = worker_world().state.entities
    seen = see_process(stranger.pid)
    assert seen is not None
    shard = entities.shards[NodeId("tiny-1/1")]
    for ticks, is_foreign in ((seen.start_ticks, False), (seen.start_ticks + 1, True)):
        identity = ProcessIdentity(stranger.pid, ticks, boot_id(), "nonce")
        shards = {shard.node_id: msgspec.structs.replace(shard, identity=identity)}
        with_it = msgspec.structs.replace(entities, shards=shards)
        assert (found(stranger, with_it, tmp_path / "elsewhere") is not None) == is_foreign


def test_a_process_in_the_folder_of_a_start_that_is_not_recorded_yet_is_no_stranger(
    stranger: Stranger, tmp_path: Path
) -> None:
    entities = worker_world().state.entities
    assert found(stranger, entities, tmp_path / "runs") is None
    assert found(stranger, Entities(), tmp_path / "runs") is not None, "without a journal it is foreign"


def test_what_another_users_process_listens_on_is_taken_from_its_command_line(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "socket_inodes", lambda pid: None)
    assert option(["llama-server", "--port", "18007"], ("-p", "--port")) == "18007"
    assert option(["llama-server", "--port=18007"], ("-p", "--port")) == "18007"
    assert option(["llama-server", "--port"], ("-p", "--port")) == ""
    seen = found(stranger, Entities(), tmp_path)
    assert seen is not None
    assert seen.ports == ()


def test_looking_leaves_it_alone(stranger: Stranger, tmp_path: Path) -> None:
    find_foreign(Entities(), tmp_path, ELSEWHERE)
    with socket.create_connection(("127.0.0.1", stranger.port), 5):
        assert see_process(stranger.pid) is not None


def test_whether_the_agent_may_end_it_is_asked_without_a_signal(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = found(stranger, Entities(), tmp_path)
    assert seen is not None
    assert seen.can_signal is True

    def another_users(pid: int, number: int) -> None:
        assert number == 0
        raise PermissionError

    monkeypatch.setattr(os, "kill", another_users)
    refused = found(stranger, Entities(), tmp_path)
    assert refused is not None
    assert refused.can_signal is False
    monkeypatch.undo()
