"""The bridge that submits to a ring: told of a load and of its end, and asked what it made of that.

A bridge compares generations: requests for a load that it was not told of are refused as stale. What it is told is a
file in the form of ``last-load.json``, or the standard input of a program of the operator.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from backend.contract.plans import Plan
from backend.engines.driver import Published
from backend.engines.llamacpp.exchange import exchange
from backend.engines.p4.place import BridgePlace
from backend.engines.p4.programs import run_program
from backend.engines.p4.record import record_of, write_record

HOOK_SECONDS = 30.0
ASK_SECONDS = 5.0

Word = Literal["publish", "close", "open"]


class Bridge:
    """The bridge of one host's rings."""

    def __init__(self, place: BridgePlace) -> None:
        self._place = place

    @property
    def is_told(self) -> bool:
        """There is one to tell."""
        return self._place.is_told

    @property
    def is_gate(self) -> bool:
        """It can close admission: only a program can be told that, a file cannot."""
        return bool(self._place.hook)

    async def publish(self, plan: Plan, at_unix_ms: int) -> Published:
        """Tell it the stages and generation of a load, and hear whether it took them over."""
        record = record_of(plan, at_unix_ms)
        if self._place.record:
            try:
                await asyncio.to_thread(write_record, Path(self._place.record), record)
            except OSError as error:
                words = f"the bridge's record {self._place.record} was not written: {error.strerror}"
                return Published(False, f"{words}. It refuses requests to this ring as stale until it is told")
        if self._place.hook:
            told = await self.say("publish", record)
            if not told.ok:
                return told
        return await self._verified(plan)

    async def say(self, word: Word, record: dict[str, Any]) -> Published:
        """Run its hook with one word; the ring is on its standard input."""
        if not self._place.hook:
            return Published(False, f"no hook says {word!r} to the bridge")
        command, told = (*self._place.hook, word), msgspec.json.encode(record)
        path = {"PATH": os.environ.get("PATH", os.defpath)}
        try:
            ran = await run_program(command, HOOK_SECONDS, lines=1, given=told, env=path, kills=True)
        except OSError as error:
            return Published(False, f"the bridge's hook {self._place.hook[0]} cannot be run: {error.strerror}")
        if ran.code is None:
            return Published(False, f"the bridge's hook did not end within {HOOK_SECONDS:g} s of {word!r}")
        if ran.code:
            return Published(False, f"the bridge's hook {ran.how} on {word!r}: {''.join(ran.said)}")
        return Published(True, f"the bridge was told {word!r}")

    async def _verified(self, plan: Plan) -> Published:
        """Whether its own word on the stages agrees; without ``url`` nobody can ask."""
        if not self._place.url:
            return Published(True, "published to the bridge; nobody can ask what it took over, as url is not set")
        try:
            async with asyncio.timeout(ASK_SECONDS):
                tree = await self._controllers()
        except (OSError, ValueError) as error:
            return Published(
                False, f"published, and the bridge does not say that it took it over: {error or 'no answer'}"
            )
        wanted = {str(shard.node_id): int(shard.node_generation) for shard in plan.shards}
        bad = [node for node, generation in wanted.items() if not _agrees(tree, node, generation)]
        if bad:
            return Published(
                False, f"published, and the bridge does not have {', '.join(bad)} at {plan.load_generation}"
            )
        return Published(True, f"the bridge has every stage at generation {plan.load_generation}")

    async def _controllers(self) -> Any:
        """The answer of ``/api/controllers``. Raises OSError, ValueError."""
        where = urlsplit(self._place.url)
        token = (await asyncio.to_thread(Path(self._place.token).read_text)).strip() if self._place.token else ""
        path, headers = f"{where.path.rstrip('/')}/api/controllers", {"X-Kvasir-Service-Token": token} if token else {}
        answer = await exchange(where.hostname or "", where.port or 80, path, headers=headers)
        if answer.status != 200 or answer.tree is None:
            raise ValueError(f"{path} answered {answer.status}: {answer.text[:200]!r}")
        return answer.tree


def _agrees(tree: Any, node: str, generation: int) -> bool:
    """Whether somewhere in the answer a stage of this name is found, with this generation or a match of it."""
    if isinstance(tree, list):
        return any(_agrees(each, node, generation) for each in tree)
    if not isinstance(tree, dict):
        return False
    if node in (tree.get("node"), tree.get("node_id")):
        says = tree.get("generationMatches")
        return bool(says) if isinstance(says, bool) else tree.get("generation") == generation
    return any(_agrees(each, node, generation) for each in tree.values())
