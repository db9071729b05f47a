"""Whoever asks is answered, whatever comes in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from backend.agent.tending import Tending
from backend.contract.commands import BeginResident, InspectModel
from backend.contract.events import Answered
from backend.contract.words import OpId
from tests.agent.bare_agent import BareAgent, Heard


class OddDriver:
    """Stands in for an engine that answers what its driver never expected."""

    async def inspect(self, path: Path) -> object:
        raise KeyError("n_layer")

    async def begin(self) -> str:
        raise KeyError("pid")


async def test_a_question_that_meets_a_fault_of_ours_is_answered_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, heard = BareAgent(tmp_path, model_roots=(str(tmp_path),)), Heard()
    (tmp_path / "m.gguf").write_bytes(b"x")
    agent.daemon.inventory.drivers["llamacpp"] = cast(Any, OddDriver())
    await agent.daemon.desk._answer(cast(Any, heard), InspectModel(op_id=OpId("m"), path="m.gguf"))
    (answered,) = heard.events
    assert isinstance(answered, Answered)
    assert (answered.op_id, answered.result.status, answered.result.resource_state) == ("m", "failed", "unknown")
    assert "a fault of ringtop's agent on host-a: KeyError: 'n_layer'" in answered.result.first_error
    assert "Traceback" in capsys.readouterr().err
    await agent.close()


async def test_a_deed_at_an_engines_own_agent_that_meets_a_fault_of_ours_has_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tending = Tending({}, lambda event: None)
    monkeypatch.setattr(tending, "_tender", lambda engine: OddDriver())
    result = await tending._done(BeginResident(op_id=OpId("b"), engine="p4", by="alice"))
    assert (result.status, result.resource_state) == ("failed", "unknown")
    assert "KeyError: 'pid'. Look at what became of it on the host" in result.first_error
    assert "Traceback" in capsys.readouterr().err
