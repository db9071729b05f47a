"""A keeper at work behind a door that answers at once: what it says of operations, and how it ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.words import OpId, UnixMs
from backend.control.keeper_decisions import KeeperRules
from backend.control.keeping import Keeping, NotKept
from backend.control.requests import ClaimKeeping, MakePlan, Request, ResignKeeping, StartLoad
from backend.control.views import Answer, FleetState, OperationView
from tests.control.factories import GENERATION, A, B, a_plan
from tests.control.test_keeper import bare, fleet


class StandInDoor:
    """A backend without links: every request is answered at once, a load becomes an operation in this state."""

    def __init__(self, state: str, exit_code: int | None) -> None:
        self._fleet = fleet(*bare())
        self._end = (state, exit_code)
        self.asked: list[Request] = []

    def state(self) -> FleetState:
        return self._fleet

    def submit(self, request: Request) -> OpId:
        self.asked.append(request)
        op_id = OpId(f"op-{len(self.asked)}")
        value: dict[str, Any] = {"held": [A, B], "refused": {}} if isinstance(request, ClaimKeeping) else {}
        answer = Answer(
            op_id=op_id,
            request=type(request).__name__,
            done=True,
            plan=a_plan() if isinstance(request, MakePlan) else None,
            value=value,
        )
        operations = self._fleet.operations
        if isinstance(request, StartLoad):
            operations = {**operations, op_id: self._operation(op_id)}
        answers = {**self._fleet.answers, op_id: answer}
        self._fleet = msgspec.structs.replace(self._fleet, answers=answers, operations=operations)
        return op_id

    def _operation(self, op_id: OpId) -> OperationView:
        state, exit_code = self._end
        return OperationView(
            id=op_id,
            kind="load",
            subject="tiny-1",
            by="keeper alice",
            state=state,
            words="rank 2 sent to host-b",
            started_unix_ms=UnixMs(1),
            ended_unix_ms=UnixMs(2) if exit_code is not None else None,
            load_generation=GENERATION,
            steps=(),
            exit_code=exit_code,
        )


def kept_once(state: str, exit_code: int | None) -> tuple[StandInDoor, list[dict[str, Any]], NotKept | None]:
    """One look of a keeper whose load ends so; what it told, and why it was no success."""
    door, told = StandInDoor(state, exit_code), list[dict[str, Any]]()
    keeper = Keeping(door, who="alice", console="keeper-1", rules=KeeperRules(), tell=told.append)
    try:
        keeper.keep(once=True)
    except NotKept as error:
        return door, told, error
    return door, told, None


def test_one_look_waits_for_its_operations_and_gives_the_lease_back() -> None:
    door, told, error = kept_once("succeeded", 0)
    assert error is None
    assert [each["event"] for each in told] == ["keeping", "decided", "ended", "resigned"]
    assert [type(each) for each in door.asked] == [ClaimKeeping, MakePlan, StartLoad, ResignKeeping]


@pytest.mark.parametrize(
    ("state", "exit_code", "code", "words"),
    [
        ("failed", 5, 5, "op-3 ended with exit code 5: rank 2 sent to host-b"),
        ("unknown", 3, 5, "op-3 ended with exit code 3"),
        (
            "ownerless",
            None,
            3,
            "the process of op-3 is gone, its last step: rank 2 sent to host-b. Go on with",
        ),
        ("damaged", None, 5, "op-3 ended with exit code none"),
    ],
)
def test_an_operation_that_is_no_success_is_none_of_the_keeper_either(
    state: str, exit_code: int | None, code: int, words: str
) -> None:
    door, told, error = kept_once(state, exit_code)
    assert error is not None
    assert (error.code, words in str(error)) == (code, True), str(error)
    assert isinstance(door.asked[-1], ResignKeeping)
    assert told[-1]["event"] == "resigned"
