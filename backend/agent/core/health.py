"""What the core keeps of the host's health: each change once in the journal, and slots that fail again and again."""

from __future__ import annotations

from backend.agent.core.state import DropNote, GlassBroken, HealthSeen
from backend.agent.core.turn import Turn
from backend.contract.entities import Failing
from backend.contract.reports import Illness
from backend.contract.words import NodeId

FLAPPING_FAILURES = 3
FLAPPING_SECONDS = 600
"""A slot that fails this often within this time is quarantined."""
JOURNAL_DAMAGED = "journal damaged"
"""The illness of a journal that cannot be written: nothing can be noted then, not even this."""


def on_health(turn: Turn, event: HealthSeen) -> None:
    """Write down what began, what changed its degree and what ended; the words alone may move without a record."""
    if turn.state.journal_failed or any(ill.kind == JOURNAL_DAMAGED for ill in event.illnesses):
        return
    before = {(ill.kind, ill.subject): ill for ill in turn.state.illnesses}
    after = {(ill.kind, ill.subject): ill for ill in event.illnesses}
    for key, ill in after.items():
        known = before.get(key)
        if known is None or known.refuses_loads != ill.refuses_loads:
            level = "alarm" if ill.refuses_loads else "warn"
            turn.record("illness", f"{ill.kind}: {ill.words}", level=level, node_id=_node(turn, ill))
    for key, ill in before.items():
        if key not in after:
            turn.record("illness.over", f"no longer {_named(ill)}", node_id=_node(turn, ill))
    turn.set(illnesses=event.illnesses)


def on_glass_broken(turn: Turn, event: GlassBroken) -> None:
    """Take over what was done past the agent; its note may go once that is durable."""
    turn.record("break_glass", event.words, level="alarm", by=event.by)
    turn.then(DropNote(event.note))


def failing_after(turn: Turn, node_id: NodeId, words: str) -> Failing:
    """The failures of a slot with this one; the third within ten minutes quarantines it."""
    known = turn.state.entities.failing.get(node_id)
    oldest = turn.now.unix_ms - FLAPPING_SECONDS * 1000
    recent = tuple(at for at in (known.failed_unix_ms if known else ()) if oldest <= at <= turn.now.unix_ms)
    failed = (*recent, turn.now.unix_ms)[-FLAPPING_FAILURES:]
    is_quarantined = len(failed) >= FLAPPING_FAILURES or (known is not None and known.is_quarantined)
    return Failing(node_id=node_id, failed_unix_ms=failed, words=words, is_quarantined=is_quarantined)


def say_quarantine(turn: Turn, known: Failing | None, failing: Failing | None) -> None:
    """Say aloud that a slot was quarantined just now."""
    if failing is None or not failing.is_quarantined or (known is not None and known.is_quarantined):
        return
    words = (
        f"failed {len(failing.failed_unix_ms)} times within {FLAPPING_SECONDS // 60} min: quarantined until it is "
        f"unloaded; the last time: {failing.words}"
    )
    turn.record("quarantined", words, level="alarm", node_id=failing.node_id)


def clear_failures(turn: Turn, node_id: NodeId, by: str) -> None:
    """Somebody unloaded the slot: its failures are forgotten."""
    if node_id in turn.state.entities.failing:
        turn.record("failures cleared", "its failures are forgotten", by=by, node_id=node_id, drop_failing=(node_id,))


def why_quarantined(turn: Turn, node_id: NodeId) -> str:
    """The refusal for a quarantined slot, or an empty text."""
    failing = turn.state.entities.failing.get(node_id)
    if failing is None or not failing.is_quarantined:
        return ""
    return (
        f"E_REFUSED: {node_id} is quarantined on {turn.state.host}: it failed {len(failing.failed_unix_ms)} times "
        f"within {FLAPPING_SECONDS // 60} min, the last time with: {failing.words}. Find out why, then unload it: that "
        "clears this."
    )


def _named(ill: Illness) -> str:
    return f"{ill.kind} ({ill.subject})" if ill.subject else ill.kind


def _node(turn: Turn, ill: Illness) -> str:
    return ill.subject if ill.subject in turn.state.entities.shards else ""
