"""How an operation ends when not all went well: nothing that was left behind looks like success."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.commands import ChangeDrain, Unload
from backend.contract.entities import Result
from backend.contract.words import OpId, UnixMs
from backend.control.ledger import HALTED, Step, create, ledger_path, reopen
from backend.control.ledger_views import read_operation
from backend.control.operations import drain as drain_module
from backend.control.operations import load as load_module
from backend.control.operations.spare import Spare
from backend.control.operations.spawning import log_path, spawn_operation
from tests.control.factories import B, a_shard
from tests.control.stand_in_agent import OK, rejected, wait_for
from tests.control.test_operations import DRAIN, OP, World, world
from tests.control.test_spare import context, spare, unknown_operation, waiting

__all__ = ["context", "spare", "world"]


# --- a load whose canary was answered -------------------------------------------------------------------------------


def _answers_and_then(world: World, *states: str) -> Any:
    """Rank 2's LOAD succeeds while it loads, and then it comes into these states; none: its host never shows it."""
    running: list[asyncio.Task[None]] = []

    async def pass_through() -> None:
        for state in states:
            await world.b.record(state, shard=a_shard(2, state, words="signal 9 (killed)" if state == "failed" else ""))

    def answers(command: Any) -> Result:
        running.append(asyncio.get_running_loop().create_task(pass_through()))
        return OK

    return answers


async def test_a_rank_that_ends_after_the_canary_takes_the_load_back(world: World) -> None:
    world.b.rules["load"] = _answers_and_then(world, "loading", "failed")
    world.write()
    assert await world.run() == 5
    words = world.view().words
    assert "rank 2 on host-b: failed, signal 9 (killed), after the canary was answered; rolled back" in words
    assert {command.node_id for command in world.heard(Unload)} == {"tiny-1/0", "tiny-1/1"}


async def test_the_ranks_beside_one_that_ended_after_the_canary_are_kept_when_that_was_asked(world: World) -> None:
    world.b.rules["load"] = _answers_and_then(world, "loading", "failed")
    world.write(keep_on_failure=True)
    assert await world.run() == 5
    assert world.view().words.endswith("kept as asked: rank 0, 1")
    assert not world.heard(Unload)


async def test_a_rank_that_its_host_never_shows_is_not_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "READY_SECONDS", 0.3)
    world.b.rules["load"] = _answers_and_then(world)
    world.write()
    assert await world.run() == 3
    assert "ready: rank 2 on host-b: nothing of this rank. It is left running" in world.view().words


# --- what an unload and a drain leave behind ------------------------------------------------------------------------


def _reservation_only(world: World) -> None:
    world.write("unload", reservations=[["host-b", "load-0-ab-reserve-host-b"]])
    path = ledger_path(world.context.ledger_folder, OP)
    operation = msgspec.structs.replace(reopen_and_close(world).operation, targets=())
    path.unlink()
    create(world.context.ledger_folder, operation).close()


def reopen_and_close(world: World) -> Any:
    writer = reopen(world.context.ledger_folder, OP)
    writer.close()
    return writer


async def test_a_reservation_that_was_ended_is_gone(world: World) -> None:
    _reservation_only(world)
    assert await world.run() == 0
    assert world.view().words == "tiny-1 is gone from 1 host"


async def test_a_reservation_that_was_not_ended_is_not_said_to_be_gone(world: World) -> None:
    world.b.rules["release"] = lambda command: rejected("E_JOURNAL: the journal cannot be written")
    _reservation_only(world)
    assert await world.run() == 3
    assert "its reservation at host-b may stand until it expires: E_JOURNAL" in world.view().words


async def test_a_reservation_at_a_silent_host_is_not_said_to_be_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.control.operations.conduct.CONNECT_SECONDS", 0.5)
    await world.b.stop()
    _reservation_only(world)
    assert await world.run() == 4
    assert "its reservation at host-b may stand until it expires: no agent at" in world.view().words


async def test_a_drain_that_may_have_begun_and_is_not_known_to_be_cancelled_says_where_and_how_to_end_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "ANSWER_SECONDS", 0.5)
    await world.serving()
    for name in ("drain.start", "drain.change"):
        world.b.rules[name] = lambda command: None
    world.write("drain", **DRAIN)
    assert await world.run() == 3
    words = world.view().words
    assert "host-b did not begin to drain: host-b gave no answer to drain.start" in words
    assert "A drain may be open, and end as was asked, at host-b: host-b gave no answer to drain.change" in words
    assert words.endswith("End it: ringtop drain tiny-1 --cancel")
    assert [command.action for command in world.a.commands(ChangeDrain)] == ["cancel"]


