"""What is done to an engine's own agent: written down before it is done, one at a time, and what came of it."""

from __future__ import annotations

from backend.agent.core.state import Tended
from backend.agent.core.turn import Turn
from backend.contract.commands import BeginResident, EndResident, MoveResidentJournal, RestartBridge, TendResident
from backend.contract.entities import OpenOperation, Result

KINDS = frozenset(
    kind.__struct_config__.tag for kind in (EndResident, BeginResident, MoveResidentJournal, RestartBridge)
)


def why_not_tend(turn: Turn, command: TendResident) -> str:
    """Why it is refused before anything is touched, in words; empty when it may be done."""
    expected = command.expect.agent_epoch
    if expected not in (None, turn.state.agent_epoch):
        return (
            f"E_FENCED: it was decided against agent_epoch {expected} of {turn.state.host}, which is now "
            f"{turn.state.agent_epoch}: the agent restarted. Look again."
        )
    for operation in _open(turn):
        return (
            f"E_CONFLICT: {operation.command} by {operation.by} ({operation.op_id}) is under way on {turn.state.host}. "
            "Wait for its result."
        )
    return ""


def tending_words(command: TendResident) -> str:
    """What is about to be done, and who wants it why: what the journal keeps."""
    why = f": {command.why}" if command.why else ""
    if isinstance(command, MoveResidentJournal):
        return (
            f"{command.by} approved moving the journal of the {command.engine} agent aside, {command.files} files and "
            f"{command.bytes} bytes, from {command.folder} to {command.aside}{why}"
        )
    if isinstance(command, EndResident):
        return f"{command.by} ends the {command.engine} agent {command.life}, and its stages with it{why}"
    if isinstance(command, BeginResident):
        return f"{command.by} starts the {command.engine} agent{why}"
    return f"{command.by} restarts the bridge of {command.engine}{why}"


def on_tended(turn: Turn, event: Tended) -> None:
    """The one result of it."""
    operation = turn.state.entities.operations.get(event.op_id)
    if operation is None or operation.result is not None:
        turn.set(ignored=turn.state.ignored + 1)
        return
    _record(turn, operation, event.result)


def on_started(turn: Turn) -> None:
    """A former life of this agent began them, and nobody saw how they ended: that is unknown."""
    for operation in _open(turn):
        words = (
            f"the agent of {turn.state.host} was started again while {operation.command} was under way: look at what "
            "became of it before it is asked for again"
        )
        _record(turn, operation, Result(status="failed", resource_state="unknown", first_error=words))


def _open(turn: Turn) -> list[OpenOperation]:
    operations = turn.state.entities.operations.values()
    return [operation for operation in operations if operation.command in KINDS and operation.result is None]


def _record(turn: Turn, operation: OpenOperation, result: Result) -> None:
    words = str(result.value.get("words", "")) or result.first_error or operation.command
    turn.record(
        f"{operation.command}.{result.status}",
        words,
        level="info" if result.status == "succeeded" else "warn",
        by=operation.by,
        operation=turn.ended_operation(operation, result),
    )
