"""One stage followed through what a p4 agent may answer; a door stands in for the agent and says what it is told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.entities import Canary, Resident, Shard
from backend.contract.p4.addresses import P4Address
from backend.contract.plans import PhaseBound, Plan, sealed
from backend.contract.reports import Measurement, ResidentFacts, ResidentNode
from backend.contract.states import ShardState
from backend.contract.words import HostId, OpId, UnixMs
from backend.engines.driver import (
    CanarySeen,
    Completion,
    Confirmed,
    LeaderGone,
    PhaseSeen,
    Proven,
    Published,
    Run,
    Seen,
    Unfit,
    Unloaded,
)
from backend.engines.p4.adoption import adoptable, adopted
from backend.engines.p4.door import Answer, NothingSent
from backend.engines.p4.drive import P4
from backend.engines.p4.place import BridgePlace, P4Place
from backend.engines.p4.record import RecordedLoad
from backend.engines.p4.site import P4Pace
from backend.engines.p4.snapshot import NodeSeen, Snapshot
from tests.engines.p4.plans import ADDRESSES, a_p4_plan, loaded
from tests.planning.worlds import a_host

SECONDS = 20.0
PACE = P4Pace(
    inspect=0.02,
    watched=0.02,
    rest=0.02,
    notice=0.05,
    soon=0.0,
    slack=0.2,
    session=0.05,
    session_again=0.03,
    canary=0.1,
    unload=1.0,
    unload_again=0.01,
    head=0.03,
)


class StandInDoor:
    """Stands in for a p4 agent: nodes are what the test puts there, answers what it says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.nodes: dict[str, NodeSeen] = {}
        self.said: list[str] = []
        self.loading: Callable[[], Awaitable[Answer]] | None = None
        self.unloading: list[Answer | OSError] = []
        self.unready: dict[int, str] = {}
        self.canary: Completion | OSError = Completion("a", 0.01, 2)
        self.silence: OSError | None = None
        self.looks = 0
        self.blinks = False
        self.peer = StandInPeer()

    def put(self, name: str, generation: int | None = None, phase: str = "loaded", **changes: Any) -> None:
        """A node as INSPECT shows it."""
        self.nodes[name] = NodeSeen(
            node_id=name,
            generation=int(self.plan.load_generation) if generation is None else generation,
            adapter_kind="llamacpp",
            lifecycle_state=phase,
            state=changes.pop("state", phase),
            tree={},
            **changes,
        )

    async def inspect(self) -> Snapshot:
        if self.silence is not None:
            raise self.silence
        self.looks += 1
        if self.blinks and self.looks % 2:
            return Snapshot(generated_at_unix_ms=0, nodes=(), failure_ids=(), tree={})
        return Snapshot(generated_at_unix_ms=0, nodes=tuple(self.nodes.values()), failure_ids=(), tree={})

    async def load(self, shard: Any, plan: Plan, body: dict[str, Any], seconds: float) -> Answer:
        self.said.append(f"LOAD {shard.node_id}")
        if self.loading is not None:
            return await self.loading()
        self.put(shard.node_id)
        return Answer("succeeded", "present", body=loaded(plan, shard))

    async def unload(self, name: str, generation: int, seconds: float) -> Answer:
        self.said.append(f"UNLOAD {name}")
        answer = self.unloading.pop(0) if self.unloading else Answer("succeeded", "absent")
        if isinstance(answer, OSError):
            raise answer
        if answer.is_absent:
            self.nodes.pop(name, None)
        return answer

    async def open_session(self, ring: RecordedLoad, session: str, seconds: float) -> dict[int, str]:
        self.said.append(f"SESSION {session}")
        await asyncio.sleep(0.01)
        return self.unready

    async def complete(
        self, ring: RecordedLoad, session: str, prompt: str, max_tokens: int, seconds: float
    ) -> Completion:
        self.said.append(f"PREFILL {session}")
        if isinstance(self.canary, OSError):
            raise self.canary
        return self.canary

    async def reach(self, address: str) -> StandInPeer:
        self.said.append(f"REACH {address}")
        return self.peer

    async def leave(self) -> None:
        self.said.append("FINISH")


