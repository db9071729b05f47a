"""The client against peers that break the contract, go silent or flood: bounded, told in words, and never stuck."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from random import Random

import msgspec
import pytest

from backend.contract.p4.addresses import P4Address
from backend.contract.p4.content_types import INSPECT, OUTPUT, SNAPSHOT
from backend.contract.p4.events import P4Agent, P4Event, P4Node, P4Outer, decode_event, encode_event
from backend.contract.p4.framing import FINISH, frame_body
from backend.contract.p4.hops import Data, Query, QueryResult, Receipt, ReceiptAck, ReceiptStatus
from backend.engines.p4.asked import Asked, Stream
from backend.engines.p4.client import LaneName, P4Client
from backend.engines.p4.connection import P4Connection, P4Settings
from backend.engines.p4.door import NothingSent
from backend.engines.p4.link import P4Link
from backend.engines.p4.outcomes import NotSent, Unknown
from backend.engines.p4.outlook import Outlook
from backend.engines.p4.place import P4Place
from backend.engines.p4.record import RecordedLoad, RecordedStage
from backend.engines.p4.slots import SlotCount
from backend.engines.p4.snapshot import Snapshot
from backend.engines.p4.surroundings import Lookout
from tests.engines.p4.scripted import ADVERTISED, SECONDS, Caller, ScriptedAgent, scripted

DIRECT = {"inspection": ("direct",), "control": ("direct",)}
SNAPSHOT_JSON = b'{"schema":1,"generated_at_unix_ms":5,"nodes":[]}'


def answer_to(event: P4Event, number: int = 1) -> P4Event:
    """The snapshot that answers an INSPECT."""
    return P4Event(
        event_id=f"{ADVERTISED}:agent:{number}",
        correlation_id=event.correlation_id,
        causation_id=event.event_id,
        source=P4Agent(ADVERTISED),
        target=event.return_route,
        return_route=event.return_route,
        class_="telemetry",
        sequence=number,
        payload_content_type=SNAPSHOT,
        payload=SNAPSHOT_JSON,
    )


async def answer(caller: Caller) -> None:
    """Answer INSPECTs in direct mode until FINISH."""
    number = 0
    while body := await caller.body():
        number += 1
        caller.write(frame_body(encode_event(answer_to(decode_event(body), number))))
    caller.write(FINISH)


async def inspect_later(client: P4Client, lane: LaneName) -> Asked | NotSent:
    """Send an INSPECT on this lane, and do not wait for its answer."""
    return await client.ask(
        lane,
        target=P4Agent(ADVERTISED),
        content_type=INSPECT,
        payload=b"{}",
        expects={SNAPSHOT},
        seconds=SECONDS,
    )


async def test_an_agent_that_knows_no_hop_mode_is_spoken_to_directly(tmp_path: Path) -> None:
    async def close_on_hello(caller: Caller) -> None:
        await caller.body()

    async with scripted(tmp_path, close_on_hello, answer) as (client, agent):
        assert isinstance(await client.inspect(SECONDS), Snapshot)
        assert isinstance(await client.inspect(SECONDS), Snapshot)
        assert client.lane("inspection").mode == "direct"
        assert agent.accepted == 2
    assert json.loads((tmp_path / "slots.json").read_text()) == {
        "format": 1,
        "life": "life",
        "spent": 1,
        "open": {},
    }


async def test_a_silent_hello_is_waited_for_and_no_other_connection_is_dialled(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def late(caller: Caller) -> None:
        await go.wait()
        await caller.greet()
        data, event = await caller.data()
        caller.say(Receipt(data.attempt, data.digest, ReceiptStatus.ACCEPTED_EXACT))
        caller.say(Data(1, encode_event(answer_to(event))))
        await caller.until_finish()

    async with scripted(tmp_path, late) as (client, agent):
        said = 0
        while said < 3:
            early = await client.inspect(0.02)
            assert isinstance(early, NotSent)
            said += "no other is dialled" in early.words  # before that: it is still being dialled
        go.set()
        assert isinstance(await client.inspect(SECONDS), Snapshot)
        assert agent.accepted == 1


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ((1 << 31).to_bytes(4, "little"), "at most 67108864 are read"),
        (frame_body(b"P4E3 and nothing of the kind"), "the event says"),
        (frame_body(b"GET / HTTP/1.1"), "are no event"),
        (FINISH + b"more", "bytes follow FINISH"),
        (b"\x40\x00\x00\x00half", "inside a message, 8 bytes into it"),
        (b"", "without FINISH"),
        (FINISH, "said FINISH"),
    ],
)
async def test_what_breaks_a_connection_is_said_and_leaves_the_request_unknown(
    tmp_path: Path, sent: bytes, words: str
) -> None:
    async def spoil(caller: Caller) -> None:
        await caller.event()
        caller.write(sent)

    async with scripted(tmp_path, spoil, modes=DIRECT) as (client, agent):
        lost = await client.inspect(SECONDS)
        assert isinstance(lost, Unknown)
        assert lost.cause == "closed"
        assert words in lost.words
        assert isinstance(await client.inspect(SECONDS), NotSent)
        assert agent.accepted == 1


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"P4H1\x02\x00\x00\x00\x03", "version 2"),
        (b"P4E3 in hop mode", "every one must be a hop frame"),
        (b"P4H1\x01\x00\x00\x00\x03" + bytes([1, *([0] * 7)]) + bytes(32) + b"\x01\x00\x00\x00x", "sha256"),
    ],
)
async def test_a_hop_connection_is_broken_by_a_frame_that_cannot_be(tmp_path: Path, sent: bytes, words: str) -> None:
    async def spoil(caller: Caller) -> None:
        await caller.greet()
        await caller.data()
        caller.write(frame_body(sent))
        assert await caller.body() == b""  # FINISH, although it is over

    async with scripted(tmp_path, spoil) as (client, agent):
        lost = await client.inspect(SECONDS)
        assert isinstance(lost, Unknown)
        assert words in lost.words
    assert agent.faults == []


async def test_spoilt_streams_end_in_words_and_nothing_else(tmp_path: Path) -> None:
    random = Random(4)

    async def spoil(caller: Caller) -> None:
        event = await caller.event()
        stream = bytearray(frame_body(encode_event(answer_to(event))) * 2 + FINISH)
        for _ in range(random.randint(1, 6)):
            stream[random.randrange(len(stream))] = random.randrange(256)
        caller.write(bytes(stream[: random.randrange(len(stream) + 1)]))

    for number in range(60):
        async with scripted(tmp_path / str(number), spoil, modes=DIRECT) as (client, _):
            outcome = await client.inspect(SECONDS)
            assert isinstance(outcome, Snapshot | Unknown), outcome
            assert isinstance(outcome, Snapshot) or outcome.cause in ("closed", "answer")


async def test_an_echo_of_another_generation_is_no_answer_to_hello(tmp_path: Path) -> None:
    async def mistake(caller: Caller) -> None:
        await caller.greet(accepted_connection_generation=9)
        await caller.until_finish()

    async with scripted(tmp_path, mistake) as (client, _):
        refused = await client.inspect(SECONDS)
        assert isinstance(refused, NotSent)
        assert "accepted connection generation 9, and we are 1" in refused.words


async def test_data_is_answered_with_receipts_and_queries_with_what_is_pinned(tmp_path: Path) -> None:
    heard: list[object] = []

    async def deliver(caller: Caller) -> None:
        await caller.greet()
        _, event = await caller.data()
        good, other = Data(1, encode_event(answer_to(event))), Data(1, encode_event(answer_to(event, 2)))
        elsewhere = msgspec.structs.replace(event.return_route, channel="elsewhere" * 1000)
        strange = msgspec.structs.replace(answer_to(event), target=elsewhere, return_route=elsewhere)
        name, number = str(ADVERTISED), 1
        for frame in (
            Data(2, b"no event"),
            Data(3, encode_event(strange)),
            good,
            good,
            other,
            Query(name, number, 1, good.digest),
            Query(name, number, 2, Data(2, b"no event").digest),
            Query(name, number, 8, good.digest),
            Query("somebody else", number, 1, good.digest),
        ):
            caller.say(frame)
            heard.append(await caller.frame())
        caller.say(ReceiptAck(name, number, 1, good.digest))
        caller.say(Query(name, number, 1, good.digest))
        heard.append(await caller.frame())
        done.set()
        await caller.until_finish()

    done = asyncio.Event()
    async with scripted(tmp_path, deliver) as (client, agent):
        assert isinstance(await client.inspect(SECONDS), Snapshot)
        async with asyncio.timeout(SECONDS):
            await done.wait()
    assert agent.faults == []
    said = [(type(frame), frame.status) for frame in heard if isinstance(frame, Receipt | QueryResult)]
    accepted, rejected = ReceiptStatus.ACCEPTED_EXACT, ReceiptStatus.REJECTED
    assert said == [
        (Receipt, rejected),
        (Receipt, rejected),
        (Receipt, accepted),
        (Receipt, accepted),
        (Receipt, ReceiptStatus.CONFLICT),
        (QueryResult, accepted),
        (QueryResult, rejected),
        (QueryResult, ReceiptStatus.UNKNOWN),
        (QueryResult, ReceiptStatus.UNKNOWN),
        (QueryResult, ReceiptStatus.UNKNOWN),
    ]


async def test_no_more_leaves_than_both_sides_allow_without_a_receipt(tmp_path: Path) -> None:
    async def hold(caller: Caller) -> None:
        await caller.greet(max_outstanding=3)
        await caller.until_finish()

    async with scripted(tmp_path, hold) as (client, _):
        asked = [await inspect_later(client, "inspection") for _ in range(4)]
        assert [type(each) for each in asked] == [Asked, Asked, Asked, NotSent]
        assert isinstance(asked[3], NotSent)
        assert "3 events wait for a receipt" in asked[3].words


async def test_a_peer_that_does_not_read_is_not_written_to_without_end(tmp_path: Path) -> None:
    stop = asyncio.Event()

    async def deaf(caller: Caller) -> None:
        await stop.wait()
        await caller.until_finish()

    node = P4Node(ADVERTISED, "s0", 7)
    async with scripted(tmp_path, deaf, max_unsent_bytes=1 << 20) as (client, _):
        prompt = {"prompt": "x" * (1 << 20)}
        sent = 0
        while isinstance(stream := await client.submit(node, prompt), Stream):
            stream.leave()
            sent += 1
            assert sent < 40
        assert "wait for a p4 agent that does not read" in stream.words
        stop.set()


async def test_a_flood_waits_for_its_reader_and_no_further_than_its_room(tmp_path: Path) -> None:
    total = 3000

    async def flood(caller: Caller) -> None:
        event = await caller.event()
        assert isinstance(event.target, P4Node)
        for number in range(total):
            output = P4Event(
                event_id=f"s3:{number}",
                correlation_id=event.correlation_id,
                causation_id=f"s2:{number}",
                source=P4Node(ADVERTISED, "s3", 7),
                target=event.return_route,
                return_route=event.return_route,
                class_="output",
                sequence=number,
                payload_content_type=OUTPUT,
                payload=b"x" * 1000,
            )
            caller.write(frame_body(encode_event(output)))
            await caller.writer.drain()
        await caller.until_finish()

    async with scripted(tmp_path, flood, stream_events=10) as (client, _):
        stream = await client.submit(P4Node(ADVERTISED, "s0", 7), {})
        assert isinstance(stream, Stream)
        async with stream:
            for number in range(total):
                event = await stream.next(SECONDS)
                assert isinstance(event, P4Event), event
                assert event.sequence == number
                assert len(stream) <= 10


async def test_a_stream_that_is_left_lets_its_connection_go_on(tmp_path: Path) -> None:
    async def flood(caller: Caller) -> None:
        event = await caller.event()
        for number in range(50):
            output = msgspec.structs.replace(
                answer_to(event, number + 1),
                source=P4Node(ADVERTISED, "s3", 7),
                causation_id=None,
                payload_content_type=OUTPUT,
            )
            caller.write(frame_body(encode_event(output)))
        await answer(caller)

    async with scripted(tmp_path, flood, stream_events=2) as (client, _):
        stream = await client.submit(P4Node(ADVERTISED, "s0", 7), {})
        assert isinstance(stream, Stream)
        assert isinstance(await stream.next(SECONDS), P4Event)
        stream.leave()
        asked = await inspect_later(client, "submission")
        assert isinstance(asked, Asked)
        assert not isinstance(await asked.outcome(SECONDS), Unknown)
        assert client.lane("submission").questions.unclaimed >= 40


async def test_an_answer_with_another_cause_is_not_taken_for_ours(tmp_path: Path) -> None:
    async def mistake(caller: Caller) -> None:
        event = await caller.event()
        wrong = (
            msgspec.structs.replace(answer_to(event), causation_id="somebody:1"),
            msgspec.structs.replace(answer_to(event), correlation_id="somebody:1"),
            msgspec.structs.replace(
                answer_to(event),
                target=P4Outer(ADVERTISED, "somebody", 1),
                return_route=P4Outer(ADVERTISED, "somebody", 1),
            ),
        )
        for each in (*wrong, msgspec.structs.replace(answer_to(event, 2), payload=b'{"schema":1}')):
            caller.write(frame_body(encode_event(each)))
        await caller.until_finish()

    async with scripted(tmp_path, mistake, modes=DIRECT) as (client, _):
        unusable = await client.inspect(SECONDS)
        assert isinstance(unusable, Unknown)
        assert unusable.cause == "answer"
        assert "no list of nodes" in unusable.words
        lane = client.lane("inspection")
        assert lane.questions.unclaimed == 2
        assert lane.connection is not None
        assert lane.connection.counters.ignored == 1


async def test_the_advertised_address_stands_in_every_envelope_whatever_is_dialled(tmp_path: Path) -> None:
    seen: list[P4Event] = []

    async def note(caller: Caller) -> None:
        event = await caller.event()
        seen.append(event)
        caller.write(frame_body(encode_event(answer_to(event))))
        await caller.until_finish()

    for _ in range(2):
        async with scripted(tmp_path, note, modes=DIRECT) as (client, _):
            assert isinstance(await client.inspect(SECONDS), Snapshot)
    first, second = seen
    assert first.target == P4Agent(ADVERTISED)
    assert first.source == first.return_route
    assert first.return_route.ingress_agent == ADVERTISED
    assert first.return_route.channel != second.return_route.channel
    assert first.event_id == f"{first.return_route.channel}:1"


async def test_nobody_listening_costs_no_slot_and_is_tried_again_later(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        slots = SlotCount(tmp_path / "slots.json", "life")
        async with P4Client(bound.getsockname(), ADVERTISED, slots) as client:
            first = await client.inspect(SECONDS)
            assert isinstance(first, NotSent)
            assert "Connect call failed" in first.words or "refused" in first.words
            second = await client.inspect(SECONDS)
            assert isinstance(second, NotSent)
            assert "not dialled for another 0." in second.words
        assert (slots.spent, slots.open) == (0, 0)
        slots.close()


@pytest.mark.parametrize("host", ["gpu..b", "x" * 64, "gpu\0b"], ids=repr)
async def test_a_name_that_cannot_be_looked_up_is_told_and_costs_no_slot(tmp_path: Path, host: str) -> None:
    slots = SlotCount(tmp_path / "slots.json", "life")
    async with P4Client((host, 52001), ADVERTISED, slots) as client:
        for _ in range(2):
            told = await client.inspect(SECONDS)
            assert isinstance(told, NotSent)
            assert "is no host name" in told.words
    assert (slots.open, slots.spent) == (0, 0)
    slots.close()


async def test_nothing_is_dialled_behind_a_close(tmp_path: Path) -> None:
    """Its caller waits until the cost of the connection before is written down, and meanwhile the client is left."""
    at_end, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class SlowSlots(SlotCount):
        def end(self, channel: str, *, returned: bool) -> None:
            loop.call_soon_threadsafe(at_end.set)
            assert go_on.wait(SECONDS)
            super().end(channel, returned=returned)

    async def never_say_finish(caller: Caller) -> None:
        await caller.reader.read()

    agent = ScriptedAgent(never_say_finish)
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    slots = SlowSlots(tmp_path / "slots.json", "life")
    dial, hasty = server.sockets[0].getsockname(), P4Settings(finish_seconds=0.0)
    client = P4Client(dial, ADVERTISED, slots, settings=hasty, modes={"inspection": ("direct",)})
    lane = client.lane("inspection")

    async def leave() -> None:
        await at_end.wait()
        leaving = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        go_on.set()
        await leaving

    left = asyncio.create_task(leave())
    connection = await lane.ready(SECONDS)
    assert isinstance(connection, P4Connection)
    await connection.finish()
    told = await lane.ready(SECONDS)
    await left
    assert isinstance(told, NotSent)
    assert "has left the p4 agent" in told.words
    assert (agent.accepted, slots.open) == (1, 0)
    slots.close()
    server.close()


def a_link(port: int, home: Path) -> P4Link:
    """The door of one host's p4 agent at this port."""
    address = P4Address(f"tcp://127.0.0.1:{port}")
    place = P4Place(agent=address, advertise=address, binary="/stage")
    return P4Link(place, home, Lookout(place))


