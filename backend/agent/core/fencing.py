"""Who waits for a journal, and what they are told when it will take nothing more in this life of the agent.

A fenced journal may have kept what was last written to it, or not: nobody knows before it is read again. So whoever
asked hears at once that the end of the command is unknown, instead of waiting for an answer that cannot come.
"""

from __future__ import annotations

from backend.agent.core.state import CoreState, Effect, JournalFailed, Send
from backend.agent.core.turn import Turn
from backend.contract.entities import OpenOperation, Result
from backend.contract.events import Accepted, Answered
from backend.contract.words import OpId


def on_journal_failed(turn: Turn, event: JournalFailed) -> None:
    """Nothing is taken from here on; when it is over, everybody who waits is answered, once."""
    is_over = turn.state.journal_is_over or event.is_over
    turn.set(journal_failed=event.words, journal_is_over=is_over)
    if not is_over:
        return
    for op_id, conn in waiting(turn.state):
        turn.at_once(Send(conn, unknown_end(turn.state, op_id)))
    # What was durable before may still be said so, and then its engine starts; only the words were said already.
    kept = {token: tuple(e for e in effects if not _is_word(e)) for token, effects in turn.state.awaiting.items()}
    turn.set(asked={}, awaiting=kept)


def waiting(state: CoreState) -> list[tuple[OpId, int]]:
    """Who waits for which command: for its result, or for a word that waits for the journal."""
    found = [(op_id, conn) for op_id, conns in state.asked.items() for conn in conns]
    for effects in state.awaiting.values():
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.event, Accepted | Answered):
                found.append((effect.event.op_id, effect.conn))
    return list(dict.fromkeys(found))


def never_ends(state: CoreState, operation: OpenOperation) -> bool:
    """No result of this command will become durable in this life, or one that is decided may not have."""
    return state.journal_is_over and (operation.result is None or bool(state.awaiting))


def unknown_end(state: CoreState, op_id: OpId) -> Answered:
    """The answer to a command whose end the journal does not take: failed, and what became of it is unknown."""
    operation = state.entities.operations.get(op_id)
    words = (
        f"E_JOURNAL: the end of this command cannot be recorded on {state.host}, so what became of it is not known: "
        f"{state.journal_failed} Ask for {op_id} again afterwards: the journal then says what of it was kept."
    )
    result = Result(status="failed", resource_state="unknown", first_error=words)
    return Answered(op_id=op_id, command=operation.command if operation is not None else "command", result=result)


def _is_word(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.event, Accepted | Answered)