class StandInPeer:
    """Stands in for the p4 agent of the head's host: the head is there, is not, or nothing is said."""

    def __init__(self) -> None:
        self.head: NodeSeen | None = None
        self.silence: OSError | None = None
        self.looks = self.leaves = 0
        self.blinks = False

    async def inspect(self) -> Snapshot:
        self.looks += 1
        if self.blinks and self.looks % 2:
            return Snapshot(generated_at_unix_ms=0, nodes=(), failure_ids=(), tree={})
        if self.silence is not None:
            raise self.silence
        nodes = (self.head,) if self.head is not None else ()
        return Snapshot(generated_at_unix_ms=0, nodes=nodes, failure_ids=(), tree={})

    async def leave(self) -> None:
        self.leaves += 1


class Followed:
    """One stage of a plan, followed by the real driver behind such a door."""

    bridge = BridgePlace()

    def __init__(self, tmp_path: Path, rank: int, **shard: Any) -> None:
        plan = a_p4_plan()
        phases = tuple(PhaseBound(phase.phase, 0.2, "0.2 s") for phase in plan.phases)
        self.plan = sealed(msgspec.structs.replace(plan, phases=phases))
        self.door = StandInDoor(self.plan)
        here = P4Address(ADDRESSES["host-a"])
        place = P4Place(agent=P4Address("tcp://127.0.0.1:1"), advertise=here, binary="/stage", bridge=self.bridge)
        self.driver = P4(place, tmp_path, door=self.door, pace=PACE)
        self.planned = self.plan.shards[rank]
        self.is_draining = self.was_drained = False
        self.seen: list[Seen] = []
        self.shard = shard_of(self.plan, rank, **shard)

    def run(self, *, adopted: bool = False) -> Run:
        return Run(
            shard=self.shard,
            plan=self.plan,
            pid=0,
            log=Path("/nowhere"),
            free_memory=lambda: 0,
            adopted=adopted,
            was_drained=self.was_drained,
            is_draining=lambda: self.is_draining,
        )

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():  # noqa: ASYNC110  what is looked at is a stage's own state, which wakes nobody
                await asyncio.sleep(0.005)

    def of(self, kind: type[Any]) -> list[Any]:
        return [seen for seen in self.seen if isinstance(seen, kind)]

    def states(self) -> list[ShardState]:
        found = [seen.state for seen in self.of(PhaseSeen)]
        return [state for index, state in enumerate(found) if index == 0 or found[index - 1] is not state]

    async def follow(self, until: Callable[[], object], *, adopted: bool = False) -> None:
        """Drive until something holds."""
        driving = asyncio.ensure_future(self.driver.drive(self.run(adopted=adopted), self.seen.append))
        try:
            await self.until("the drive", lambda: until() or driving.done())
            if driving.done():
                driving.result()
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)


def shard_of(plan: Plan, rank: int, **changes: Any) -> Shard:
    planned = plan.shards[rank]
    known = {
        "host": planned.host,
        "replica": plan.replica,
        "node_id": planned.node_id,
        "rank": rank,
        "world_size": 4,
        "load_generation": plan.load_generation,
        "node_generation": planned.node_generation,
        "engine": "p4",
        "release": "",
        "role": planned.role,
        "device": planned.device,
        "device_uuid": planned.device_uuid,
        "layers": planned.layers,
        "ports": planned.ports,
        "advertise": planned.advertise,
        "model": plan.model,
        "profile_name": plan.profile_name,
        "profile_fingerprint": plan.profile_fingerprint,
        "op_id": OpId("op"),
        "bound": planned.bound,
        "state": "spawning",
        "since_unix_ms": UnixMs(0),
        "resident": Resident(ADDRESSES["host-a"], planned.node_id, planned.node_generation),
    }
    return Shard(**{**known, **changes})


async def test_a_stage_is_asked_for_compared_and_ready(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 1)
    await stage.follow(lambda: stage.states()[-1:] == [ShardState.READY])
    (confirmed,) = stage.of(Confirmed)
    assert confirmed.result == 137_935_244
    assert confirmed.release == "451b89bae patch f00dcafe0001 wire physical-v4"
    assert stage.door.said == ["LOAD step37-1/1"], "a stage behind the head asks nothing else"


