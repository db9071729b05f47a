"""The cordon of this host: no new shards here. It outlives the agent and ends by its time or by a person."""

from __future__ import annotations

from backend.agent.core.turn import Turn
from backend.contract.commands import CordonHost, Expect, UncordonHost
from backend.contract.cordons import Cordon, cordon_remedy
from backend.contract.durations import duration


def why_cordoned(turn: Turn) -> str:
    """The refusal of anything new on this host, or an empty text."""
    cordon = turn.state.entities.cordon
    if cordon is None:
        return ""
    return f"E_CORDONED: {turn.state.host} takes no new shards: {cordon.words}. {cordon_remedy(turn.state.host)}"


def set_cordon(turn: Turn, command: CordonHost) -> str:
    """Cordon the host; returns the refusal in words, or an empty text.

    Whoever set a cordon may change it; that of somebody else is first taken back, so that nobody's reason is lost.
    """
    if refusal := _why_moved(turn, command.expect):
        return refusal
    stands = turn.state.entities.cordon
    if stands is not None and stands.by != command.by:
        host = turn.state.host
        return (
            f"E_CORDONED: {host} is {stands.words} already, so that {command.by} need not. To change it, take it back "
            f"first: ringtop uncordon {host}."
        )
    cordon = Cordon(
        by=command.by,
        why=command.why,
        at_unix_ms=turn.now.unix_ms,
        left_ms=None if command.seconds is None else int(command.seconds * 1000),
    )
    turn.set(cordon_deadline=None if command.seconds is None else turn.now.mono + command.seconds)
    lasts = "until it is uncordoned" if command.seconds is None else f"for {duration(command.seconds)}"
    why = f": {command.why}" if command.why else ""
    words = f"{turn.state.host} is cordoned {lasts}, it takes no new shards{why}"
    turn.record("cordoned", words, level="warn", by=command.by, cordon=cordon)
    return ""


def end_cordon(turn: Turn, command: UncordonHost) -> str:
    """Take the cordon back; nothing is written when there is none. Returns the refusal, or an empty text."""
    if refusal := _why_moved(turn, command.expect):
        return refusal
    stands = turn.state.entities.cordon
    if stands is not None:
        turn.set(cordon_deadline=None)
        words = f"{turn.state.host} takes new shards again; it was {stands.words}"
        turn.record("uncordoned", words, by=command.by, drop_cordon=True)
    return ""


def on_tick(turn: Turn) -> None:
    """End a cordon whose time is over."""
    deadline, stands = turn.state.cordon_deadline, turn.state.entities.cordon
    if deadline is None or turn.now.mono < deadline:
        return
    turn.set(cordon_deadline=None)
    if stands is not None:
        words = f"{turn.state.host} takes new shards again: the time that {stands.by} gave its cordon is over"
        turn.record("uncordoned", words, drop_cordon=True)


def restored_deadline(turn: Turn) -> None:
    """After a restart: what was left of it, less the wall time that passed since, never more than was left."""
    stands = turn.state.entities.cordon
    if stands is not None and stands.left_ms is not None:
        passed = max(0, turn.now.unix_ms - stands.at_unix_ms) / 1000
        turn.set(cordon_deadline=turn.now.mono + max(0.0, stands.left_ms / 1000 - passed))


def _why_moved(turn: Turn, expect: Expect) -> str:
    """What must equal this host's present state, or the refusal that names both."""
    host, state = turn.state.host, turn.state
    if expect.agent_epoch not in (None, state.agent_epoch):
        return (
            f"E_FENCED: expected was agent_epoch {expect.agent_epoch} of {host}, which is now {state.agent_epoch}: the "
            "agent restarted. Look again."
        )
    if expect.revision not in (None, state.revision):
        cordon = state.entities.cordon
        stands = f"is {cordon.words}" if cordon is not None else "is not cordoned"
        return (
            f"E_FENCED: expected was revision {expect.revision} of {host}, which is now {state.revision}; the host "
            f"{stands}. Look again."
        )
    return ""
