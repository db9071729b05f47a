"""A shard takes only the steps that a shard can take."""

from __future__ import annotations

from itertools import pairwise

import pytest

from backend.contract.states import IllegalTransition, ShardState, check_transition, shard_state

LIFE = [
    ShardState.RESERVED,
    ShardState.SPAWNING,
    ShardState.CONNECTING,
    ShardState.LOADING,
    ShardState.WARMING,
    ShardState.READY,
    ShardState.DRAINING,
    ShardState.STOPPING,
    ShardState.STOPPED,
]


def may(old: ShardState, new: ShardState) -> bool:
    try:
        check_transition("tiny-1/0", old, new)
    except IllegalTransition:
        return False
    return True


def test_a_whole_life_is_legal_step_by_step() -> None:
    for old, new in pairwise(LIFE):
        check_transition("tiny-1/0", old, new)


@pytest.mark.parametrize("state", list(ShardState))
def test_staying_in_place_is_legal_and_only_terminal_states_lead_nowhere(state: ShardState) -> None:
    check_transition("tiny-1/0", state, state)
    ways_on = [new for new in ShardState if new is not state and may(state, new)]
    assert bool(ways_on) != state.is_terminal


@pytest.mark.parametrize("state", [state for state in ShardState if not state.is_terminal])
def test_every_state_before_the_end_can_fail(state: ShardState) -> None:
    check_transition("tiny-1/0", state, ShardState.FAILED)


@pytest.mark.parametrize("state", list(ShardState))
def test_nothing_becomes_reserved_again(state: ShardState) -> None:
    assert state is ShardState.RESERVED or not may(state, ShardState.RESERVED)


def test_a_live_shard_is_stopped_only_through_stopping() -> None:
    stopped_from = [s for s in ShardState if s is not ShardState.STOPPED and may(s, ShardState.STOPPED)]
    assert stopped_from == [ShardState.RESERVED, ShardState.STOPPING]


def test_an_illegal_step_names_the_shard_both_states_and_what_is_allowed() -> None:
    with pytest.raises(IllegalTransition, match=r"tiny-1/0 is stopping and cannot become ready; .*failed, stopped"):
        check_transition("tiny-1/0", ShardState.STOPPING, ShardState.READY)
    with pytest.raises(IllegalTransition, match="from there: nothing"):
        check_transition("tiny-1/0", ShardState.FAILED, ShardState.READY)


def test_live_means_that_a_process_was_proven() -> None:
    assert not ShardState.RESERVED.is_live
    assert not any(state.is_live for state in ShardState if state.is_terminal)
    assert ShardState.SPAWNING.is_live


def test_a_word_of_a_newer_agent_is_no_state_and_no_error() -> None:
    assert shard_state("ready") is ShardState.READY
    assert shard_state("levitating") is None