async def test_a_head_opens_the_ring_and_is_proven_by_one_canary(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 0)
    await stage.follow(lambda: stage.of(Proven))
    (proven,) = stage.of(Proven)
    assert proven.endpoint == f"{ADDRESSES['host-a']}/step37-1/0@{stage.plan.load_generation}"
    session = f"ringtop-{stage.plan.load_generation}-1"
    assert stage.door.said == ["LOAD step37-1/0", f"SESSION {session}", f"PREFILL {session}"]


async def test_a_loaded_of_another_shape_is_refused(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 1)

    async def other() -> Answer:
        return Answer("succeeded", "present", body=loaded(stage.plan, stage.planned, n_ubatch=16))

    stage.door.loading = other
    await stage.follow(lambda: stage.of(Unfit))
    assert stage.of(Unfit)[0].finding.id == "bound.differs"
    assert not stage.of(Confirmed)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("operational journal is required before model LOAD", "P4_EVENT_OUTBOUND_JOURNAL_DIR"),
        ("resource profile physical result mismatch: profile=1, READY=2", "geometry"),
        ("stage runtime initialization failed: stage server HELLO omits n_batch", "older than its agent"),
        ("node already exists", "Somebody else"),
        ("something that nobody has seen yet", "P4_STAGED_LLAMA_INHERIT_STDERR"),
    ],
)
async def test_a_refused_load_says_p4s_words_and_what_to_do(tmp_path: Path, error: str, remedy: str) -> None:
    stage = Followed(tmp_path, 1)

    async def refused() -> Answer:
        return Answer("rejected", "absent", error)

    stage.door.loading = refused
    await stage.follow(lambda: stage.of(Unfit))
    finding = stage.of(Unfit)[0].finding
    assert finding.id == "load.refused"
    assert error in finding.found
    assert remedy in finding.remedy


async def test_an_answer_that_never_comes_is_asked_for_by_inspect_and_fails_nothing(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 1)

    async def lost() -> Answer:
        raise TimeoutError("no answer within 1 s")

    stage.door.loading = lost
    stage.door.put("step37-1/1", phase="loading")
    await stage.follow(lambda: stage.states()[-1:] == [ShardState.LOADING])
    assert not stage.of(Unfit)
    stage.seen.clear()
    stage.door.put("step37-1/1")
    await stage.follow(lambda: stage.states()[-1:] == [ShardState.READY], adopted=True)
    assert not stage.of(Confirmed), "what LOADED said is unknown, and is not made up"
    assert stage.door.said == ["LOAD step37-1/1"], "it is asked for once"


async def test_a_ring_whose_stage_opens_no_session_names_it_with_its_words(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 0)
    stage.door.unready = {2: "stage step37-1/2 refused it: STALE: session load generation is stale"}
    await stage.follow(lambda: stage.of(Unfit))
    finding = stage.of(Unfit)[0].finding
    assert finding.id == "session.silent"
    assert f"rank 2 on host-b at {ADDRESSES['host-b']}: {stage.door.unready[2]}" in finding.found
    assert not any(said.startswith("PREFILL") for said in stage.door.said)
    assert 0 < sum(said.startswith("SESSION") for said in stage.door.said) <= 3, (
        "what is refused at once is not asked again at once: each attempt may cost a slot"
    )


async def test_a_canary_that_is_not_released_proves_nothing(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 0)
    stage.door.canary = TimeoutError("2 of 2 tokens and no release within 0.1 s")
    await stage.follow(lambda: stage.of(Unfit))
    finding = stage.of(Unfit)[0].finding
    assert finding.id == "canary.failed"
    assert "no release" in finding.found
    assert not stage.of(Proven)


async def test_an_adopted_ring_gets_no_second_canary(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 0, state="ready", canary=Canary(True, 0.1, UnixMs(0), ""))
    stage.door.put("step37-1/0")
    looks = itertools.count()
    await stage.follow(lambda: next(looks) > 20, adopted=True)
    assert stage.door.said == []


async def test_a_dead_task_is_unresponsive_and_a_text_is_only_shown(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 1, state="ready")
    stage.door.put("step37-1/1", state="failed:session load generation is stale")
    await stage.follow(lambda: "session load generation is stale" in str(stage.seen), adopted=True)
    assert not stage.of(CanarySeen), "nothing resets that text, so it decides nothing"
    stage.door.put("step37-1/1", is_stopped=True)
    await stage.follow(lambda: stage.of(CanarySeen), adopted=True)
    assert not stage.of(CanarySeen)[0].canary.ok


