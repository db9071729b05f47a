"""Whoever asks is answered, and what can be told is told, whatever comes in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from backend.agent.config import EngineConfig
from backend.agent.tending import Tending
from backend.contract.commands import BeginResident, InspectModel
from backend.contract.events import Answered
from backend.contract.words import OpId
from tests.agent.bare_agent import BareAgent, Heard


class OddDriver:
    """Stands in for an engine that answers what its driver never expected."""

    async def inspect(self, path: Path) -> object:
        raise KeyError("n_layer")

    async def facts(self) -> object:
        raise KeyError("nodes")

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


async def test_an_engine_that_cannot_be_looked_at_is_said_so_and_the_others_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = BareAgent(tmp_path, engines={"llamacpp": EngineConfig()})
    inventory = agent.daemon.inventory
    inventory.drivers["llamacpp"] = cast(Any, OddDriver())
    for _ in range(2):
        await inventory.measure(agent.daemon.core.entities)
    (facts,) = inventory.facts.engines
    assert facts.words == "a fault of ringtop's agent while it looked at llamacpp: KeyError: 'nodes'"
    assert capsys.readouterr().err.count("Traceback") == 1
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
