"""One step of the core in the making: records fold into the state at once, what must wait for them is kept back."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.agent.core.state import Append, CoreState, Effect, Now, Send
from backend.contract.cordons import Cordon
from backend.contract.entities import (
    Change,
    Drain,
    Failing,
    Hold,
    JournalRecord,
    KeeperLease,
    LoadRecord,
    OpenOperation,
    OperatorHold,
    Reservation,
    Result,
    Shard,
    fold,
    moves_revision,
)
from backend.contract.events import Answered
from backend.contract.states import ShardState, check_transition, shard_state
from backend.contract.words import NodeId, OpId, ReplicaId

_ON_THE_WAY = (ShardState.CONNECTING.value, ShardState.LOADING.value, ShardState.WARMING.value)


class Turn:
    """Collects what one event causes. Local to one call of ``step``; never kept."""

    def __init__(self, state: CoreState, now: Now) -> None:
        self.state = state
        self.now = now
        self._records: list[JournalRecord] = []
        self._is_lazy = True
        self._after: list[Effect] = []
        self._at_once: list[Effect] = []

    def set(self, **fields: Any) -> None:
        """Replace fields of the state."""
        self.state = msgspec.structs.replace(self.state, **fields)

    def record(
        self,
        kind: str,
        words: str,
        *,
        level: str = "info",
        by: str = "",
        shard: Shard | None = None,
        load: LoadRecord | None = None,
        reservation: Reservation | None = None,
        operation: OpenOperation | None = None,
        drain: Drain | None = None,
        hold: Hold | None = None,
        drop_shards: tuple[NodeId, ...] = (),
        drop_loads: tuple[OpId, ...] = (),
        drop_reservations: tuple[OpId, ...] = (),
        drop_operations: tuple[OpId, ...] = (),
        drop_drains: tuple[ReplicaId, ...] = (),
        drop_holds: tuple[str, ...] = (),
        failing: Failing | None = None,
        drop_failing: tuple[NodeId, ...] = (),
        operator_hold: OperatorHold | None = None,
        drop_operator_holds: tuple[str, ...] = (),
        keeper: KeeperLease | None = None,
        cordon: Cordon | None = None,
        drop_cordon: bool = False,
        replica: str = "",
        node_id: str = "",
    ) -> None:
        """Add one journal record with its after-images; the state carries them from here on."""
        change = Change(
            shard=shard,
            load=load,
            reservation=reservation,
            operation=operation,
            drain=drain,
            hold=hold,
            drop_shards=drop_shards,
            drop_loads=drop_loads,
            drop_reservations=drop_reservations,
            drop_operations=drop_operations,
            drop_drains=drop_drains,
            drop_holds=drop_holds,
            failing=failing,
            drop_failing=drop_failing,
            operator_hold=operator_hold,
            drop_operator_holds=drop_operator_holds,
            keeper=keeper,
            cordon=cordon,
            drop_cordon=drop_cordon,
        )
        record = JournalRecord(
            kind=kind,
            words=words,
            at_unix_ms=self.now.unix_ms,
            level=level,
            by=by,
            replica=replica or (shard.replica if shard else node_id.rpartition("/")[0]),
            node_id=node_id or (shard.node_id if shard else ""),
            change=None if change == Change() else change,
        )
        self._records.append(record)
        self._is_lazy = self._is_lazy and self._is_progress(record)
        moved = moves_revision(record.change)
        self.set(
            entities=fold(self.state.entities, record),
            revision=self.state.revision + (1 if moved else 0),
        )

    def move(self, shard: Shard, state: ShardState, words: str, **fields: Any) -> Shard:
        """The shard in its next state. Raises IllegalTransition for a step that no shard can take."""
        old = shard_state(shard.state)
        if old is not None:
            check_transition(shard.node_id, old, state)
        since = shard.since_unix_ms if old is state else self.now.unix_ms
        return msgspec.structs.replace(
            shard, state=state.value, words=words, since_unix_ms=since, revision=shard.revision + 1, **fields
        )

    def open_operations(self, command: str, subject: str) -> list[OpenOperation]:
        """The commands of this kind on this subject that have no result yet; more than one may ask for one end."""
        return [
            operation
            for operation in self.state.entities.operations.values()
            if operation.command == command and operation.subject == subject and operation.result is None
        ]

    def ended_operation(self, operation: OpenOperation, result: Result) -> OpenOperation:
        """The operation with its one result; whoever asked is told once that is durable."""
        ended = msgspec.structs.replace(operation, result=result)
        for conn in self.state.asked.get(operation.op_id, ()):
            self.then(Send(conn, Answered(op_id=operation.op_id, command=operation.command, result=result)))
        self.set(asked={k: v for k, v in self.state.asked.items() if k != operation.op_id})
        return ended

    def then(self, effect: Effect) -> None:
        """Do this once the records of this step are durable."""
        self._after.append(effect)

    def once_known(self, effect: Effect) -> None:
        """Do this once everything decided so far is durable: at once when nothing waits, else with the last of it."""
        if not self.state.awaiting:
            self._at_once.append(effect)
            return
        last = max(self.state.awaiting)
        self.set(awaiting={**self.state.awaiting, last: (*self.state.awaiting[last], effect)})

    def at_once(self, effect: Effect) -> None:
        """Do this now; nothing durable depends on it."""
        self._at_once.append(effect)

    def finish(self) -> tuple[CoreState, tuple[Effect, ...]]:
        """The new state, and the effects in order."""
        if not self._records:
            return self.state, (*self._at_once, *self._after)
        token = self.state.next_token
        self.set(next_token=token + 1, awaiting={**self.state.awaiting, token: tuple(self._after)})
        lazy = self._is_lazy and not self._after
        return self.state, (*self._at_once, Append(token, tuple(self._records), lazy))

    def _is_progress(self, record: JournalRecord) -> bool:
        """Only the words of a shard on its way move, in a state that it had already: the next record restates it."""
        shard = record.change.shard if record.change is not None else None
        if shard is None or record.kind != shard.state or record.change != Change(shard=shard):
            return False
        before = self.state.entities.shards.get(shard.node_id)
        return before is not None and before.state == shard.state and shard.state in _ON_THE_WAY