async def test_a_draining_head_is_unloaded_once_it_is_not_busy(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 0, state="ready", canary=Canary(True, 0.1, UnixMs(0), ""))
    stage.door.put("step37-1/0")
    stage.is_draining = True
    stage.door.unloading = [
        Answer("rejected", "present", 'unload is busy;work={"requests":2,"pending":1}'),
        TimeoutError("silence"),
        Answer("succeeded", "absent"),
    ]
    await stage.follow(lambda: stage.of(Unloaded), adopted=True)
    said = [seen.words for seen in stage.of(Measurement)]
    assert any(words.startswith("unload is busy: requests 2, pending 1") for words in said)
    assert stage.door.said == ["UNLOAD step37-1/0"] * 3


def gated(tmp_path: Path) -> tuple[Followed, Callable[[], list[str]]]:
    """A head whose bridge can close admission, and the words that it was told."""
    words, hook = tmp_path / "words", tmp_path / "hook"
    words.touch()
    hook.write_text(f"#!/bin/sh\ncat > /dev/null\necho $1 >> {words}\n")
    hook.chmod(0o755)

    class Gated(Followed):
        bridge = BridgePlace(hook=(str(hook),))

    stage = Gated(tmp_path, 0, state="ready", canary=Canary(True, 0.1, UnixMs(0), ""))
    stage.door.put("step37-1/0")
    return stage, lambda: words.read_text().split()


async def test_admission_is_opened_again_when_the_drain_ended_while_its_agent_was_down(tmp_path: Path) -> None:
    stage, words = gated(tmp_path)
    stage.was_drained = True
    await stage.follow(lambda: stage.of(Published), adopted=True)
    assert words() == ["open"]
    assert [(seen.ok, seen.words) for seen in stage.of(Published)] == [(True, "the bridge was told 'open'")]


async def test_admission_that_nobody_closed_is_left_as_it_is(tmp_path: Path) -> None:
    stage, words = gated(tmp_path)
    await stage.follow(lambda: len(stage.of(Measurement)) > 3, adopted=True)
    assert words() == []


def behind(tmp_path: Path) -> tuple[Followed, StandInPeer]:
    """A stage whose head is at another host's p4 agent, and that agent with the head."""
    rank = next(shard.rank for shard in a_p4_plan().shards if shard.host != "host-a")
    stage = Followed(tmp_path, rank, state="ready")
    name = stage.plan.shards[rank].node_id
    stage.door.put(name)
    stage.door.put("step37-1/0")
    stage.door.peer.head = stage.door.nodes.pop("step37-1/0")
    stage.driver = P4(
        P4Place(agent=P4Address("tcp://127.0.0.1:1"), advertise=P4Address(ADDRESSES["host-b"]), binary="/stage"),
        tmp_path,
        door=stage.door,
        pace=PACE,
    )
    return stage, stage.door.peer


async def test_the_stages_of_a_drained_ring_end_when_the_heads_agent_has_no_head_any_more(tmp_path: Path) -> None:
    stage, peer = behind(tmp_path)
    await stage.follow(lambda: stage.door.looks > 6, adopted=True)
    assert peer.looks == 0, "nobody drains it, so nobody is asked"
    stage.is_draining = True
    await stage.follow(lambda: peer.looks > 3, adopted=True)
    assert not stage.of(LeaderGone), "the head is there"
    assert peer.leaves == 1, "and its agent is left with FINISH when nobody asks any more"
    assert peer.head is not None
    peer.head = msgspec.structs.replace(peer.head, generation=7)
    await stage.follow(lambda: stage.of(LeaderGone), adopted=True)
    (gone,) = stage.of(LeaderGone)
    assert f"{ADDRESSES['host-a']} has no node step37-1/0 of generation {stage.plan.load_generation}" in gone.words


async def test_one_look_at_the_heads_agent_without_a_head_is_no_proof(tmp_path: Path) -> None:
    stage, peer = behind(tmp_path)
    stage.is_draining, peer.blinks = True, True
    await stage.follow(lambda: peer.looks > 8, adopted=True)
    assert not stage.of(LeaderGone)


