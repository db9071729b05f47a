"""The door to one p4 agent, on the client: what is asked, and answers as the drive takes them.

Whatever is not an answer is an OSError here: nothing sent and nothing heard are the same to a stage, which asks again.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from backend.contract.commands import Capacities
from backend.contract.frames import MAX_EVENT_CHARS, FrameError, decode_frame
from backend.contract.p4 import content_types
from backend.contract.p4.addresses import P4Address, host_and_port
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Node
from backend.contract.p4.lifecycle import NodeLoad, NodeResult, NodeUnload
from backend.contract.plans import Plan, PlannedShard
from backend.engines.driver import Completion
from backend.engines.p4.client import P4Client
from backend.engines.p4.door import Answer, NothingSent
from backend.engines.p4.outcomes import NotSent, Refused, Unknown
from backend.engines.p4.payloads import json_payload, write_json
from backend.engines.p4.place import P4Place
from backend.engines.p4.record import RecordedLoad, RecordedStage
from backend.engines.p4.slots import SlotCount, SlotsUnreadable
from backend.engines.p4.snapshot import Snapshot
from backend.engines.p4.surroundings import Lookout
from backend.planning.engines.p4_options import store_bytes

INSPECT_SECONDS = 10.0
_SLOTS = "p4-slots.json"


class P4Link:
    """One p4 agent. Nothing is dialled before something is asked; ``leave`` says FINISH on every connection."""

    def __init__(self, place: P4Place, state: Path, lookout: Lookout) -> None:
        self._place = place
        self._state = state
        self._lookout = lookout
        self._client: P4Client | None = None
        self._submitters: dict[str, P4Client] = {}
        self._slots: SlotCount | None = None
        self._counting = asyncio.Lock()

    async def inspect(self) -> Snapshot:
        """One INSPECT. Raises OSError."""
        seen: Snapshot = _heard(await (await self._dialled()).inspect(INSPECT_SECONDS))
        return seen

    async def reach(self, address: str) -> PeerLink:
        """The p4 agent of another host. What we hold there is counted in a file of its own. Raises NothingSent."""
        path = self._state / f"p4-peer-{re.sub(r'[^0-9A-Za-z.]+', '-', address.removeprefix('tcp://'))}.json"
        try:
            slots = await asyncio.to_thread(SlotCount, path, None)
        except SlotsUnreadable as error:
            raise NothingSent(str(error)) from error
        return PeerLink(P4Address(address), slots)

    async def load(self, shard: PlannedShard, plan: Plan, body: dict[str, Any], seconds: float) -> Answer:
        """LOAD one stage and hear it out. Raises OSError: then what became of it is unknown."""
        sizes = Capacities()
        request = NodeLoad(
            node_id=shard.node_id,
            node_generation=int(shard.node_generation),
            adapter_kind=content_types.LLAMACPP,
            adapter_content_type=content_types.LOAD,
            queue_capacity=sizes.queue_capacity,
            completion_capacity=sizes.completion_capacity,
            retained_capacity=sizes.retained_capacity,
            retained_bytes=max(sizes.retained_bytes, store_bytes(plan.profile)),
            body=write_json(body),
        )
        return await self._lifecycle(request, seconds, f"load-{plan.load_generation}")

    async def unload(self, name: str, generation: int, seconds: float) -> Answer:
        """UNLOAD one stage. Raises OSError: then what became of it is unknown."""
        request = NodeUnload(
            node_id=name,
            node_generation=generation,
            adapter_kind=content_types.LLAMACPP,
            adapter_content_type=content_types.UNLOAD,
            body=write_json({"load_generation": generation}),
        )
        return await self._lifecycle(request, seconds, f"unload-{generation}")

    async def open_session(self, ring: RecordedLoad, session: str, seconds: float) -> dict[int, str]:
        """Tell every stage of a ring about a session; returns the ranks that did not say ready in time, and why."""
        client = await self._submitting(session)
        told = {"load_generation": ring.generation, "session_id": session, "stages": to_builtins(ring.stages)}
        asked = (
            client.session(_node(stage), {**told, "stage_index": rank}, seconds)
            for rank, stage in enumerate(ring.stages)
        )
        try:
            answers = await asyncio.gather(*asked)
        except P4CodecError as error:
            answers = [Unknown(f"a stage cannot be named: {error.reason}", "answer")] * len(ring.stages)
        unready = {rank: why for rank, answer in enumerate(answers) if (why := _unready(answer, session))}
        if unready:
            await self._stop_submitting(session)
        return unready

    async def complete(
        self, ring: RecordedLoad, session: str, prompt: str, max_tokens: int, seconds: float
    ) -> Completion:
        """One prompt through the head of an open session, up to its release. Raises TimeoutError, ConnectionError."""
        try:
            return await self._complete(await self._submitting(session), ring, session, prompt, max_tokens, seconds)
        except P4CodecError as error:
            raise ConnectionError(f"the prompt or its answer breaks p4's contract: {error.reason}") from error
        finally:
            await self._stop_submitting(session)

    async def _complete(
        self, client: P4Client, ring: RecordedLoad, session: str, prompt: str, max_tokens: int, seconds: float
    ) -> Completion:
        began = time.monotonic()
        body = {
            "load_generation": ring.generation,
            "session_id": session,
            "request_id": f"{session}-{time.monotonic_ns()}",
            "prompt": prompt,
            "options": "",
            "max_tokens": max_tokens,
        }
        stream = await client.submit(_node(ring.stages[0]), body, seconds)
        if isinstance(stream, NotSent):
            raise ConnectionError(stream.words)
        text, tokens = "", 0
        async with stream:
            while (left := began + seconds - time.monotonic()) > 0:
                event = await stream.next(left)
                if isinstance(event, Refused):
                    raise ConnectionError(event.words)
                if isinstance(event, Unknown):
                    break
                if event.payload_content_type == content_types.OUTPUT:
                    text += str(json_payload(event).get("text", ""))
                    tokens += 1
                elif event.payload_content_type == content_types.RELEASE_RECEIPT:
                    return Completion(text=text, seconds=time.monotonic() - began, tokens=tokens)
        heard = f"{tokens} of {max_tokens} tokens" if tokens else "no token"
        raise TimeoutError(f"{heard} and no release within {seconds:g} s")

    async def leave(self) -> None:
        """Leave the p4 agent with FINISH, so that no slot of it is lost; who asks meanwhile waits and dials anew."""
        async with self._counting:
            clients = [*self._submitters.values(), *filter(None, (self._client,))]
            self._submitters, self._client = {}, None
            await asyncio.gather(*(client.close() for client in clients))
            if self._slots is not None:
                self._slots.close()
                self._slots = None

    async def _lifecycle(self, request: NodeLoad | NodeUnload, seconds: float, correlation: str) -> Answer:
        client = await self._dialled()
        # Refused before anything started, by its broker or as unreadable: then nothing of a LOAD is there, and what an
        # UNLOAD should have ended goes on as it was.
        untouched = "absent" if isinstance(request, NodeLoad) else "unknown"
        try:
            answer = await client.lifecycle(request, seconds=seconds, correlation_id=correlation)
        except P4CodecError as error:
            return Answer("rejected", untouched, f"it could not be written down for p4: {error.reason}")
        if isinstance(answer, Refused):
            return Answer("rejected", untouched, answer.words)
        result: NodeResult = _heard(answer)
        said = _body(result)
        errors = "; cleaning up: ".join(filter(None, (result.first_error, result.cleanup_error)))
        return Answer(result.status, result.resource_state, errors, said)

    async def _submitting(self, session: str) -> P4Client:
        """The client of one session and its prompt. Its connection is direct, and costs a slot when we are killed."""
        if session not in self._submitters:
            await self._dialled()
            assert self._slots is not None
            self._submitters[session] = P4Client(host_and_port(self._place.agent), self._place.advertise, self._slots)
        return self._submitters[session]

    async def _stop_submitting(self, session: str) -> None:
        submitter = self._submitters.pop(session, None)
        if submitter is not None:
            await submitter.close()

    async def _dialled(self) -> P4Client:
        """The client; its slots are counted for the p4 agent's present life. Raises NothingSent."""
        around = await self._lookout.seen()
        life = around.life or None  # not to be seen: the count on disk goes on
        async with self._counting:  # a count that is being taken up is locked, also to another caller here
            try:
                if self._slots is None:
                    path = self._state / _SLOTS
                    self._slots = await asyncio.to_thread(SlotCount, path, life, self._lookout.sockets)
                elif around.life and self._slots.life != around.life:
                    await asyncio.to_thread(self._slots.begin_life, around.life)
            except SlotsUnreadable as error:
                raise NothingSent(str(error)) from error
            if self._client is None:
                self._client = P4Client(host_and_port(self._place.agent), self._place.advertise, self._slots)
            return self._client


