"""Recover a host's p4 agent, step by step: one whose condition does not hold ends it there, for somebody to resume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from backend.contract.words import HostId
from backend.control import recovery_document as document
from backend.control.exit_codes import DONE, UNREACHABLE
from backend.control.operations.conduct import Conduct
from backend.control.operations.recover_host import begin, census, end, memory, port
from backend.control.operations.recover_ring import bridge, leave, load_again, narrow, prompt, room
from backend.control.operations.recovery import Halted, Recovery
from backend.control.recovery_document import RecoveryPlan
from backend.failpoints import failpoint

PROVEN = "proven"
"""The last step of each step that is done; a resumed recovery goes on behind the last of these."""

_WORK: dict[str, Callable[[Recovery], Awaitable[str]]] = {
    document.LEAVE: leave,
    document.END: end,
    document.PORT: port,
    document.MEMORY: memory,
    document.CENSUS: census,
    document.BEGIN: begin,
    document.NARROW: narrow,
    document.ROOM: room,
    document.LOAD: load_again,
    document.BRIDGE: bridge,
    document.PROMPT: prompt,
}


async def recover(conduct: Conduct) -> int:
    """Run a recovery from its first step that is not proven; returns its exit code."""
    plan = msgspec.convert(conduct.operation.options["recovery"], RecoveryPlan)
    silent = await conduct.connect({HostId(host) for host in conduct.operation.options["hosts"]})
    if plan.host in silent:
        words = f"its ringtop agent is not heard, so nothing was done: {silent[plan.host]}. {_again(conduct)}"
        return conduct.halt(UNREACHABLE, words)
    recovery = Recovery(conduct, plan)
    for name in document.STEPS:
        if conduct.has_step(PROVEN, name):
            continue
        failpoint("recovery.before_step")
        planned = next(step for step in plan.steps if step.name == name)
        conduct.step(name, "step", f"{planned.what}; must hold: {planned.condition}", phase=name)
        try:
            words = await _WORK[name](recovery)
        except Halted as halted:
            return conduct.halt(halted.code, f"stopped at {name}: {halted.words} {_again(conduct)}")
        conduct.step(name, PROVEN, words)
    return conduct.end(DONE, f"the p4 agent of {plan.host} is recovered: {conduct.steps[-1].words}")


def _again(conduct: Conduct) -> str:
    return f"Then go on: ringtop op resume {conduct.operation.op_id}"
