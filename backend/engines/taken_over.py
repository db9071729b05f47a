"""Follows an engine that no agent started and a person adopted: its own counters, read without making it work.

No canary is sent: such an engine was not started with a spare slot, and a canary in a user's slot throws away what the
engine keeps for that user. So the evidence is weaker, and says so.
"""

from __future__ import annotations

import asyncio
import math
import re
import signal
import time
from collections.abc import Callable

import msgspec

from backend.contract.reports import Measurement
from backend.contract.states import ShardState
from backend.contract.words import UnixMs
from backend.engines.answers import READY, Told, ask_engine
from backend.engines.driver import PhaseSeen, Run, Seen, StopStep
from backend.engines.llamacpp.exchange import Answer, exchange
from backend.engines.llamacpp.metrics import MOST_COUNTED, read_census
from backend.engines.llamacpp.sockets import resident_bytes

POLL_SECONDS = 1.0
ASK_SECONDS = 10.0
"""How often one that was ready is asked whether it still is; its counters are read at every poll."""
ANSWER_SECONDS = 3.0
STOP_STEPS = (StopStep(int(signal.SIGTERM), 30.0), StopStep(int(signal.SIGKILL), 2.0))
"""One TERM only: a second one cuts a llama-server, and SGLang leaves by itself when its requests are done."""
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+(\S+)")
_COUNTERS = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total"),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs", ""),  # it tells no total of tokens
}


class Work(msgspec.Struct, frozen=True):
    """The engine's own count of open work and of tokens. None is unknown, never 0."""

    in_flight: int | None = None
    queued: int | None = None
    tokens: int | None = None
    source: str = ""


async def follow_taken_over(run: Run, see: Callable[[Seen], None], wall_ms: Callable[[], int]) -> None:
    """Tell what the engine says of itself until cancelled."""
    address, port = endpoint_of(run)
    tokens: tuple[float, int] | None = None
    told, asked = Told(), -math.inf
    while True:
        work, silent = Work(), ""
        if told.answers != READY or time.monotonic() - asked >= ASK_SECONDS:
            told = await ask_engine(run.shard.engine, run.shard.role, address, port, ANSWER_SECONDS)
            asked = time.monotonic()
        if told.answers == READY:
            see(PhaseSeen(ShardState.READY, "adopted; it says that it is ready, and no canary proves it"))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                work = await _count(run.shard.engine, address, port)
        except (OSError, ValueError) as error:
            silent = f"its counters were not read: {str(error) or type(error).__name__}"
        now = time.monotonic()
        rate = None
        if tokens is not None and work.tokens is not None and work.tokens >= tokens[1]:
            rate = (work.tokens - tokens[1]) / max(now - tokens[0], 1e-6)
        tokens = None if work.tokens is None else (now, work.tokens)
        unknown = "" if work.queued is not None else "what it has in flight is unknown"
        see(
            Measurement(
                node_id=run.shard.node_id,
                observed_unix_ms=UnixMs(wall_ms()),
                memory=resident_bytes(run.pid),
                tokens_per_second=rate,
                tokens_total=work.tokens,
                in_flight=work.in_flight,
                queued=work.queued,
                source=work.source,
                words="; ".join(filter(None, (told.words, silent, unknown))),
            )
        )
        await asyncio.sleep(POLL_SECONDS)


def endpoint_of(run: Run) -> tuple[str, int]:
    """Where on this host the engine of a run takes connections."""
    taken = run.shard.taken_over
    return (taken.address if taken is not None else "") or "127.0.0.1", run.shard.ports[0]


async def _count(engine: str, address: str, port: int) -> Work:
    """The open work by the engine's own word. Raises OSError."""
    metrics = await exchange(address, port, "/metrics")
    work = read_work(engine, metrics)
    if work.in_flight is None and engine == "llamacpp":
        return read_slots(await exchange(address, port, "/slots"))
    return work


def read_work(engine: str, metrics: Answer) -> Work:
    """Open work in an engine's ``/metrics``; unknown when they are off, want a key, or have other names."""
    if metrics.status != 200:
        return Work()
    if engine == "llamacpp":
        census = read_census(metrics.text)
        return Work(census.processing, census.deferred, census.tokens_predicted, "engine metrics")
    running, waiting, tokens = (_sum(metrics.text, name) for name in _COUNTERS.get(engine, ("", "", "")))
    return Work(running, waiting, tokens, "engine metrics" if running is not None else "")


def read_slots(answer: Answer) -> Work:
    """Open work in a llama-server's ``/slots``, which is there when its metrics are off.

    It tells of no queue. But a request waits only while every slot is busy, so with one idle nothing does.
    """
    slots = answer.tree if answer.status == 200 else None
    if not isinstance(slots, list) or not slots or not all(isinstance(slot, dict) for slot in slots):
        return Work()
    busy = [slot.get("is_processing") for slot in slots]
    if not all(isinstance(each, bool) for each in busy):
        return Work()
    count = sum(1 for each in busy if each)
    return Work(count, 0 if count < len(busy) else None, None, "engine slots")


def _sum(text: str, name: str) -> int | None:
    """The sum of a metric over its labels; None when it is not there."""
    found = [match[2] for line in text.splitlines() if (match := _SAMPLE.match(line)) and match[1] == name]
    try:
        total = math.fsum(float(value) for value in found)
    except (ValueError, OverflowError):
        return None  # a value that is no number says nothing
    return int(total) if found and 0 <= total <= MOST_COUNTED else None