async def test_silence_of_the_heads_agent_proves_nothing_and_is_shown(tmp_path: Path) -> None:
    stage, peer = behind(tmp_path)
    stage.is_draining, peer.silence = True, TimeoutError("nothing within 10 s")
    await stage.follow(lambda: "whether its head is gone is unknown" in str(stage.of(Measurement)), adopted=True)
    assert peer.looks > 0
    assert not stage.of(LeaderGone)
    peer.silence, peer.head = None, None
    await stage.follow(lambda: stage.of(LeaderGone), adopted=True)


async def test_a_drain_that_is_given_up_is_asked_about_until_the_head_is_seen_to_serve_on(tmp_path: Path) -> None:
    stage, peer = behind(tmp_path)
    stage.is_draining, peer.silence = True, ConnectionRefusedError("refused")
    driving = asyncio.ensure_future(stage.driver.drive(stage.run(adopted=True), stage.seen.append))
    await stage.until("a look", lambda: peer.looks > 0)
    stage.is_draining = False
    asked = peer.looks
    await stage.until("it is asked on", lambda: peer.looks > asked + 2)
    peer.silence = None
    await stage.until("the end of asking", lambda: peer.leaves > 0)
    asked, looks = peer.looks, stage.door.looks
    await stage.until("more looks at its own", lambda: stage.door.looks > looks + 6)
    assert peer.looks == asked, "it serves on: nobody is asked any more"
    assert not stage.of(LeaderGone)
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)


async def test_a_stage_is_gone_when_inspect_says_so_twice_and_never_by_silence(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 1)
    stage.door.put("step37-1/1")
    gone = asyncio.ensure_future(stage.driver.until_gone(stage.run(adopted=True)))
    await stage.until("two looks", lambda: stage.door.looks > 2)
    stage.door.silence = TimeoutError("nothing")
    await asyncio.sleep(0.1)
    assert not gone.done()
    stage.door.silence = None
    stage.door.put("step37-1/1", generation=7)
    async with asyncio.timeout(SECONDS):
        words = await gone
    assert "it has generation 7 of that name" in words


async def test_an_unload_is_asked_again_until_nothing_is_there(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 1)
    stage.door.put("step37-1/1")
    stage.door.unloading = [
        Answer("rejected", "present", "node is not unloadable; state=loading"),
        Answer("rejected", "present", 'unload is busy;work={"requests":1}'),
        TimeoutError("silence"),
        Answer("rejected", "absent", "node does not exist"),
    ]
    told: list[str] = []
    async with asyncio.timeout(SECONDS):
        await stage.driver.unload(stage.run(adopted=True), told.append)
    assert len(told) == 3
    assert "state=loading" in told[0]
    assert "requests 1" in told[1]
    assert "was not answered" in told[2]


async def test_one_look_without_it_is_no_proof(tmp_path: Path) -> None:
    """A LOAD that is under way may be answered before INSPECT shows its node."""
    stage = Followed(tmp_path, 1)
    stage.door.put("step37-1/1")
    stage.door.blinks = True
    gone = asyncio.ensure_future(stage.driver.until_gone(stage.run(adopted=True)))
    await stage.until("some looks", lambda: stage.door.looks > 10)
    assert not gone.done()
    gone.cancel()


async def test_nothing_is_sent_for_a_ring_that_somebody_else_loaded(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 0)
    node = ResidentNode(name="step37-s0", generation=7, phase="loaded", replica="step37", rank=0, world_size=4)
    shard, load = adopted(HostId("host-a"), ADDRESSES["host-a"], node, UnixMs(0))
    assert (shard.node_id, shard.state, shard.canary) == ("step37-7/0", "ready", None)
    stage.shard, stage.plan = shard, load.plan
    stage.door.put("step37-s0", generation=7)
    looks = itertools.count()
    await stage.follow(lambda: next(looks) > 20, adopted=True)
    assert stage.door.said == []
    assert not stage.of(Proven)
    async with asyncio.timeout(SECONDS):
        await stage.driver.unload(stage.run(adopted=True), stage.door.said.append)
    assert stage.door.said == ["UNLOAD step37-s0"], "by the name that it has there"


