"""What an agent keeps for the keeper: the lease that makes it one, and what people decided that it must obey.

A renewal moves the deadline of the lease and is not written: in the steady state nothing is. So a restarted agent gives
a lease its whole length again, which is never too short for the keeper that has it.
"""

from __future__ import annotations

import msgspec

from backend.agent.core.turn import Turn
from backend.contract.commands import ClaimKeeper, EndOperatorHold, ResignKeeper, SetOperatorHold
from backend.contract.durations import duration
from backend.contract.entities import KeeperLease, OperatorHold, operator_hold_key


def hold(turn: Turn, command: SetOperatorHold) -> None:
    """Write down what a person decided, in the place of what was decided before."""
    key = operator_hold_key(command.scope, command.subject)
    held = OperatorHold(
        subject=command.subject,
        scope=command.scope,
        kind=command.kind,
        by=command.by,
        why=command.why,
        at_unix_ms=turn.now.unix_ms,
        left_ms=None if command.seconds is None else int(command.seconds * 1000),
    )
    _set_hold_deadline(turn, key, command.seconds)
    lasts = "until it is released" if command.seconds is None else f"for {duration(command.seconds)}"
    words = f"{command.scope} {command.subject} is {command.kind} {lasts}{f': {command.why}' if command.why else ''}"
    turn.record(f"operator.{command.kind}", words, by=command.by, replica=_replica(held), operator_hold=held)


def release(turn: Turn, command: EndOperatorHold) -> None:
    """End what holds a replica or a model; nothing is written when nothing does."""
    key = operator_hold_key(command.scope, command.subject)
    held = turn.state.entities.operator_holds.get(key)
    if held is None:
        return
    _set_hold_deadline(turn, key, None)
    words = f"{held.scope} {held.subject} is no longer {held.kind}"
    turn.record("operator.released", words, by=command.by, replica=_replica(held), drop_operator_holds=(key,))


def renew(turn: Turn, command: ClaimKeeper) -> bool:
    """Whether this claim renews the lease that its console has; then it lasts for as long again."""
    lease = _lease(turn)
    if lease is None or (lease.console, lease.keeper_epoch) != (command.console, command.keeper_epoch):
        return False
    turn.set(lease_deadline=turn.now.mono + lease.seconds)
    return True


def claim(turn: Turn, command: ClaimKeeper) -> str:
    """Give the lease to a new keeper; returns the refusal in words, or an empty text."""
    lease, stored = _lease(turn), turn.state.entities.keeper
    if lease is not None and lease.console != command.console:
        return (
            f"E_KEEPER: {lease.who} keeps this fleet with keeper_epoch {lease.keeper_epoch}; the lease at "
            f"{turn.state.host} ends in {duration(_left_seconds(turn))} unless it is renewed. Wait for that, or end "
            f"{lease.who}'s keeper."
        )
    if stored is not None and command.keeper_epoch <= stored.keeper_epoch:
        return (
            f"E_FENCED: keeper_epoch {command.keeper_epoch} is not above {stored.keeper_epoch}, which "
            f"{turn.state.host} has seen from {stored.who}. Claim with a higher one."
        )
    turn.set(lease_deadline=turn.now.mono + command.seconds)
    given = KeeperLease(
        keeper_epoch=command.keeper_epoch,
        who=command.who,
        console=command.console,
        seconds=command.seconds,
        at_unix_ms=turn.now.unix_ms,
    )
    words = f"{command.who} keeps the fleet with keeper_epoch {command.keeper_epoch}"
    turn.record("keeper.claimed", words, by=command.who, keeper=given)
    return ""


def resign(turn: Turn, command: ResignKeeper) -> str:
    """Take the lease back from its keeper; returns the refusal in words, or an empty text."""
    lease = _lease(turn)
    if lease is None:
        return ""
    if (lease.console, lease.keeper_epoch) != (command.console, command.keeper_epoch):
        return (
            f"E_KEEPER: the lease at {turn.state.host} is {lease.who}'s with keeper_epoch {lease.keeper_epoch}, not "
            f"that of keeper_epoch {command.keeper_epoch}. Only its own keeper gives it back."
        )
    _end_lease(turn, lease, "resigned", by=command.by)
    return ""


def on_tick(turn: Turn) -> None:
    """End the holds and the lease whose time is over."""
    for key, deadline in list(turn.state.hold_deadlines.items()):
        if turn.now.mono < deadline:
            continue
        _set_hold_deadline(turn, key, None)
        held = turn.state.entities.operator_holds.get(key)
        if held is not None:
            words = f"{held.scope} {held.subject} is no longer {held.kind}: the time that {held.by} gave is over"
            turn.record("operator.released", words, replica=_replica(held), drop_operator_holds=(key,))
    stored = turn.state.entities.keeper
    ends = turn.state.lease_deadline
    if stored is not None and not stored.ended and ends is not None and turn.now.mono >= ends:
        _end_lease(turn, stored, "over", by="")


def restored_deadlines(turn: Turn) -> None:
    """After a restart: holds have what was left of them, less the wall time that passed; a lease is whole again."""
    for key, held in turn.state.entities.operator_holds.items():
        if held.left_ms is not None:
            passed = max(0, turn.now.unix_ms - held.at_unix_ms) / 1000
            _set_hold_deadline(turn, key, max(0.0, held.left_ms / 1000 - passed))
    stored = turn.state.entities.keeper
    if stored is not None and not stored.ended:
        turn.set(lease_deadline=turn.now.mono + stored.seconds)


def _lease(turn: Turn) -> KeeperLease | None:
    """The lease that holds now."""
    stored, deadline = turn.state.entities.keeper, turn.state.lease_deadline
    holds = stored is not None and not stored.ended and deadline is not None and turn.now.mono < deadline
    return stored if holds else None


def _end_lease(turn: Turn, lease: KeeperLease, ended: str, *, by: str) -> None:
    turn.set(lease_deadline=None)
    how = "gave the keeping back" if ended == "resigned" else "no longer keeps the fleet: its lease is over"
    level = "info" if ended == "resigned" else "warn"
    over = msgspec.structs.replace(lease, ended=ended)
    turn.record(f"keeper.{ended}", f"{lease.who} {how}", level=level, by=by, keeper=over)


def _left_seconds(turn: Turn) -> float:
    deadline = turn.state.lease_deadline
    return max(0.0, deadline - turn.now.mono) if deadline is not None else 0.0


def _set_hold_deadline(turn: Turn, key: str, seconds: float | None) -> None:
    others = {k: v for k, v in turn.state.hold_deadlines.items() if k != key}
    turn.set(hold_deadlines=others if seconds is None else {**others, key: turn.now.mono + seconds})


def _replica(held: OperatorHold) -> str:
    return held.subject if held.scope == "replica" else ""
