"""One fold serves the agent and every console: its laws."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.cordons import Cordon
from backend.contract.entities import (
    Change,
    Entities,
    JournalRecord,
    KeeperLease,
    OperatorHold,
    fold,
    hold_key,
    operator_hold_key,
)
from backend.contract.words import NodeId, OpId, ReplicaId, UnixMs
from tests.contract.factories import GENERATION, drain, hold, load_record, operation, reservation, shard

NODES = ["tiny-1/0", "tiny-1/1", "big-2/0"]
OPS = ["op-0", "op-1", "op-2"]
REPLICAS = ["tiny-1", "big-2"]
HOLDS = [hold(node, kind) for node in NODES for kind in ("ports", "device")]
OPERATOR_HOLDS = [
    OperatorHold(subject=name, scope=scope, kind="down", by="alice", why="", at_unix_ms=UnixMs(1))
    for name, scope in (("tiny-1", "replica"), ("tiny", "model"), ("tiny-1", "model"))
]
GENERATIONS = st.integers(1, 2**64 - 1)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def some(values: list[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), max_size=2, unique=True).map(tuple)


def lease(epoch: int) -> KeeperLease:
    return KeeperLease(keeper_epoch=epoch, who="alice", console="k", seconds=30.0, at_unix_ms=UnixMs(1))


def cordon(by: str) -> Cordon:
    return Cordon(by=by, why="fan", at_unix_ms=UnixMs(1))


CHANGES = st.builds(
    Change,
    shard=optional(st.builds(shard, st.sampled_from(NODES), GENERATIONS)),
    load=optional(st.builds(load_record, st.sampled_from(OPS))),
    reservation=optional(st.builds(reservation, st.sampled_from(OPS), GENERATIONS)),
    operation=optional(st.builds(operation, st.sampled_from(OPS))),
    drain=optional(st.builds(drain, st.sampled_from(REPLICAS))),
    hold=optional(st.sampled_from(HOLDS)),
    drop_shards=some(NODES),
    drop_loads=some(OPS),
    drop_reservations=some(OPS),
    drop_operations=some(OPS),
    drop_drains=some(REPLICAS),
    drop_holds=some([hold_key(h) for h in HOLDS]),
    operator_hold=optional(st.sampled_from(OPERATOR_HOLDS)),
    drop_operator_holds=some([operator_hold_key(h.scope, h.subject) for h in OPERATOR_HOLDS]),
    keeper=optional(st.builds(lease, st.integers(1, 9))),
    cordon=optional(st.builds(cordon, st.sampled_from(["alice", "bob"]))),
    drop_cordon=st.booleans(),
)
RECORDS = st.builds(
    JournalRecord, kind=st.just("test"), words=st.just("x"), at_unix_ms=st.just(UnixMs(1)), change=optional(CHANGES)
)
HISTORIES = st.lists(RECORDS, max_size=8)


def step(**change: Any) -> JournalRecord:
    return JournalRecord(kind="test", words="x", at_unix_ms=UnixMs(1), change=Change(**change))


def folded(history: list[JournalRecord]) -> Entities:
    entities = Entities()
    for record in history:
        entities = fold(entities, record)
    return entities


@given(HISTORIES)
def test_a_record_without_a_change_changes_nothing(history: list[JournalRecord]) -> None:
    entities = folded(history)
    plain = JournalRecord(kind="test", words="x", at_unix_ms=UnixMs(1))
    assert fold(entities, plain) is entities
    assert fold(entities, msgspec.structs.replace(plain, change=Change())) == entities


@given(HISTORIES)
def test_the_highest_generation_only_grows_and_is_never_below_a_shard_or_reservation(
    history: list[JournalRecord],
) -> None:
    entities = Entities()
    for record in history:
        after = fold(entities, record)
        assert after.highest_generation >= entities.highest_generation
        named = [s.load_generation for s in after.shards.values()]
        named += [r.load_generation for r in after.reservations.values()]
        assert after.highest_generation >= max(named, default=0)
        entities = after


@given(HISTORIES, RECORDS)
def test_a_fold_sets_what_it_names_drops_what_it_drops_and_leaves_the_rest(
    history: list[JournalRecord], record: JournalRecord
) -> None:
    before, after = folded(history), fold(folded(history), record)
    change = record.change or Change()
    rows: list[tuple[dict[Any, Any], dict[Any, Any], Any, Any, tuple[Any, ...]]] = [
        (before.shards, after.shards, change.shard, "node_id", change.drop_shards),
        (before.loads, after.loads, change.load, "op_id", change.drop_loads),
        (before.reservations, after.reservations, change.reservation, "op_id", change.drop_reservations),
        (before.operations, after.operations, change.operation, "op_id", change.drop_operations),
        (before.drains, after.drains, change.drain, "replica", change.drop_drains),
    ]
    for old, new, set_to, key, dropped in rows:
        expected = {k: v for k, v in old.items() if k not in dropped}
        if set_to is not None:
            expected[getattr(set_to, key)] = set_to
        assert new == expected
    expected_holds = {k: v for k, v in before.holds.items() if k not in change.drop_holds}
    if change.hold is not None:
        expected_holds[hold_key(change.hold)] = change.hold
    assert after.holds == expected_holds
    gone = change.drop_operator_holds
    expected_operator = {k: v for k, v in before.operator_holds.items() if k not in gone}
    if (decided := change.operator_hold) is not None:
        expected_operator[operator_hold_key(decided.scope, decided.subject)] = decided
    assert after.operator_holds == expected_operator
    assert after.keeper == (change.keeper or before.keeper)
    kept = None if change.drop_cordon else before.cordon
    assert after.cordon == (change.cordon or kept)


@given(HISTORIES, RECORDS)
def test_a_fold_never_touches_the_entities_that_it_was_given(
    history: list[JournalRecord], record: JournalRecord
) -> None:
    entities = folded(history)
    kept = msgspec.json.encode(entities)
    fold(entities, record)
    assert msgspec.json.encode(entities) == kept


@given(HISTORIES, RECORDS)
def test_folding_a_record_twice_is_folding_it_once(history: list[JournalRecord], record: JournalRecord) -> None:
    once = fold(folded(history), record)
    assert fold(once, record) == once


@given(HISTORIES)
def test_a_console_that_folds_what_travelled_ends_where_the_agent_is(history: list[JournalRecord]) -> None:
    cut = len(history) // 2
    report = msgspec.json.decode(msgspec.json.encode(folded(history[:cut])), type=Entities)
    for record in history[cut:]:
        report = fold(report, msgspec.json.decode(msgspec.json.encode(record), type=JournalRecord))
    assert report == folded(history)


def test_only_the_dicts_that_a_record_touches_are_copied() -> None:
    before = folded([step(shard=shard()), step(operation=operation())])
    after = fold(before, step(drain=drain()))
    assert after.shards is before.shards
    assert after.operations is before.operations
    assert after.drains is not before.drains


def test_a_dropped_shard_is_gone_and_its_generation_stays_used_up() -> None:
    entities = folded([step(shard=shard()), step(drop_shards=(NodeId("tiny-1/0"),))])
    assert entities.shards == {}
    assert entities.highest_generation == GENERATION


def test_dropping_what_is_not_there_changes_nothing() -> None:
    entities = folded([step(shard=shard())])
    gone = step(drop_shards=(NodeId("x/0"),), drop_loads=(OpId("x"),), drop_drains=(ReplicaId("x"),))
    assert fold(entities, gone) == entities