async def test_a_drain_that_its_agent_has_lost_is_not_followed_for_ever(world: World) -> None:
    await world.serving()
    world.write("drain", **DRAIN)
    running = asyncio.create_task(world.run())
    await wait_for(lambda: world.view().phase == "draining")
    await world.a.stop()
    world.a.entities = msgspec.structs.replace(world.a.entities, drains={})
    world.a.journal.clear()
    await world.a.start()
    assert await running == 5
    assert world.view().words == "tiny-1 serves on: the drain was forgotten by its agent"
    assert [command.action for command in world.b.commands(ChangeDrain)] == ["cancel"]
    assert not world.heard(Unload)


# --- a process that cannot do its work ------------------------------------------------------------------------------


async def test_a_host_that_left_the_context_halts_an_operation_that_had_begun_for_somebody_to_resume(
    world: World,
) -> None:
    world.write()
    writer = reopen(world.context.ledger_folder, OP)
    writer.append(Step(at_unix_ms=UnixMs(1), target="tiny-1/2", what="load", words="rank 2 sent to host-b"))
    writer.close()
    address = world.context.hosts.pop(B)
    assert await world.run() == 2
    view = world.view()
    assert (view.state, view.exit_code, view.ended_unix_ms) == ("ownerless", 2, None)
    assert view.words.startswith(f"write that host into contexts.toml again, then go on with ringtop op resume {OP}: ")
    assert "in context test there is no host 'host-b'; known: host-a" in view.words
    assert await world.run() == 2
    assert [step.what for step in world.view().steps].count(HALTED) == 1, "the same is said once"
    world.context.hosts[B] = address
    assert await world.run() == 0


def test_a_context_that_cannot_be_used_is_said_in_the_ledger_of_the_operation(place: Path) -> None:
    world = World(place)
    world.write()
    (place / "contexts.toml").write_text("[contexts.test\n")
    process = spawn_operation(world.context, OP)
    assert process.wait(60) == 2
    _says_that_contexts_is_no_toml(world.context.ledger_folder, OP)


def test_a_spare_says_in_the_ledger_that_it_cannot_use_its_context(context: Any, spare: Spare) -> None:
    spare.prepare()
    (context.home / "contexts.toml").write_text("[contexts.c\n")
    operation = unknown_operation(context)
    writer = create(context.ledger_folder, operation)
    process = spare.start(operation.op_id, writer.fd)
    writer.close()
    assert process.wait(60) == 2
    _says_that_contexts_is_no_toml(context.ledger_folder, operation.op_id)


def _says_that_contexts_is_no_toml(folder: Path, op_id: OpId) -> None:
    view = read_operation(ledger_path(folder, op_id))
    assert (view.state, view.exit_code) == ("ownerless", 2)
    assert view.words.startswith("its process could do nothing: ")
    assert "contexts.toml: is not TOML" in view.words
    assert view.words.endswith(f"Then go on: ringtop op resume {op_id}")


def test_a_spare_runs_what_it_was_given_although_its_console_died_before_it_answered(
    context: Any, spare: Spare
) -> None:
    spare.prepare()
    process, door = waiting(spare), spare._waiting[1] if spare._waiting is not None else None
    assert door is not None
    operation = unknown_operation(context)
    writer = create(context.ledger_folder, operation)
    socket.send_fds(door, [operation.op_id.encode()], [writer.fd])
    door.close()
    writer.close()
    assert process.wait(60) == 2
    view = read_operation(ledger_path(context.ledger_folder, operation.op_id))
    assert (view.state, "'juggle' is unknown" in view.words) == ("refused", True)


def test_what_an_operations_process_said_is_kept_only_when_it_said_something(context: Any) -> None:
    operation = unknown_operation(context)
    create(context.ledger_folder, operation).close()
    log = log_path(context.ledger_folder, operation.op_id)
    assert spawn_operation(context, operation.op_id).wait(60) == 2
    assert not log.exists()
    ledger_path(context.ledger_folder, operation.op_id).unlink()
    assert spawn_operation(context, operation.op_id).wait(60) == 2
    assert "there is no such operation" in log.read_text()
