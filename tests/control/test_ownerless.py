"""Operations whose process is gone: resumed, rolled back or settled, and a lost ledger written anew."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.api import (
    AcknowledgeDrift,
    RebuildLedger,
    ReopenDrift,
    Request,
    ResumeOperation,
    RollBackOperation,
    SettleOperation,
)
from backend.contract.commands import ChangeDrain, Reserve, Unload
from backend.contract.entities import Drain, Entities, LoadRecord, OpenOperation
from backend.contract.reports import Presence
from backend.contract.states import HostState
from backend.contract.words import HostId, OpId, UnixMs
from backend.control.acknowledgements import FILE, AcknowledgementReader
from backend.control.ledger import ENDED, Step, create, ledger_path, reopen
from backend.control.operations.load import targets_of
from backend.control.operations.settle import Conclusion, conclude
from backend.control.views import FleetState, HostView, OperationView
from tests.control.factories import GENERATION, REPLICA, A, B, a_leader, a_plan, a_shard, changed, entities_of
from tests.control.stand_in_agent import wait_for
from tests.control.test_backend import Console, alone, console, unstarted, world
from tests.control.test_operations import OP, World

__all__ = ["alone", "console", "unstarted", "world"]


# --- what the fleet says ------------------------------------------------------------------------------------------


def an_operation(kind: str = "load") -> OperationView:
    return OperationView(
        id=OP,
        kind=kind,
        subject=REPLICA,
        by="alice",
        state="ownerless",
        words="",
        started_unix_ms=UnixMs(1),
        ended_unix_ms=None,
        load_generation=GENERATION,
        steps=(),
        targets=targets_of(a_plan()),
    )


def said(at_a: Entities, at_b: Entities | None, kind: str = "load", **options: Any) -> Conclusion:
    hosts = {
        host: HostView(
            host=host,
            address="",
            state=HostState.LIVE if entities is not None else HostState.UNREACHABLE,
            words="" if entities is not None else "no route",
            entities=entities or Entities(),
        )
        for host, entities in ((A, at_a), (B, at_b))
    }
    state = FleetState(
        context="test", label="", hosts=hosts, replicas={}, operations={}, models={}, catalog_words="", answers={},
        drifts=(), journal_head=0, fault=None, read_only=False,
    )  # fmt: skip
    return conclude(an_operation(kind), state, **options)


READY = entities_of(a_leader(), a_shard(1))
HALF = entities_of(a_leader("failed"))


@pytest.mark.parametrize(
    ("kind", "at_a", "at_b", "code", "words"),
    [
        ("load", READY, entities_of(a_shard(2)), 0, f"tiny-1 is ready at generation {GENERATION}"),
        ("load", Entities(), Entities(), 5, "nothing of tiny-1 runs"),
        ("load", HALF, entities_of(a_shard(2)), 5, "only rank 2 of tiny-1 runs; unload tiny-1 to end what is left"),
        ("unload", Entities(), entities_of(a_shard(2, "stopped")), 0, "tiny-1 is gone"),
        ("unload", Entities(), entities_of(a_shard(2)), 5, "rank 2 of tiny-1 still runs"),
        ("drain", Entities(), Entities(), 0, "tiny-1 is drained and gone"),
        ("drain", READY, entities_of(a_shard(2)), 5, "tiny-1 serves on: the drain was never begun, or forgotten"),
        ("drain", Entities(), entities_of(a_shard(2)), 5, "the leader of tiny-1 is gone, and rank 2 still runs"),
    ],
)
def test_an_operation_is_closed_by_what_the_fleet_says(
    kind: str, at_a: Entities, at_b: Entities, code: int, words: str
) -> None:
    conclusion = said(at_a, at_b, kind)
    assert (conclusion.code, conclusion.words, conclusion.is_open) == (code, words, False)
    assert len(conclusion.lines) == 3


def a_drain(outcome: str) -> Entities:
    drain = Drain(
        replica=REPLICA, load_generation=GENERATION, op_id=OP, by="a", why="", left_ms=1, at_unix_ms=UnixMs(1),
        at_deadline="give-up", outcome=outcome,
    )  # fmt: skip
    return entities_of(a_leader(), a_shard(1), drains={REPLICA: drain})


@pytest.mark.parametrize(
    ("outcome", "code", "is_open"), [("", 2, True), ("given up", 3, False), ("cancelled", 5, False)]
)
def test_a_drain_is_settled_by_what_its_agents_keep_of_it(outcome: str, code: int, is_open: bool) -> None:
    conclusion = said(a_drain(outcome), entities_of(a_shard(2)), "drain")
    assert (conclusion.code, conclusion.is_open) == (code, is_open)


def test_a_rank_that_moves_keeps_an_operation_open() -> None:
    loading = said(READY, entities_of(a_shard(2, "loading")))
    assert (loading.is_open, loading.code) == (True, 2)
    assert "rank 2 on host-b: loading: it still moves" in loading.words
    asked = OpenOperation(
        op_id=OpId("x"), command="load", subject="tiny-1/2", by="bob", payload_digest="", at_unix_ms=UnixMs(1)
    )
    under_way = said(READY, Entities(operations={OpId("x"): asked}))
    assert "load by bob is under way" in under_way.words
    unproven = said(entities_of(a_leader(canary=None), a_shard(1)), entities_of(a_shard(2)))
    assert "no canary has crossed" in unproven.words


def test_a_silent_host_keeps_an_operation_open_unless_it_is_closed_as_unknown() -> None:
    conclusion = said(READY, None)
    assert (conclusion.is_open, conclusion.code) == (True, 4)
    assert "rank 2 on host-b: unreachable, no route" in conclusion.words
    conclusion = said(READY, None, despite_silence=True)
    assert (conclusion.is_open, conclusion.code) == (False, 3)
    assert conclusion.words.startswith("unknown: rank 2 on host-b")


def test_another_generation_in_a_slot_is_not_this_operations_shard() -> None:
    other = changed(a_shard(2), node_generation=GENERATION + 1)
    assert "rank 2 on host-b: not there" in said(READY, entities_of(other)).lines


# --- through the door ---------------------------------------------------------------------------------------------


def a_step(world: World, what: str, target: str = "tiny-1", **fields: Any) -> None:
    writer = reopen(world.context.ledger_folder, OP)
    writer.append(Step(at_unix_ms=UnixMs(9), target=target, what=what, words="w", **fields))
    writer.close()


async def seen(console: Console, state: str) -> None:
    def known() -> bool:
        view = console.backend.state().operations.get(OP)
        return view is not None and view.state == state

    await wait_for(known)


async def test_settling_writes_the_conclusion_and_says_it_once(world: World, console: Console) -> None:
    await world.serving()
    await wait_for(lambda: REPLICA in console.backend.state().replicas)
    world.write()
    await seen(console, "ownerless")
    answer = await console.answer(SettleOperation(operation=OP))
    assert (answer.exit_code, answer.words) == (0, f"tiny-1 is ready at generation {GENERATION}")
    assert answer.value["lines"] == ["rank 0 on host-a: ready", "rank 1 on host-a: ready", "rank 2 on host-b: ready"]
    view = world.view()
    assert (view.state, view.exit_code) == ("succeeded", 0)
    assert "settled by alice from what the fleet says" in view.words
    again = await console.answer(SettleOperation(operation=OP))
    assert (again.exit_code, "only an ownerless operation can be settled" in again.words) == (2, True)
    assert not world.heard(Unload), "settling stops nothing"


async def test_an_operation_whose_owner_lives_is_neither_settled_nor_rolled_back(
    world: World, console: Console
) -> None:
    world.write()
    writer = reopen(world.context.ledger_folder, OP)
    for request in (SettleOperation(operation=OP), RollBackOperation(operation=OP)):
        answer = await console.answer(request)
        assert (answer.exit_code, "is running" in answer.words) == (2, True)
    writer.close()
    assert not world.view().steps


async def test_a_load_is_rolled_back_by_a_process_of_its_own(world: World, console: Console) -> None:
    await world.serving()
    await wait_for(lambda: REPLICA in console.backend.state().replicas)
    world.write()
    for rank in range(3):
        a_step(world, "load", f"tiny-1/{rank}")
    answer = await console.answer(RollBackOperation(operation=OP))
    assert (answer.exit_code, answer.words) == (0, OP)
    assert await console.ended(OP) == 5
    view = world.view()
    assert view.words == "alice asked to take it back; rolled back, every rank is proven absent"
    assert {command.node_id for command in world.heard(Unload)} == {"tiny-1/0", "tiny-1/1", "tiny-1/2"}


async def test_a_drain_is_rolled_back_by_cancelling_it_where_it_is_open(world: World, console: Console) -> None:
    await world.serving()
    drain = a_drain("").drains[REPLICA]
    await world.a.record("draining", drain=drain)
    world.write("drain", deadline_seconds=60.0, at_deadline="give-up")
    a_step(world, "draining")
    answer = await console.answer(RollBackOperation(operation=OP))
    assert answer.exit_code == 0, answer.words
    assert await console.ended(OP) == 5
    assert world.view().words == "tiny-1 serves on: the drain was taken back"
    assert [command.action for command in world.heard(ChangeDrain)] == ["cancel"]
    assert not world.heard(Unload)


@pytest.mark.parametrize("request_", [ResumeOperation(operation=OP), RollBackOperation(operation=OP)], ids=repr)
async def test_an_operation_that_cannot_be_given_a_process_says_so_and_the_backend_goes_on(
    world: World, console: Console, request_: Request
) -> None:
    world.write()
    log = ledger_path(world.context.ledger_folder, OP).with_suffix(".log")
    log.mkdir()
    answer = await console.answer(request_)
    assert answer.exit_code == 5
    assert answer.words.startswith(f"{OP} is still without an owner: ")
    assert str(log) in answer.words
    log.rmdir()
    assert (await console.answer(request_)).exit_code == 0
    assert await console.ended(OP) is not None


async def test_an_operation_is_owned_from_the_moment_that_its_resume_is_answered(
    world: World, console: Console
) -> None:
    world.a.rules["reserve"] = lambda command: None
    world.write()
    assert (await console.answer(ResumeOperation(operation=OP))).exit_code == 0
    assert console.backend.state().operations[OP].state == "running"
    again = await console.answer(ResumeOperation(operation=OP))
    assert (again.exit_code, "is running; only an ownerless" in again.words) == (2, True)
    await wait_for(lambda: world.a.commands(Reserve))
    del world.a.rules["reserve"]
    for connection in world.a.connections:
        connection.transport.abort()
    assert await console.ended(OP) == 0


async def test_an_unload_cannot_be_taken_back_and_says_what_can_be_done(world: World, console: Console) -> None:
    world.write("unload")
    answer = await console.answer(RollBackOperation(operation=OP))
    assert answer.exit_code == 2
    assert "Resume it, or settle it" in answer.words


async def test_a_damaged_ledger_is_settled_and_the_damaged_file_kept(world: World, console: Console) -> None:
    world.write()
    a_step(world, "connect")
    path = ledger_path(world.context.ledger_folder, OP)
    path.write_bytes(path.read_bytes().replace(b'"words":"w"', b'"words":"x"'))
    await seen(console, "damaged")
    answer = await console.answer(SettleOperation(operation=OP))
    assert (answer.exit_code, answer.words) == (0, "nothing of tiny-1 runs")
    assert [step.what for step in world.view().steps] == ["mended", ENDED]
    assert path.with_name(f"{path.name}.damaged").exists()


async def test_a_lost_ledger_is_rebuilt_from_the_load_records_and_says_what_is_unknown(
    world: World, console: Console
) -> None:
    for agent, shards in ((world.a, (a_leader(), a_shard(1))), (world.b, (a_shard(2),))):
        record = LoadRecord(OpId(f"{OP}-reserve-{agent.host}"), "bob", a_plan(), UnixMs(7))
        for shard in shards:
            await agent.record("ready", shard=shard, load=record)
    await wait_for(lambda: (r := console.backend.state().replicas.get(REPLICA)) is not None and r.ranks_ready == 3)
    answer = await console.answer(RebuildLedger())
    assert (answer.exit_code, answer.words) == (0, "1 written anew")
    view = world.view()
    assert (view.state, view.by, view.started_unix_ms, view.load_generation) == ("succeeded", "bob", 7, GENERATION)
    assert "concluded from what the fleet says" in view.words
    assert any(line.startswith("unknown:") for line in view.steps[0].lines)
    again = await console.answer(RebuildLedger())
    assert again.words == "nothing to do: every load record has its ledger"


async def test_a_load_whose_process_lives_in_another_home_is_not_written_here_for_somebody_to_run_it_twice(
    world: World, console: Console
) -> None:
    world.b.present = (Presence(who="bob", console=f"operation-{OP}", since_unix_ms=UnixMs(7)),)
    world.b.connections[0].transport.abort()
    record = LoadRecord(OpId(f"{OP}-reserve-host-b"), "bob", a_plan(), UnixMs(7))
    await world.b.record("loading", shard=a_shard(2, "loading"), load=record)
    await wait_for(lambda: console.backend.state().hosts[HostId("host-b")].present == world.b.present)
    await wait_for(lambda: REPLICA in console.backend.state().replicas)
    answer = await console.answer(RebuildLedger())
    assert (answer.exit_code, answer.value["elsewhere"]) == (0, [OP])
    assert answer.words == f"0 written anew; left alone, as its process is connected from elsewhere: {OP}"
    assert not ledger_path(world.context.ledger_folder, OP).exists()


async def test_a_rebuilt_load_that_still_moves_is_ownerless_and_can_be_rolled_back(
    world: World, console: Console
) -> None:
    record = LoadRecord(OpId(f"{OP}-reserve-host-b"), "bob", a_plan(), UnixMs(7))
    await world.b.record("loading", shard=a_shard(2, "loading"), load=record)
    await wait_for(lambda: REPLICA in console.backend.state().replicas)
    answer = await console.answer(RebuildLedger())
    assert answer.value["rebuilt"][0]["state"] == "ownerless"
    assert "still moves" in answer.value["rebuilt"][0]["words"]
    await console.answer(RollBackOperation(operation=OP))
    assert await console.ended(OP) == 5
    assert "tiny-1/2" in {command.node_id for command in world.heard(Unload)}


async def test_a_lost_ledger_is_not_guessed_at_for_a_host_that_does_not_answer(world: World, console: Console) -> None:
    record = LoadRecord(OpId(f"{OP}-reserve-host-a"), "bob", a_plan(), UnixMs(7))
    await world.a.record("ready", shard=a_leader(), load=record)
    await world.b.stop()
    await wait_for(lambda: console.backend.state().hosts[HostId("host-b")].state is HostState.UNREACHABLE)
    answer = await console.answer(RebuildLedger())
    assert (answer.exit_code, answer.value["silent"]) == (4, ["host-b"])
    assert world.view().state == "ownerless"
    assert "unknown: what host-b kept of it, which does not answer" in world.view().steps[0].lines


# --- acknowledgements ---------------------------------------------------------------------------------------------


async def drifting(world: World, console: Console) -> str:
    await world.serving()
    await world.b.record("ready", shard=a_shard(2, release="build 2"))
    await wait_for(lambda: len(console.backend.state().drifts) == 2)
    alarm, warning = console.backend.state().drifts
    assert (alarm.severity, warning.severity, alarm.is_open, warning.is_open) == ("alarm", "warn", True, True)
    return alarm.id


async def test_an_acknowledgement_is_kept_in_the_home_with_note_person_and_expiry(
    world: World, console: Console
) -> None:
    drift = await drifting(world, console)
    answer = await console.answer(AcknowledgeDrift(drift=drift, note="rolling over tonight", seconds=3600.0))
    assert answer.exit_code == 0, answer.words
    warning, told = console.backend.state().drifts
    assert warning.is_open
    assert told.acknowledged is not None
    assert (told.acknowledged.by, told.acknowledged.note, told.is_open) == ("alice", "rolling over tonight", False)
    assert told.acknowledged.until_unix_ms - told.acknowledged.at_unix_ms == 3_600_000
    known, words = AcknowledgementReader(world.context.home, "test").read()
    assert (known[drift], words) == (told.acknowledged, "")
    assert AcknowledgementReader(world.context.home, "another").read() == ({}, "")
    assert (await console.answer(ReopenDrift(drift=drift))).exit_code == 0
    assert all(each.is_open for each in console.backend.state().drifts)
    assert (await console.answer(ReopenDrift(drift=drift))).exit_code == 2


@pytest.mark.parametrize(("note", "seconds"), [("", 60.0), ("why", 0.0), ("why", 31 * 86_400.0)])
async def test_an_acknowledgement_without_a_note_or_an_end_is_refused(
    world: World, console: Console, note: str, seconds: float
) -> None:
    drift = await drifting(world, console)
    answer = await console.answer(AcknowledgeDrift(drift=drift, note=note, seconds=seconds))
    assert answer.exit_code == 2
    assert not (world.context.home / FILE).exists()


async def test_an_unreadable_file_opens_every_drift_and_says_so_and_is_not_overwritten(
    world: World, console: Console
) -> None:
    drift = await drifting(world, console)
    (world.context.home / FILE).write_text("{")
    await wait_for(lambda: "cannot be read" in console.backend.state().acknowledgement_words)
    answer = await console.answer(AcknowledgeDrift(drift=drift, note="why", seconds=60.0))
    assert (answer.exit_code, "cannot be read" in answer.words) == (2, True)
    assert (world.context.home / FILE).read_text() == "{"


async def test_an_operation_of_another_context_of_this_home_is_not_this_fleets(world: World, console: Console) -> None:
    world.write()
    folder = world.context.ledger_folder
    operation = msgspec.structs.replace(reopen_and_close(folder), op_id=OpId("load-2-cd"), context="elsewhere")
    create(folder, operation).close()
    await seen(console, "ownerless")
    assert list(console.backend.state().operations) == [OP]
    answer = await console.answer(SettleOperation(operation=OpId("load-2-cd")))
    assert (answer.exit_code, "--context elsewhere" in answer.words) == (2, True)


def reopen_and_close(folder: Any) -> Any:
    writer = reopen(folder, OP)
    writer.close()
    return writer.operation
