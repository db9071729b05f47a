"""An operation that another one starts and waits for: with a ledger file and a process of its own, as any other."""

from __future__ import annotations

import asyncio
from typing import Any

from backend.contract.plans import Plan
from backend.contract.words import LoadGeneration, OpId
from backend.control.exit_codes import DONE, UNKNOWN
from backend.control.ledger import Operation, create, ledger_path
from backend.control.ledger_views import read_operation
from backend.control.operations.conduct import Conduct
from backend.control.operations.spawning import spawn_operation
from backend.control.views import OperationView, Target
from backend.control.wall_clock import now_unix_ms
from backend.failpoints import failpoint

CHILD = "child"
"""The step by which a child is found again: its target is whose it is, its words are the child's id."""
_LOOK_SECONDS = 0.2


def last_child(conduct: Conduct, name: str) -> OperationView | None:
    """The newest operation that was begun for this step, as its ledger tells it; None when there is none."""
    ids = [step.words for step in conduct.steps if step.what == CHILD and step.target == name]
    path = ledger_path(conduct.reach.context.ledger_folder, OpId(ids[-1])) if ids else None
    return read_operation(path) if path is not None and path.exists() else None


async def run_child(
    conduct: Conduct,
    name: str,
    kind: str,
    subject: str,
    *,
    targets: tuple[Target, ...],
    generation: LoadGeneration | None,
    options: dict[str, Any],
    plan: Plan | None = None,
) -> tuple[int, str]:
    """Begin an operation for one step and wait for its end; returns its exit code and words."""
    number = sum(step.what == CHILD for step in conduct.steps) + 1
    op_id = OpId(f"{conduct.operation.op_id}-{kind}-{number}")
    operation = Operation(
        op_id=op_id,
        kind=kind,
        subject=subject,
        by=conduct.by,
        context=conduct.operation.context,
        load_generation=generation,
        targets=targets,
        options=options,
        started_unix_ms=now_unix_ms(),
        plan=plan,
    )
    conduct.step(name, CHILD, op_id)
    writer = await asyncio.to_thread(create, conduct.reach.context.ledger_folder, operation)
    try:
        failpoint("recovery.before_child")
        process = spawn_operation(conduct.reach.context, op_id, writer.fd)
    finally:
        writer.close()
    await asyncio.to_thread(process.wait)
    return await follow_child(conduct, op_id)


async def follow_child(conduct: Conduct, op_id: OpId) -> tuple[int, str]:
    """Wait for the end of an operation that was begun before; one whose process is gone gets a new one."""
    context = conduct.reach.context
    path = ledger_path(context.ledger_folder, op_id)
    was_resumed = False
    while True:
        view = await asyncio.to_thread(read_operation, path)
        if view.state == "ownerless" and not was_resumed:
            was_resumed = True
            await asyncio.to_thread(spawn_operation(context, op_id).wait)
        elif view.state != "running":
            code = view.exit_code if view.exit_code is not None else UNKNOWN
            return code, view.words if code != DONE else f"{op_id}: {view.words}"
        else:
            await asyncio.sleep(_LOOK_SECONDS)
