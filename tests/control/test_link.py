"""One link against a real websockets server that speaks the contract."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.contract.commands import InspectModel, OperationStatus, TestReplica
from backend.contract.entities import Result
from backend.contract.events import JournalBatch, Measured
from backend.contract.reports import Measurement
from backend.contract.words import AgentAddress, HostId, NodeId, OpId, UnixMs
from backend.control.link import Link
from backend.control.link_ends import AnswerUnknown, LinkSettings, Refusal
from backend.control.link_events import (
    AnyLinkEvent,
    BeatHeard,
    LinkDown,
    LinkRefused,
    LinkUp,
    MeasuredHeard,
    Noted,
    RecordsHeard,
)
from backend.control.pending import Pending
from backend.control.recalling import ask_until_known
from tests.control.factories import a_record, a_shard
from tests.control.stand_in_agent import OK, StandInAgent, agents, wait_for

QUICK = LinkSettings(open=5.0, send=1.0, silence=3.0, floor=0.2, ceiling=0.4, settled=5.0, refused=30.0)


class Watched:
    """A link and everything it told."""

    def __init__(self, agent: StandInAgent, **fields: Any) -> None:
        self.told: list[AnyLinkEvent] = []
        settings = fields.pop("settings", QUICK)
        address = AgentAddress(f"unix:{agent.socket}")
        self.link = Link(agent.host, address, self.told.append, console="c", who="alice", settings=settings, **fields)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


@contextlib.asynccontextmanager
async def running(watched: Watched) -> AsyncIterator[Watched]:
    task = asyncio.create_task(watched.link.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def agent(place: Path) -> StandInAgent:
    return StandInAgent("host-a", place / "a.sock")


def a_test(op_id: str = "t-1") -> TestReplica:
    return TestReplica(op_id=OpId(op_id), node_id=NodeId("tiny-1/0"), prompt="one two")


async def test_a_link_says_hello_takes_the_report_and_follows_the_journal(agent: StandInAgent) -> None:
    await agent.record("ready", shard=a_shard(1))
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(BeatHeard))
        (up,) = watched.of(LinkUp)
        assert up.report.entities.shards == agent.entities.shards
        assert 1900 <= up.clock_offset_ms <= 2000, "the agent's clock is two seconds ahead"
        assert up.round_trip_ms > 0
        assert [record.seq for event in watched.of(RecordsHeard) for record in event.records] == [1]
        await agent.record("stopped", shard=a_shard(1, "stopped"))
        await wait_for(lambda: len(watched.of(RecordsHeard)) == 2)
        assert (await watched.link.ask(a_test(), 10)).value["text"] == "four"


async def test_after_a_lost_connection_the_journal_goes_on_where_it_was(agent: StandInAgent) -> None:
    await agent.record("one")
    async with running(Watched(agent)) as watched:
        async with agents(agent):
            await wait_for(lambda: watched.of(RecordsHeard))
        await wait_for(lambda: watched.of(LinkDown))
        await agent.record("two")
        async with agents(agent):
            await wait_for(lambda: len(watched.of(RecordsHeard)) == 2)
            seqs = [record.seq for event in watched.of(RecordsHeard) for record in event.records]
            assert seqs == [1, 2]
            assert len(watched.of(LinkUp)) == 2


async def test_the_delay_between_tries_has_a_floor_also_after_a_short_success(agent: StandInAgent) -> None:
    settings = LinkSettings(open=5.0, floor=0.3, ceiling=0.3, settled=60.0)
    async with agents(agent), running(Watched(agent, settings=settings, uniform=lambda low, high: 0.0)) as watched:

        def told(kind: type[Any], times: int) -> bool:
            return len(watched.of(kind)) == times

        began = time.monotonic()
        for lived in range(1, 4):
            await wait_for(partial(told, LinkUp, lived))
            agent.connections[0].transport.abort()
            await wait_for(partial(told, LinkDown, lived))
        await wait_for(lambda: len(watched.of(LinkUp)) == 4)
        assert time.monotonic() - began >= 3 * 0.3
        assert agent.connected == 4


async def test_another_host_at_the_address_is_refused_with_both_ids_and_not_tried_again_and_again(
    agent: StandInAgent,
) -> None:
    agent.says_host = "host-x"  # type: ignore[assignment]
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkRefused))
        words = watched.of(LinkRefused)[0].words
        assert "'host-x'" in words
        assert "'host-a'" in words
        assert not watched.of(LinkUp)
        await asyncio.sleep(1.0)
        assert agent.connected == 1


async def test_nobody_there_is_said_in_words_with_the_time_of_the_next_try(agent: StandInAgent) -> None:
    async with running(Watched(agent)) as watched:
        await wait_for(lambda: len(watched.of(LinkDown)) >= 2)
    assert watched.of(LinkDown)[0].words.startswith(f"no agent at {agent.socket}: there is no such socket")
    assert "next try" in watched.of(LinkDown)[0].words


async def test_a_silent_agent_is_unreachable(agent: StandInAgent) -> None:
    agent.beat = 60.0
    settings = LinkSettings(open=5.0, silence=0.5, floor=5.0)
    async with agents(agent), running(Watched(agent, settings=settings)) as watched:
        await wait_for(lambda: watched.of(LinkDown))
        assert watched.of(LinkDown)[0].words.startswith("silent for 0.5 s")


async def test_a_peer_that_never_reads_is_cut_when_the_send_deadline_is_over(agent: StandInAgent) -> None:
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        agent.connections[0].transport.pause_reading()
        big = "x" * 900_000
        began = time.monotonic()

        async def flood(n: int) -> None:
            with pytest.raises(AnswerUnknown):
                await watched.link.ask(InspectModel(op_id=OpId(f"big-{n}"), path=big), 25)

        await asyncio.gather(*(flood(n) for n in range(8)))
        assert time.monotonic() - began < 15, "the deadline is 1 s, the answers' is 25 s"
        await wait_for(lambda: watched.of(LinkDown))


async def test_a_peer_that_closes_while_much_is_still_to_be_sent_to_it_is_dialled_again(agent: StandInAgent) -> None:
    agent.takes_bytes = 100_000
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        with pytest.raises(AnswerUnknown, match="the connection broke before the answer"):
            await watched.link.ask(InspectModel(op_id=OpId("big"), path="x" * 900_000), 25)
        await wait_for(lambda: len(watched.of(LinkUp)) == 2)
        assert watched.of(LinkDown)[0].words.startswith("the agent closed the connection: 1009 (message too big)")
        assert (await watched.link.ask(a_test(), 10)).value["text"] == "four"


async def test_what_this_side_does_not_take_is_said_and_not_that_the_connection_broke(agent: StandInAgent) -> None:
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        await agent.connections[0].send("x" * ((1 << 24) + 1))
        await wait_for(lambda: watched.of(LinkDown))
        assert watched.of(LinkDown)[0].words.startswith("this side closed the connection: 1009 (message too big)")


async def test_an_event_of_an_unknown_type_or_shape_hides_nothing(agent: StandInAgent) -> None:
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(BeatHeard))
        (connection,) = agent.connections
        await agent.send(connection, {"type": "weather", "rain": True})
        await agent.send(connection, {"type": "heartbeat", "head_seq": "many"})
        await connection.send("{not json")
        await connection.send(b"bytes")
        measured = Measured(measurements=(Measurement(node_id=NodeId("tiny-1/0"), observed_unix_ms=UnixMs(1)),))
        await agent.send(connection, measured)
        await wait_for(lambda: watched.of(MeasuredHeard))
        assert [note.kind for note in watched.of(Noted)] == ["unknown.weather"] + ["link.unreadable"] * 3
        assert '"rain":true' in watched.of(Noted)[0].words
        assert not watched.of(LinkDown)


async def test_a_hole_in_the_journal_brings_a_new_report(agent: StandInAgent) -> None:
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(BeatHeard))
        hole = JournalBatch(records=(a_record(7),), cursor="journal-host-a:1:7:00")
        await agent.send(agent.connections[0], hole)
        await wait_for(lambda: len(watched.of(LinkUp)) == 2)
        assert watched.of(LinkDown)[0].words.startswith("journal records 1 to 6 never came")
        assert not watched.of(RecordsHeard)


async def test_a_place_in_the_journal_that_the_agent_does_not_know_is_given_up(agent: StandInAgent) -> None:
    await agent.record("one")
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(RecordsHeard))
        agent.refuses_cursors = True
        agent.connections[0].transport.abort()
        await wait_for(lambda: len(watched.of(LinkUp)) == 3)
        words = [down.words for down in watched.of(LinkDown)]
        assert "does not know this console's place" in words[1]
        await wait_for(lambda: len(watched.of(RecordsHeard)) == 2)


# --- asking -------------------------------------------------------------------------------------------------------


async def test_a_frame_that_is_not_taken_is_a_refusal_with_its_code(agent: StandInAgent) -> None:
    from backend.contract.events import Refused

    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        agent.rules["replica.test"] = lambda command: None
        asking = asyncio.create_task(watched.link.ask(a_test(), 20))
        await wait_for(lambda: agent.commands(TestReplica))
        await agent.send(agent.connections[0], Refused(op_id="t-1", code="E_JOURNAL", words="cannot be written"))
        with pytest.raises(Refusal, match="cannot be written") as caught:
            await asking
        assert caught.value.code == "E_JOURNAL"


async def test_no_answer_is_unknown_and_a_command_that_never_left_says_so(agent: StandInAgent) -> None:
    agent.rules["replica.test"] = lambda command: None
    async with running(Watched(agent)) as watched:
        with pytest.raises(AnswerUnknown) as caught:
            await watched.link.ask(a_test(), 1)
        assert not caught.value.sent
        async with agents(agent):
            await wait_for(lambda: watched.of(LinkUp))
            with pytest.raises(AnswerUnknown, match=r"no answer to replica.test within 0.3 s") as caught:
                await watched.link.ask(a_test(), 0.3)
            assert caught.value.sent


async def test_a_lost_answer_is_asked_for_again_by_its_op_id_and_the_command_is_not_repeated(
    agent: StandInAgent,
) -> None:
    def dies_before_it_answers(command: Any) -> Result | None:
        agent.results[command.op_id] = OK
        agent.connections[0].transport.abort()
        return None

    agent.rules["replica.test"] = dies_before_it_answers
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        assert await ask_until_known(watched.link, a_test(), 20) == OK
        assert len(agent.commands(TestReplica)) == 1


async def test_a_command_that_the_agent_never_took_is_sent_again_under_its_op_id(agent: StandInAgent) -> None:
    def forgets_the_first(command: Any) -> Result | None:
        if len(agent.commands(TestReplica)) > 1:
            return OK
        agent.connections[0].transport.abort()
        return None

    agent.rules["replica.test"] = forgets_the_first
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        assert await ask_until_known(watched.link, a_test(), 20) == OK
        assert [command.op_id for command in agent.commands(TestReplica)] == ["t-1", "t-1"]


async def test_nothing_is_sent_twice_while_the_agent_still_works_on_it(agent: StandInAgent) -> None:
    agent.rules["replica.test"] = lambda command: None
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        with pytest.raises(AnswerUnknown) as caught:
            await ask_until_known(watched.link, a_test(), 0.5)
        assert caught.value.sent
        assert len(agent.commands(TestReplica)) == 1


async def test_a_status_that_is_refused_leaves_the_command_unknown_and_never_rejected(agent: StandInAgent) -> None:
    agent.rules["replica.test"] = lambda command: None
    agent.refuses_status = True
    async with agents(agent), running(Watched(agent)) as watched:
        await wait_for(lambda: watched.of(LinkUp))
        asking = asyncio.create_task(ask_until_known(watched.link, a_test(), 3))
        await wait_for(lambda: agent.commands(TestReplica))
        agent.connections[0].transport.abort()
        with pytest.raises(AnswerUnknown) as caught:
            await asking
        assert caught.value.sent
        assert agent.commands(OperationStatus)
        assert len(agent.commands(TestReplica)) == 1


async def test_a_command_that_stays_unknown_says_why_it_was_not_answered(agent: StandInAgent) -> None:
    agent.rules["replica.test"] = lambda command: None
    async with running(Watched(agent)) as watched:
        async with agents(agent):
            await wait_for(lambda: watched.of(LinkUp))
            asking = asyncio.create_task(ask_until_known(watched.link, a_test(), 2))
            await wait_for(lambda: agent.commands(TestReplica))
        with pytest.raises(AnswerUnknown, match=r"in 2 s: host-a: the connection broke before the answer"):
            await asking
        with pytest.raises(AnswerUnknown, match=r"gave no answer to replica.test in 0.2 s: it is not connected"):
            await ask_until_known(watched.link, a_test("t-2"), 0.2)


def test_an_end_that_nobody_waits_for_any_more_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def lose() -> None:
        pending = Pending(HostId("host-a"))
        with pending.waiting(OpId("t-1")):
            pending.break_off("the connection broke")
            assert not pending.end(OpId("t-1"), OK), "a command has one end"
        assert not pending.end(OpId("t-1"), OK)

    asyncio.run(lose())
    gc.collect()
    assert not caplog.records, "asyncio would say that an exception was never retrieved"
