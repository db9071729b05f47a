"""The client against a simulated p4 agent: what it asks, what it is told, and what silence is called."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.contract.p4.addresses import P4Address
from backend.contract.p4.content_types import OUTPUT, RELEASE_RECEIPT, SESSION, SESSION_READY
from backend.contract.p4.events import P4Agent, P4Event, P4Node
from backend.contract.p4.hops import ReceiptStatus
from backend.contract.p4.lifecycle import NodeResult
from backend.engines.p4.asked import Asked, Stream
from backend.engines.p4.client import P4Client
from backend.engines.p4.outcomes import NotSent, Refused, Unknown
from backend.engines.p4.payloads import json_payload
from backend.engines.p4.slots import Mode, SlotCount
from backend.engines.p4.snapshot import Snapshot
from tests.p4.client_worlds import SECONDS, a_client, end_of, node_load, node_unload, stages_on
from tests.p4.peer import PlannedStage
from tests.p4.ring import SimulatedHost, SimulatedRing, simulated_ring

HOP: tuple[Mode, ...] = ("hop",)
DIRECT: tuple[Mode, ...] = ("direct",)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[SimulatedRing]:
    with simulated_ring(tmp_path, 1) as started:
        yield started


async def ask_once(client: P4Client, stages: list[PlannedStage], tokens: int = 3) -> list[str]:
    """A session over all stages and one prompt; the texts that came back before the release."""
    sent = [{"agent": stage.agent, "node": stage.node, "generation": stage.generation} for stage in stages]
    generation = stages[0].load_generation
    for index, stage in enumerate(stages):
        body = {"load_generation": generation, "session_id": "s", "stages": sent, "stage_index": index}
        ready = await client.session(end_of(stage), body, SECONDS)
        assert isinstance(ready, dict), ready
    prompt = {"load_generation": generation, "session_id": "s", "request_id": "r", "prompt": "hi", "options": ""}
    texts: list[str] = []
    stream = await client.submit(end_of(stages[0]), {**prompt, "max_tokens": tokens})
    assert isinstance(stream, Stream), stream
    async with stream:
        while True:
            event = await stream.next(SECONDS)
            assert isinstance(event, P4Event), event
            if event.payload_content_type == OUTPUT:
                texts.append(json_payload(event)["text"])
            elif event.payload_content_type == RELEASE_RECEIPT:
                return texts


@pytest.mark.parametrize("modes", [HOP, DIRECT], ids=["hop", "direct"])
async def test_a_ring_is_loaded_asked_and_unloaded(
    ring: SimulatedRing, tmp_path: Path, modes: tuple[Mode, ...]
) -> None:
    stages = stages_on(ring.hosts)
    async with a_client(ring[0], tmp_path, modes={"inspection": modes, "control": modes}) as client:
        for stage in stages:
            result = await client.lifecycle(node_load(stage), seconds=SECONDS)
            assert isinstance(result, NodeResult), result
            assert (result.status, result.resource_state) == ("succeeded", "present")
            assert json.loads(result.body)["load_generation"] == stage.load_generation
        assert len(await ask_once(client, stages)) == 3
        seen = await client.inspect(SECONDS)
        assert isinstance(seen, Snapshot), seen
        assert seen.tree["transport"]["receipts"]["records"] <= 1  # only this INSPECT's own
        assert [(node.node_id, node.generation) for node in seen.nodes] == [
            (stage.node, stage.generation) for stage in stages
        ]
        for stage in stages:
            result = await client.lifecycle(node_unload(stage), seconds=SECONDS)
            assert isinstance(result, NodeResult), result
            assert (result.status, result.resource_state) == ("succeeded", "absent")
    said = ring[0].until("every slot is free", lambda said: said["slots"]["used"] == 0)
    assert said["slots"]["leaked"] == 0
    assert said["failures"] == {}


async def test_a_slow_load_is_unknown_until_its_answer_is_heard_after_all(ring: SimulatedRing, tmp_path: Path) -> None:
    stage = stages_on(ring.hosts)[0]
    ring[0].set(load_seconds=1)
    async with a_client(ring[0], tmp_path) as client:
        asked = await client.begin_lifecycle(node_load(stage))
        assert isinstance(asked, Asked), asked
        ring[0].until("the node is loading", lambda said: stage.node in said["nodes"])
        early = await client.lifecycle_result(asked, 0.1)
        assert isinstance(early, Unknown)
        assert (early.cause, early.receipt) == ("silence", ReceiptStatus.ACCEPTED_EXACT)
        assert "says nothing of its execution" in early.words
        late = await client.lifecycle_result(asked, SECONDS)
        assert isinstance(late, NodeResult), late
        assert late.status == "succeeded"
        assert await client.lifecycle_result(asked, SECONDS) == late
    assert ring[0].ask()["accepted"] == 1


async def test_an_event_to_a_loading_node_freezes_its_own_lane_and_no_other(
    ring: SimulatedRing, tmp_path: Path
) -> None:
    stage = stages_on(ring.hosts)[0]
    ring[0].set(load_seconds=600)
    async with a_client(ring[0], tmp_path, finish_seconds=0.2) as client:
        loading = await client.begin_lifecycle(node_load(stage))
        assert isinstance(loading, Asked)
        ring[0].until("the node is loading", lambda said: stage.node in said["nodes"])
        session = await client.ask(
            "submission",
            target=end_of(stage),
            content_type=SESSION,
            payload=b"{}",
            expects={SESSION_READY},
            seconds=SECONDS,
        )
        assert isinstance(session, Asked), session
        frozen = await session.outcome(0.1)
        assert isinstance(frozen, Unknown)
        assert frozen.cause == "silence"
        for _ in range(5):
            seen = await client.inspect(SECONDS)
            assert isinstance(seen, Snapshot), seen
            assert seen.nodes[0].lifecycle_state == "loading"
        assert ring[0].ask()["nodes"][stage.node]["queued"] == 0


async def test_an_unknown_node_is_told_in_hop_mode_and_is_a_close_in_direct_mode(
    ring: SimulatedRing, tmp_path: Path
) -> None:
    nobody = P4Node(P4Address(ring[0].address), "s9", 7)
    async with a_client(ring[0], tmp_path, modes={"submission": HOP}) as client:
        refused = await client.session(nobody, {}, SECONDS)
        assert isinstance(refused, Refused), refused
        assert refused.by == "receipt"
        assert "UnknownNode" in refused.words
        assert isinstance(await client.session(nobody, {}, SECONDS), Refused)
    async with a_client(ring[0], tmp_path) as client:
        closed = await client.session(nobody, {}, SECONDS)
        assert isinstance(closed, Unknown), closed
        assert closed.cause == "closed"
        assert "when it refuses an event" in closed.words
        again = await client.session(nobody, {}, SECONDS)
        assert isinstance(again, NotSent)
        assert "not dialled for another" in again.words


async def test_what_refused_events_hold_is_counted_as_spent(ring: SimulatedRing, tmp_path: Path) -> None:
    nobody = P4Node(P4Address(ring[0].address), "s9", 7)
    async with a_client(ring[0], tmp_path, modes={"submission": HOP}) as client:
        assert isinstance(await client.session(nobody, {}, SECONDS), Refused)
    async with a_client(ring[0], tmp_path, modes={"submission": DIRECT}) as client:
        assert isinstance(await client.session(nobody, {}, SECONDS), Unknown)
    said = ring[0].until("the connections are over", lambda said: said["connections"] == 0)
    assert said["slots"]["used"] == 2
    assert json.loads((tmp_path / "slots.json").read_text())["spent"] == 2


@pytest.mark.parametrize(("lost", "found"), [("unsent", "accepted_exact"), ("forgotten", "unknown")])
async def test_a_lost_receipt_is_asked_for(ring: SimulatedRing, tmp_path: Path, lost: str, found: str) -> None:
    ring[0].set(lost_receipts=lost, silence="replies")
    async with a_client(ring[0], tmp_path) as client:
        asked = await client.begin_lifecycle(node_load(stages_on(ring.hosts)[0]))
        assert isinstance(asked, Asked), asked
        silent = await client.lifecycle_result(asked, 0.1)
        assert isinstance(silent, Unknown)
        assert silent.receipt is None
        assert "no receipt came either" in silent.words
        assert await client.query(asked, SECONDS) is ReceiptStatus(found)
        assert asked.receipt is ReceiptStatus(found)


async def test_a_direct_connection_has_no_receipts_to_ask_for(ring: SimulatedRing, tmp_path: Path) -> None:
    ring[0].set(silence="replies")
    async with a_client(ring[0], tmp_path, modes={"control": DIRECT}) as client:
        asked = await client.begin_lifecycle(node_load(stages_on(ring.hosts)[0]))
        assert isinstance(asked, Asked), asked
        assert isinstance(await client.query(asked, SECONDS), NotSent)


@pytest.mark.faults("a p4 agent that takes connections and says nothing costs one connection")
@pytest.mark.parametrize("modes", [HOP, DIRECT], ids=["hop", "direct"])
async def test_an_agent_that_never_answers_costs_one_bounded_connection(
    ring: SimulatedRing, tmp_path: Path, modes: tuple[Mode, ...]
) -> None:
    ring[0].set(silence="all")
    async with a_client(ring[0], tmp_path, modes={"inspection": modes}, finish_seconds=0.2, max_asked=8) as client:
        for _ in range(20):
            assert isinstance(await client.inspect(0.01), Unknown | NotSent)
        assert len(client.lane("inspection").questions) <= 8
        together = await asyncio.gather(*(client.inspect(0.2) for _ in range(40)))
        assert sum(isinstance(outcome, NotSent) for outcome in together) >= (32 if modes == DIRECT else 40)
    said = ring[0].ask()
    assert said["accepted"] == 1


async def test_a_refusal_of_the_agent_itself_is_told(ring: SimulatedRing, tmp_path: Path) -> None:
    async with a_client(ring[0], tmp_path) as client:
        asked = await client.ask(
            "control",
            target=P4Agent(P4Address(ring[0].address)),
            content_type="text/plain",
            payload=b"?",
            expects=set(),
            seconds=SECONDS,
        )
        assert isinstance(asked, Asked)
        refused = await asked.outcome(SECONDS)
        assert isinstance(refused, Refused)
        assert refused.by == "agent"
        assert "unsupported agent control content type" in refused.words


async def test_a_rejected_load_is_a_result_and_names_what_stands(ring: SimulatedRing, tmp_path: Path) -> None:
    stage = stages_on(ring.hosts)[0]
    async with a_client(ring[0], tmp_path) as client:
        assert isinstance(await client.lifecycle(node_load(stage), seconds=SECONDS), NodeResult)
        again = await client.lifecycle(node_load(stage), seconds=SECONDS)
        assert isinstance(again, NodeResult), again
        assert again.status == "rejected"
        assert again.first_error is not None
        assert "already exists" in again.first_error


@pytest.mark.faults("the p4 agent dies under a request: unknown, and a fresh channel after the back-off")
async def test_an_agent_that_dies_leaves_what_was_asked_unknown(ring: SimulatedRing, tmp_path: Path) -> None:
    ring[0].set(load_seconds=60)
    async with a_client(ring[0], tmp_path) as client:
        asked = await client.begin_lifecycle(node_load(stages_on(ring.hosts)[0]))
        assert isinstance(asked, Asked)
        first = asked.request.return_route
        ring[0].end(signal.SIGKILL)
        lost = await client.lifecycle_result(asked, SECONDS)
        assert isinstance(lost, Unknown)
        assert lost.cause == "closed"
        assert "inspect to see" in lost.words
        early = await client.inspect(1)
        assert isinstance(early, NotSent)
        ring.restart(0)
        again = await client.begin_lifecycle(node_load(stages_on(ring.hosts)[0]))
        assert isinstance(again, NotSent)
        assert "not dialled for another" in again.words
    async with a_client(ring[0], tmp_path, life="second") as client:
        asked = await client.begin_lifecycle(node_load(stages_on(ring.hosts)[0]))
        assert isinstance(asked, Asked)
        assert asked.request.return_route.channel != first.channel


@pytest.mark.faults("a cancelled caller: FINISH is said all the same, and no slot is lost")
@pytest.mark.parametrize("moment", ["dialling", "asking", "leaving"])
async def test_a_cancelled_caller_has_said_finish(ring: SimulatedRing, tmp_path: Path, moment: str) -> None:
    async def work() -> None:
        async with a_client(ring[0], tmp_path, modes={"control": DIRECT}) as client:
            if moment == "dialling":
                asyncio.get_running_loop().call_soon(own.cancel)
            ring[0].set(load_seconds=60)
            asked = await client.begin_lifecycle(node_load(stages_on(ring.hosts)[0]))
            assert isinstance(asked, Asked)
            asyncio.get_running_loop().call_later(0.05, own.cancel)
            if moment == "asking":
                await client.lifecycle_result(asked, SECONDS)
            await client.close()
            await asyncio.sleep(SECONDS)

    own = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await own
    said = ring[0].until("the slot is free", lambda said: said["slots"]["used"] == 0)
    assert said["slots"]["leaked"] == 0


async def test_a_connection_that_is_just_coming_up_is_left_with_finish_too(ring: SimulatedRing, tmp_path: Path) -> None:
    slots = SlotCount(tmp_path / "slots.json", "first")
    client = P4Client(ring[0].dial, P4Address(ring[0].address), slots, modes={"inspection": DIRECT})
    early = await client.inspect(0)
    assert isinstance(early, NotSent)
    assert "no connection" in early.words
    await client.close()
    assert (slots.spent, slots.open) == (0, 0)
    slots.close()
    said = ring[0].until("it was accepted and left", lambda said: said["accepted"] == 1 and not said["slots"]["used"])
    assert said["slots"]["leaked"] == 0


def test_a_loop_that_is_torn_down_has_said_finish(ring: SimulatedRing, tmp_path: Path) -> None:
    async def leave_by_exception() -> None:
        async with a_client(ring[0], tmp_path, modes={"control": DIRECT}) as client:
            assert isinstance(await client.begin_lifecycle(node_load(stages_on(ring.hosts)[0])), Asked)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(leave_by_exception())
    said = ring[0].until("the slot is free", lambda said: said["slots"]["used"] == 0)
    assert said["slots"]["leaked"] == 0


@pytest.mark.faults("slots nearly spent: nothing is dialled, and the finding says why")
async def test_from_the_critical_count_on_nothing_is_dialled(ring: SimulatedRing, tmp_path: Path) -> None:
    (tmp_path / "slots.json").write_text('{"format":1,"life":"first","spent":190,"open":{"a":"direct","b":"hop"}}')
    async with a_client(ring[0], tmp_path) as client:
        warning = client.finding()
        assert warning is not None
        assert not warning.is_refusal
        assert isinstance(await client.inspect(SECONDS), Snapshot)
        refused = await client.lifecycle(node_load(stages_on(ring.hosts)[0]), seconds=SECONDS)
        assert isinstance(refused, NotSent)
        assert refused.finding is not None
        assert refused.finding.found.startswith("192: 191 spent for good and 1 open")
        assert "256" in refused.finding.expected
    assert ring[0].ask()["accepted"] == 1


@pytest.mark.faults("1 000 connect and leave cycles lose no slot")
@pytest.mark.thorough
@pytest.mark.parametrize("modes", [HOP, DIRECT], ids=["hop", "direct"])
async def test_a_thousand_connect_and_leave_cycles_lose_no_slot(
    ring: SimulatedRing, tmp_path: Path, modes: tuple[Mode, ...]
) -> None:
    await _come_and_go(ring, tmp_path, modes, 1000)


@pytest.mark.parametrize("modes", [HOP, DIRECT], ids=["hop", "direct"])
async def test_more_connect_and_leave_cycles_than_a_tenth_of_the_slots(
    ring: SimulatedRing, tmp_path: Path, modes: tuple[Mode, ...]
) -> None:
    ring[0].set(slots=3)
    await _come_and_go(ring, tmp_path, modes, 30)


async def _come_and_go(ring: SimulatedRing, home: Path, modes: tuple[Mode, ...], times: int) -> None:
    slots = SlotCount(home / "slots.json", "first")
    try:
        for _ in range(times):
            async with P4Client(ring[0].dial, P4Address(ring[0].address), slots, modes={"inspection": modes}) as client:
                assert isinstance(await client.inspect(SECONDS), Snapshot)
        assert (slots.spent, slots.open) == (0, 0)
    finally:
        slots.close()
    said = ring[0].until("every slot is free", lambda said: said["slots"]["used"] == 0)
    assert (said["slots"]["leaked"], said["accepted"]) == (0, times)


@pytest.mark.faults("100 kill -9 of a process that holds connections leave the p4 agent serving")
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_hundred_kills_leave_the_agent_serving(ring: SimulatedRing, tmp_path: Path) -> None:
    for number in range(100):
        _hold_and_kill(ring[0], tmp_path)
        ring[0].until("only direct connections stay", lambda said: said["slots"]["used"] <= number + 1)  # noqa: B023
    said = ring[0].ask()
    assert said["slots"]["leaked"] == 100
    asyncio.run(_still_serves(ring[0], tmp_path, spent=100))


@pytest.mark.faults("kill -9 of a process that holds connections: only the direct one is lost, and it is counted")
def test_a_kill_costs_the_slot_of_the_direct_connection_and_is_counted(ring: SimulatedRing, tmp_path: Path) -> None:
    for _ in range(2):
        _hold_and_kill(ring[0], tmp_path)
    ring[0].until("only direct connections stay", lambda said: said["slots"]["used"] == 2)
    asyncio.run(_still_serves(ring[0], tmp_path, spent=2))


def _hold_and_kill(host: SimulatedHost, home: Path) -> None:
    """A process with a connection on each lane, ended as no process can prevent."""
    command = [sys.executable, "-I", "-m", "tests.p4.client_process", *map(str, host.dial), host.address, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"holding\n"
        finally:
            process.kill()


async def _still_serves(host: SimulatedHost, home: Path, *, spent: int) -> None:
    async with a_client(host, home) as client:
        assert isinstance(await client.inspect(SECONDS), Snapshot)
    assert json.loads((home / "slots.json").read_text())["spent"] == spent
