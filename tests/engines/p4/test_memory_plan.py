"""What a stage binary says of its memory before a load, or does not: real programs that answer as one would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from backend.contract.findings import Finding
from backend.engines.p4.memory_plan import inspect_memory_plan, judge_memory_plan
from backend.planning.engines.p4_reported import Cut, heard_cut
from tests.engines.p4.plans import a_p4_plan

STAGE = """#!{python} -IS
import json, os, sys
length = int.from_bytes(sys.stdin.buffer.read(4), "little")
text = sys.stdin.buffer.read(length).decode()
open({seen!r}, "w").write(json.dumps([sys.argv[1:], text, dict(os.environ)]))
print("PLAN_APPLIED", file=sys.stderr)
print("MEMORY_PLAN " + {said!r}, file=sys.stderr)
sys.exit({code})
"""
AGREES: dict[str, Any] = {
    "max_physical_result_bytes": 137_935_244,
    "physical_result_tensor_count": 2,
    "physical_result_payload_bytes": 1_048_576,
    "fits_current_free": True,
    "devices": [{"name": "CUDA0", "free": 10, "total": 20, "required": 5}],
}


async def judged(folder: Path, said: dict[str, Any] | str, code: int = 0) -> tuple[Finding, ...]:
    """The findings about rank 1 by a binary that says this."""
    plan = a_p4_plan()
    text = said if isinstance(said, str) else json.dumps(said)
    path = folder / "stage"
    path.write_text(STAGE.format(python=sys.executable, seen=str(folder / "seen"), said=text, code=code))
    path.chmod(0o755)
    found = await inspect_memory_plan(plan, plan.shards[1], str(path), "/models/step37.gguf")
    return tuple(judge_memory_plan(plan, plan.shards[1], found))


async def test_a_plan_that_agrees_is_no_finding_and_is_asked_as_the_p4_agent_would(tmp_path: Path) -> None:
    assert await judged(tmp_path, AGREES) == ()
    plan = a_p4_plan()
    arguments, text, environment = json.loads((tmp_path / "seen").read_text())
    assert arguments == ["--port", str(plan.shards[1].ports[0]), "--bind", "127.0.0.1"]
    assert text.endswith(" --inspect-memory-plan")
    assert '--model "/models/step37.gguf"' in text
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "HOME" not in environment, "its environment is built from empty"


async def test_another_bound_is_known_before_the_model_is_read_with_the_numbers_to_write_down(tmp_path: Path) -> None:
    (finding,) = await judged(tmp_path, {**AGREES, "max_physical_result_bytes": 137_935_245})
    assert finding.id == "bound.differs"
    assert "137935244" in finding.expected
    assert "137935245" in finding.found
    assert "physical_result_tensor_count = 2; physical_result_payload_bytes = 1048576" in finding.found
    heard = heard_cut(a_p4_plan(), "load 1", [finding.words], is_proven=False)
    assert heard is not None
    assert heard.cuts == (Cut(2, 32_768),), "what it says is offered as geometry by the next plan"


async def test_a_stage_that_does_not_fit_is_refused_with_what_each_device_has(tmp_path: Path) -> None:
    (finding,) = await judged(tmp_path, {**AGREES, "fits_current_free": False}, 7)
    assert finding.id == "memory.engine_plan"
    assert "CUDA0 needs 5 of 10 free" in finding.found


async def test_a_plan_behind_megabytes_of_other_words_is_found(tmp_path: Path) -> None:
    plan = a_p4_plan()
    path = tmp_path / "stage"
    words = f"#!{sys.executable} -IS\nimport sys\nfor _ in range(3000): print('x' * 1023, file=sys.stderr)\n"
    path.write_text(f"{words}print('MEMORY_PLAN {{\"fits_current_free\": false}}', file=sys.stderr)\n")
    path.chmod(0o755)
    found = await inspect_memory_plan(plan, plan.shards[1], str(path), "/m")
    assert (found.code, found.plan) == (0, {"fits_current_free": False})


async def test_a_binary_without_the_option_leaves_the_formula(tmp_path: Path) -> None:
    plan = a_p4_plan()
    path = tmp_path / "stage"
    path.write_text("#!/bin/sh\necho unknown option >&2\nexit 2\n")
    path.chmod(0o755)
    found = await inspect_memory_plan(plan, plan.shards[1], str(path), "/m")
    assert (found.code, found.plan, found.words) == (2, None, "unknown option")
    assert tuple(judge_memory_plan(plan, plan.shards[1], found)) == ()
    assert (await inspect_memory_plan(plan, plan.shards[1], "/nowhere/stage", "/m")).plan is None
    assert await judged(tmp_path, "{not json") == ()


async def test_an_exit_that_says_it_does_not_fit_is_believed_without_a_plan(tmp_path: Path) -> None:
    plan = a_p4_plan()
    path = tmp_path / "stage"
    path.write_text("#!/bin/sh\necho no room on CUDA0 >&2\nexit 7\n")
    path.chmod(0o755)
    found = await inspect_memory_plan(plan, plan.shards[1], str(path), "/m")
    (finding,) = judge_memory_plan(plan, plan.shards[1], found)
    assert (finding.id, "no room on CUDA0" in finding.found) == ("memory.engine_plan", True)