class PeerLink:
    """The p4 agent of another host: inspected in hop mode or not at all, as a direct connection may cost it a slot."""

    def __init__(self, address: P4Address, slots: SlotCount) -> None:
        self._slots = slots
        self._client = P4Client(host_and_port(address), address, slots, modes={"inspection": ("hop",)})

    async def inspect(self) -> Snapshot:
        """One INSPECT. Raises OSError."""
        seen: Snapshot = _heard(await self._client.inspect(INSPECT_SECONDS))
        return seen

    async def leave(self) -> None:
        """Leave it with FINISH."""
        await self._client.close()
        self._slots.close()


def _unready(answer: dict[str, Any] | Refused | NotSent | Unknown, session: str) -> str:
    """Why a stage is not ready for a session, in its own words where it has any; empty when it is."""
    if not isinstance(answer, dict):
        return answer.words
    said = answer.get("session_id")
    return "" if said == session else f"its answer is of session {said!r}, and {session!r} was asked for"


def _node(stage: RecordedStage) -> P4Node:
    """The endpoint of a stage: under the address that its agent advertises."""
    return P4Node(P4Address(stage.agent), stage.node, stage.generation)


def _body(result: NodeResult) -> dict[str, Any]:
    """The adapter's own answer; empty when there is none that can be read, and then nothing of it can agree."""
    try:
        return decode_frame(result.body.decode(), MAX_EVENT_CHARS) if result.body else {}
    except (FrameError, UnicodeDecodeError):
        return {}


def _heard(answer: Any) -> Any:
    """An answer, or the OSError that stands for none."""
    if isinstance(answer, NotSent):
        raise NothingSent(answer.words)
    if isinstance(answer, Refused):
        raise ConnectionRefusedError(answer.words)
    if isinstance(answer, Unknown):
        raise TimeoutError(answer.words)
    return answer