def test_what_a_record_places_is_adopted_and_all_else_stays_foreign() -> None:
    placed = ResidentNode(name="s0", generation=7, phase="loaded", replica="a model/with: odd", rank=0, world_size=2)
    nodes = (
        placed,
        msgspec.structs.replace(placed, is_ours=True),
        msgspec.structs.replace(placed, rank=None),
        msgspec.structs.replace(placed, phase="failed"),
    )
    assert adoptable(ResidentFacts(address="tcp://h:1", nodes=nodes)) == (placed,)
    one, load = adopted(HostId("host-a"), "tcp://h:1", placed, UnixMs(0))
    other, again = adopted(HostId("host-b"), "tcp://i:1", msgspec.structs.replace(placed, rank=1), UnixMs(9))
    assert (one.replica, one.role, other.role) == ("a-model-with-odd-7", "head", "tail")
    assert one.replica == other.replica
    assert load.plan.digest == again.plan.digest, "or the hosts would keep two plans of one generation"


async def test_a_load_that_never_left_needs_no_proof_of_a_silent_agent(tmp_path: Path) -> None:
    stage = Followed(tmp_path, 1)

    async def unsent() -> Answer:
        raise NothingSent("127.0.0.1:1 does not answer: Connection refused")

    stage.door.loading = unsent
    stage.door.silence = NothingSent("Connection refused")
    gone = asyncio.ensure_future(stage.driver.until_gone(stage.run()))
    await stage.follow(lambda: stage.of(Unfit))
    assert "it was not asked" in stage.of(Unfit)[0].finding.found
    async with asyncio.timeout(SECONDS):
        assert "was never asked for it" in await gone
        await stage.driver.unload(stage.run(adopted=True), stage.door.said.append)
    assert stage.door.said == ["LOAD step37-1/1"], "and nothing is unloaded"


async def test_a_gate_that_did_not_close_or_open_is_told_again_until_it_did(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(
        "#!/bin/sh\n"
        f"echo $1 >> {tmp_path}/words\n"
        f"[ $(grep -c $1 {tmp_path}/words) -gt 2 ] || {{ echo not yet >&2; exit 3; }}\n"
    )
    hook.chmod(0o755)

    class Gated(Followed):
        bridge = BridgePlace(hook=(str(hook),))

    stage = Gated(tmp_path, 0, state="ready")
    stage.shard = msgspec.structs.replace(stage.shard, canary=Canary(True, 0.1, UnixMs(1), "at its load"))
    stage.door.put("step37-1/0")
    stage.door.unloading = [Answer("rejected", "present", "unload is busy;work={requests: 1}")] * 100_000
    stage.is_draining = True

    def opened_again() -> bool:
        told = [seen.words for seen in stage.of(Published) if seen.ok]
        stage.is_draining = told == []
        return told == ["the bridge was told 'close'", "the bridge was told 'open'"]

    await stage.follow(opened_again, adopted=True)
    assert (tmp_path / "words").read_text().split() == ["close"] * 3 + ["open"] * 3
    assert [seen.ok for seen in stage.of(Published)] == [False, True] * 2, "the same answer is told once"


async def test_a_stage_that_cannot_be_asked_for_is_no_fault_of_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent says why when it builds the request; looking at its memory plan must not hide that."""
    binary = tmp_path / "stage"
    binary.write_text("#!/bin/sh\nexit 2\n")
    binary.chmod(0o755)
    stage = Followed(tmp_path, 1)
    here = P4Address(ADDRESSES["host-a"])
    place = P4Place(agent=P4Address("tcp://127.0.0.1:1"), advertise=here, binary=str(binary))
    driver = P4(place, tmp_path, door=stage.door, pace=PACE)
    monkeypatch.setattr("backend.engines.p4.drive.check_stage", lambda *_: ())
    facts = a_host("host-a").facts
    portless = msgspec.structs.replace(stage.planned, ports=())
    plan = msgspec.structs.replace(stage.plan, shards=(portless,))
    with pytest.raises(ValueError, match="has no port for its stage"):
        driver.residence(portless, plan)
    assert await driver.check(portless, plan, facts) == ()
    assert await driver.check(stage.planned, stage.plan, facts) == ()
