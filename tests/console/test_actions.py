"""The registry: every key means one thing, and nothing writes where nothing may."""

from __future__ import annotations

import pytest

from backend.contract.states import ReplicaState
from console.actions import ACTIONS, BY_KEY, Action, Command, Selection, parse_command, refusal
from console.handlers import HANDLERS
from tests.console.worlds import fleet, replica

ON_TINY = Selection(replica="tiny-1")


def _action(name: str) -> Action:
    return next(each for each in ACTIONS if each.id == name)


def test_every_action_has_a_handler_and_every_handler_an_action() -> None:
    assert set(HANDLERS) == {action.id for action in ACTIONS}


def test_no_key_means_two_things() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))


def test_every_write_key_is_a_capital_and_its_small_twin_does_nothing_near_it() -> None:
    for action in ACTIONS:
        if action.is_write:
            assert all(key.isupper() and len(key) == 1 for key in action.keys)
            assert not [key for key in action.keys if key.lower() in BY_KEY and key != "R"]


def test_the_one_write_key_with_a_small_twin_wants_a_name_typed_and_the_twin_reads() -> None:
    assert not BY_KEY["r"].is_write
    assert "name must be typed" in BY_KEY["R"].help


@pytest.mark.parametrize("action", [each for each in ACTIONS if each.is_write], ids=lambda each: each.id)
def test_a_read_only_context_refuses_every_write_and_says_so(action: Action) -> None:
    why = refusal(action, fleet(replica(), read_only=True), ON_TINY)
    assert why is not None
    assert "read-only" in why


@pytest.mark.parametrize("action", [each for each in ACTIONS if not each.is_write], ids=lambda each: each.id)
def test_a_read_only_context_refuses_no_read(action: Action) -> None:
    assert refusal(action, fleet(replica(), read_only=True), ON_TINY) is None


def test_an_action_that_is_not_possible_says_why() -> None:
    failed = fleet(replica(state=ReplicaState.FAILED))
    assert refusal(_action("drain"), failed, ON_TINY) == (
        "drain is not possible: tiny-1 is failed: nothing is left to empty"
    )
    assert "answers nothing" in (refusal(_action("test"), failed, ON_TINY) or "")
    assert "no longer there" in (refusal(_action("drain"), fleet(), ON_TINY) or "")
    assert "no replica is selected" in (refusal(_action("unload"), fleet(), Selection()) or "")
    assert "names no model" in (refusal(_action("load"), fleet(models={}), Selection()) or "")
    assert "no host is live" in (refusal(_action("load"), fleet(hosts={}), Selection()) or "")


def test_before_the_first_state_only_what_needs_none_is_possible() -> None:
    assert refusal(_action("quit"), None, Selection()) is None
    assert refusal(_action("load"), None, Selection()) is not None


def test_commands_go_by_name_by_twin_and_by_a_beginning_that_is_alone() -> None:
    assert parse_command("drain tiny-1") == Command(_action("drain"), "tiny-1")
    assert parse_command("  unl  tiny-1 ") == Command(_action("unload"), "tiny-1")
    assert parse_command("q") == Command(_action("quit"))
    assert "may be" in str(parse_command("d"))
    assert "there is no command" in str(parse_command("reboot"))
    assert "no command was typed" in str(parse_command("  "))
