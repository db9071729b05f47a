"""What a command says that follows an operation whose process is gone."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from backend.contract.words import OpId, UnixMs
from backend.control.views import Answer, OperationView
from console.commands.door import watch
from console.commands.exits import CommandFailed
from tests.console.stand_in import StandInDoor
from tests.console.worlds import fleet

OP = OpId("load-1-ab")


def followed(**fields: Any) -> CommandFailed:
    view = OperationView(
        id=OP, kind="load", subject="tiny-1", by="alice", state="ownerless", words="rank 2 sent to gpu-b",
        started_unix_ms=UnixMs(1), ended_unix_ms=None, load_generation=None, steps=(),
    )  # fmt: skip
    view = msgspec.structs.replace(view, **fields)
    answer = Answer(op_id=OP, request="StartLoad", done=True, words=OP)
    door = StandInDoor(msgspec.structs.replace(fleet(), operations={OP: view}, answers={OP: answer}))
    door.start()
    with pytest.raises(CommandFailed) as ended:
        watch(cast(Any, door), OP, show=lambda step: None, look=lambda state: None)
    return ended.value


def test_an_operation_whose_process_is_gone_is_said_to_be_without_one_and_how_to_go_on() -> None:
    failed = followed()
    assert failed.exit_code == 3
    assert failed.words.startswith(
        f"the process of {OP} is gone, its last step: rank 2 sent to gpu-b. Any operator may"
    )
    assert f"ringtop op resume {OP}" in failed.words


def test_one_that_halted_has_said_why_itself() -> None:
    failed = followed(words="stopped at port: port 9 is taken. Then go on: ringtop op resume X", exit_code=5)
    assert (failed.exit_code, failed.words) == (5, "stopped at port: port 9 is taken. Then go on: ringtop op resume X")