async def test_two_that_ask_at_once_share_one_slot_count(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        link = a_link(held.getsockname()[1], tmp_path)
        told = await asyncio.gather(*(link.inspect() for _ in range(3)), return_exceptions=True)
        await link.leave()
    assert [isinstance(each, NothingSent) for each in told] == [True] * 3
    assert not [each for each in told if "another process" in str(each)], "it was our own other caller"


async def test_an_output_that_cannot_be_read_is_an_end_of_the_prompt_and_no_fault(tmp_path: Path) -> None:
    async def garble(caller: Caller) -> None:
        asked = await caller.event()
        output = msgspec.structs.replace(answer_to(asked), payload_content_type=OUTPUT, payload=b"\xff{")
        caller.write(frame_body(encode_event(output)))
        await caller.until_finish()

    agent = ScriptedAgent(garble)
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    link = a_link(server.sockets[0].getsockname()[1], tmp_path)
    ring = RecordedLoad("m", 7, (RecordedStage(ADVERTISED, "s0", 7),))
    with pytest.raises(ConnectionError, match=r"breaks p4's contract: the payload of .* is not UTF-8"):
        await link.complete(ring, "s", "hi", 2, SECONDS)
    unnamed = RecordedLoad("m", 7, (RecordedStage("nowhere", "s0", 7), RecordedStage(ADVERTISED, "s1", 7)))
    assert set(await link.open_session(unnamed, "s", SECONDS)) == {0, 1}
    await link.leave()
    server.close()


async def test_whoever_waits_for_a_look_hears_of_a_fault_and_silence_ends_no_wait() -> None:
    answers: list[Exception] = [TimeoutError("silent"), RuntimeError("a fault of ours")]

    async def ask() -> Snapshot:
        raise answers.pop(0) if len(answers) > 1 else answers[0]

    outlook = Outlook(ask, lambda: 0.0, 0.0)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await asyncio.wait_for(outlook.next(), SECONDS)


async def test_a_refused_unload_does_not_say_that_nothing_is_there(tmp_path: Path) -> None:
    async def refuse(caller: Caller) -> None:
        await caller.greet()
        data, _ = await caller.data()
        caller.say(Receipt(data.attempt, data.digest, ReceiptStatus.REJECTED, "hop receipt store full"))
        await caller.until_finish()

    agent = ScriptedAgent(refuse)
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    link = a_link(server.sockets[0].getsockname()[1], tmp_path)
    answer = await link.unload("s0", 7, SECONDS)
    assert not answer.is_absent
    assert answer.words == "rejected, resource unknown: the p4 agent's broker refused it: hop receipt store full"
    await link.leave()
    server.close()


async def test_who_asks_while_it_is_being_left_is_answered_on_a_connection_of_its_own(tmp_path: Path) -> None:
    """As the host's facts do in a recovery, whose steps leave the p4 agent and dial it anew."""
    leaving, go_on = asyncio.Event(), asyncio.Event()

    async def answer_one(caller: Caller) -> None:
        await caller.greet()
        data, event = await caller.data()
        caller.say(Receipt(data.attempt, data.digest, ReceiptStatus.ACCEPTED_EXACT))
        caller.say(Data(1, encode_event(answer_to(event))))

    async def finish_late(caller: Caller) -> None:
        await answer_one(caller)
        while await caller.body():
            pass
        leaving.set()
        await go_on.wait()
        caller.write(FINISH)

    agent = ScriptedAgent(finish_late, answer_one)
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    link = a_link(server.sockets[0].getsockname()[1], tmp_path)
    await link.inspect()
    left = asyncio.create_task(link.leave())
    await leaving.wait()
    asked = asyncio.create_task(link.inspect())
    await asyncio.sleep(0)
    go_on.set()
    await left
    assert isinstance(await asked, Snapshot)
    words = ""
    while "not dialled for another" not in words:  # that connection ended as well
        with pytest.raises(OSError) as told:  # noqa: PT011  what it says first is not asked here
            await link.inspect()
        words = str(told.value)
    assert "is kept by this process no more" not in words, "its slots are counted on"
    await link.leave()
    server.close()
