"""The stage binary's own plan of its memory, made without loading weights: ``--inspect-memory-plan``, where it has it.

It gives the exact result bound, says whether the device is there and whether the stage fits, all before the load. A
binary that does not know the option leaves the formula as the only check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from backend.contract.findings import Finding, refuse
from backend.contract.frames import FrameError, decode_frame
from backend.contract.plans import Plan, PlannedShard
from backend.engines.p4.programs import kill_session
from backend.planning.engines.p4_commands import load_body

SECONDS = 60.0
"""It reads the model's header and asks the device; nothing of the weights."""
DOES_NOT_FIT = 7
"""The exit code of a plan that its device has no room for."""
_LONGEST, _CHUNK = 1 << 20, 1 << 16
"""The last bytes of what it says are kept; the plan comes after the engine's own words on the model."""
_MARK = "MEMORY_PLAN "
_NUMBERS = ("max_physical_result_bytes", "physical_result_tensor_count", "physical_result_payload_bytes")


class MemoryPlan(msgspec.Struct, frozen=True):
    """What the stage binary said: its exit code, the plan, None when it printed none, and its last words."""

    code: int | None
    plan: dict[str, Any] | None
    words: str = ""


async def inspect_memory_plan(plan: Plan, shard: PlannedShard, binary: str, model: str) -> MemoryPlan:
    """Run the binary as its p4 agent would, with the one option more. What it starts is ended here in any case.

    Raises ValueError for a stage that cannot be asked for.
    """
    body = load_body(plan, shard, binary=binary, model=model)
    host, _, port = str(body["endpoint"]).rpartition(":")
    text = f"{body['plan']} --inspect-memory-plan".encode()
    environment = dict(body["environment"])
    try:
        process = await asyncio.create_subprocess_exec(
            *(binary, *body["args"], "--port", port, "--bind", host),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return MemoryPlan(None, None, f"{binary} cannot be run: {error.strerror}")
    try:
        assert process.stdin is not None
        assert process.stderr is not None
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):  # it ended without reading its plan
                process.stdin.write(len(text).to_bytes(4, "little") + text)
                await process.stdin.drain()  # and it stays open: its end would end the stage
            said = b""
            while more := await process.stderr.read(_CHUNK):  # to its end: a program whose pipe is full waits for ever
                said = (said + more)[-_LONGEST:]
            await process.wait()
    except TimeoutError:
        return MemoryPlan(None, None, f"nothing within {SECONDS:g} s")
    finally:
        if process.returncode is None:
            await kill_session(process)
    return _read(process.returncode, said.decode(errors="replace"))


def judge_memory_plan(plan: Plan, shard: PlannedShard, found: MemoryPlan) -> Iterator[Finding]:
    """What speaks against a stage by its binary's own plan, or by its exit code; nothing where it has neither."""
    subject, said = f"{shard.node_id} on {shard.host}", found.plan or {}
    reported = said.get("max_physical_result_bytes")
    if type(reported) is int and reported != shard.bound.result:
        numbers = "; ".join(f"{name} = {said.get(name)}" for name in _NUMBERS)
        yield refuse(
            "bound.differs",
            subject,
            expected=f"max_physical_result_bytes = {shard.bound.result}, as derived",
            found=f"{numbers} in the MEMORY_PLAN of the stage binary itself",
            remedy="p4 would load the whole model and unload it again. Give cut_tensors, and the payload divided by "
            f"n_ubatch = {plan.profile.n_ubatch} as cut_row_bytes, as the model's geometry in the catalog.",
        )
    if found.code == DOES_NOT_FIT or said.get("fits_current_free") is False:
        yield refuse(
            "memory.engine_plan",
            subject,
            expected=f"a stage that fits what {shard.device} has free now",
            found=f"its binary's own plan does not fit: {_devices(said) or found.words}",
            remedy="Unload something there, lower context or n_ubatch, or spread the replica over more hosts.",
        )


def _read(code: int | None, said: str) -> MemoryPlan:
    lines = said.splitlines()
    marked = next((line for line in lines if line.startswith(_MARK)), None)
    words = lines[-1] if lines else ""
    if marked is None:
        return MemoryPlan(code, None, words)
    try:
        return MemoryPlan(code, decode_frame(marked.removeprefix(_MARK)), words)
    except FrameError as error:
        return MemoryPlan(code, None, f"its MEMORY_PLAN cannot be read: {error}")


def _devices(plan: dict[str, Any]) -> str:
    """Free and required bytes of every device, as the binary names them."""
    found = plan.get("devices")
    shown = []
    for device in found if isinstance(found, list) else []:
        if isinstance(device, dict):
            shown.append(f"{device.get('name')} needs {device.get('required')} of {device.get('free')} free")
    return "; ".join(shown)
