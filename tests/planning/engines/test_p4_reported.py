"""The cut of an unknown architecture, worked out of what loads reported: to the byte, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.entities import Entities, Exit, LoadRecord, OpenOperation, Result
from backend.contract.plans import Plan, Profile
from backend.contract.words import OpId, UnixMs
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.engines.p4_bounds import ResultShape, largest_result
from backend.planning.engines.p4_reported import Cut, HeardCut, agreed, cuts_for, cuts_of, heard_at, heard_cut
from backend.planning.plan import plan
from tests.planning.worlds import GIB, NOW, Ask, a_fleet, a_host, a_model, a_shard, an_engine, ids

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data/result-bound.json").read_text())
GLM = a_model(architecture="glm5", n_embd=4096, context_train=4096)
TRUE = Cut(3, 57_344)
"""What crosses a cut of the unknown model in truth: two tensors of its width, and one of 6144 floats."""


def shape(n_batch: int = 128, n_ubatch: int = 32, **changes: Any) -> ResultShape:
    fields = {"n_batch": n_batch, "n_ubatch": n_ubatch, "n_seq_max": 8, "tensors": 0, "payload_bytes": 0, **changes}
    return ResultShape(**fields)


def ready(n_ubatch: int = 32, cut: Cut = TRUE) -> int:
    """The largest result that a stage of the true cut reports."""
    return largest_result(shape(n_ubatch=n_ubatch, tensors=cut.tensors, payload_bytes=cut.row_bytes * n_ubatch))


def a_chain(fleet: Any = None, *, geometry: Any = None, **profile: Any) -> Plan:
    wide = Profile(
        **{"ranks": 4, "device": "CUDA*", "n_batch": 128, "n_ubatch": 32, "sequences": 8, "context": 4096, **profile}
    )
    entry = ModelEntry(name="glm", path="glm.gguf", engine="p4", profiles={"wide": wide}, geometry=geometry or {})
    return plan(Catalog("c", {"glm": entry}), fleet or hosts(), Ask("glm"), model=GLM, now_unix_ms=NOW)


def hosts(entities: Entities | None = None) -> Any:
    gpus = {"CPU": (20 * GIB, 0), "CUDA0": (20 * GIB, 0), "CUDA1": (20 * GIB, 0)}
    engine = msgspec.structs.replace(an_engine(*gpus), engine="p4")
    first = a_host("host-a", devices=gpus, engines=(engine,), entities=entities or Entities())
    return a_fleet(first, a_host("host-b", devices=gpus, engines=(engine,)))


def loaded(words: str, *, state: str = "failed", made: Plan | None = None) -> Entities:
    """A host that still has the record of a load whose head said this."""
    made = made or a_chain()
    head = a_shard("host-a", node=f"{made.replica}/0", state=state, rank=0, generation=int(made.load_generation))
    end = Exit(code=1, signal=None, words="it ended", at_unix_ms=UnixMs(1), log_tail=(words,))
    record = LoadRecord(op_id=OpId("op"), by="alice", plan=made, at_unix_ms=UnixMs(1))
    shown = msgspec.structs.replace(head, exit=end if state == "failed" else None)
    return Entities(shards={head.node_id: shown}, loads={record.op_id: record})


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["tensors"] and not v.get("speculative")])
def test_every_reported_bound_gives_back_the_cut_that_it_came_from(vector: dict[str, Any]) -> None:
    sizes = {key: vector[key] for key in ("n_batch", "n_ubatch", "n_seq_max")}
    row = vector["payload_bytes"] // vector["n_ubatch"]
    found = cuts_of(vector["max_physical_result_bytes"], shape(**sizes), row // vector["tensors"] // 4)
    assert found[0] == Cut(vector["tensors"], row)


@given(
    st.integers(1, 8),
    st.integers(1, 65_536),
    st.integers(1, 2048),
    st.integers(1, 4),
    st.integers(1, 64),
    st.booleans(),
)
def test_the_true_cut_is_always_among_those_found_and_each_gives_the_very_number(
    tensors: int, floats: int, n_ubatch: int, times: int, n_seq_max: int, speculative: bool
) -> None:
    n_batch = min(65_536, n_ubatch * times)
    true = Cut(tensors, floats * 4)
    bare = shape(n_batch, n_ubatch, n_seq_max=n_seq_max, speculative=speculative)

    def result_of(cut: Cut) -> int:
        return largest_result(
            msgspec.structs.replace(bare, tensors=cut.tensors, payload_bytes=cut.row_bytes * n_ubatch)
        )

    said = result_of(true)
    found = cuts_of(said, bare, 4096)
    if said == largest_result(bare):  # the step that ends is the larger one: it says nothing of the cut
        assert found == ()
    else:
        assert true in found
        assert {result_of(cut) for cut in found} == {said}


@pytest.mark.parametrize(
    "words",
    [
        "resource profile physical result mismatch: profile={planned}, READY={said}",
        "refuse bound.differs glm-1/0 on host-a: max_physical_result_bytes = {said} in LOADED; expected "
        "max_physical_result_bytes = {planned}, as planned. It runs in another shape than was checked.",
        "READY;n_batch=128;n_ubatch=32;physical_result_payload_bytes=1835008;physical_result_tensor_count=3",
        'MEMORY_PLAN {{"physical_result_payload_bytes": 1835008, "physical_result_tensor_count": 3, "n_ubatch": 32}}',
    ],
)
def test_a_load_that_failed_offers_the_numbers_of_its_ready_as_geometry(words: str) -> None:
    made = a_chain()
    planned = int(made.shards[0].bound.result)
    said = words.format(planned=planned, said=ready())
    again = a_chain(hosts(loaded(said)))
    assert ids(again) == ["bound.unverified", "bound.reported"]
    (offered,) = [finding for finding in again.findings if finding.id == "bound.reported"]
    assert "cut_tensors = 3, cut_row_bytes = 57344" in offered.expected
    assert f"load record of glm-1, generation {NOW}, at host-a" in offered.expected
    assert "[models.glm.geometry]" in offered.remedy
    assert f"{ready()} bytes" in offered.remedy
    settled = a_chain(hosts(loaded(said)), geometry={"cut_tensors": 3, "cut_row_bytes": 57_344})
    assert settled.findings == ()
    assert settled.shards[0].bound.result == ready()


def test_what_a_command_was_answered_is_heard_as_well() -> None:
    made = a_chain()
    said = f"resource profile physical result mismatch: profile={made.shards[0].bound.result}, READY={ready()}"
    operation = OpenOperation(
        op_id=OpId("load-0"),
        command="load",
        subject=f"{made.replica}/0",
        by="alice",
        payload_digest="d",
        at_unix_ms=UnixMs(1),
        result=Result(status="failed", resource_state="absent", first_error=said),
        generation=int(made.load_generation),
    )
    entities = msgspec.structs.replace(loaded("nothing of it"), operations={operation.op_id: operation})
    assert [each.cuts[0] for each in heard_at(hosts(entities).reports)] == [TRUE]


def test_a_load_that_is_ready_proves_what_was_assumed() -> None:
    (heard,) = heard_at(hosts(loaded("", state="ready")).reports)
    assert heard.cuts[0] == Cut(2, 32_768)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "stage server exited while starting: signal 11",
        "resource profile physical result mismatch: profile=3696012, READY=3696013",
        "resource profile physical result mismatch: profile={planned}, READY=17",
        "READY;physical_result_payload_bytes=0;physical_result_tensor_count=0",
    ],
)
def test_what_says_nothing_of_a_cut_offers_nothing(words: str) -> None:
    said = words.format(planned=int(a_chain().shards[0].bound.result))
    assert heard_at(hosts(loaded(said)).reports) == ()


def test_the_result_of_a_step_that_ends_says_nothing_of_a_cut_though_one_would_give_it() -> None:
    for n_ubatch in range(1, 65):
        bare = shape(n_ubatch=n_ubatch, speculative=True)
        assert cuts_of(largest_result(bare), bare, 4096) == ()


def test_another_architecture_or_width_is_never_offered() -> None:
    made = a_chain()
    said = f"profile={made.shards[0].bound.result}, READY={ready()}"
    heard = heard_cut(made, "here", [said], is_proven=False)
    assert heard is not None
    assert cuts_for([heard], "glm5", 4096, "other") == (heard,)
    assert cuts_for([heard], "glm5", 8192, "d" * 64) == ()
    assert cuts_for([heard], "glm4", 4096, "d" * 64) == ()
    unnamed = msgspec.structs.replace(heard, architecture="")
    assert cuts_for([unnamed], "", 4096, "d" * 64) == ()


def test_two_loads_of_other_micro_batches_leave_one_cut_and_contradictions_none() -> None:
    def one(n_ubatch: int, cut: Cut = TRUE) -> HeardCut:
        cuts = cuts_of(ready(n_ubatch, cut), shape(n_ubatch=n_ubatch), 4096)
        return HeardCut(architecture="glm5", n_embd=4096, header_digest="", source=f"u{n_ubatch}", cuts=cuts)

    vague, sharp = one(1), one(32)
    assert len(vague.cuts) > 1
    assert agreed([vague]) == vague.cuts
    assert agreed([vague, sharp]) == (TRUE,)
    assert agreed([vague, one(32, Cut(2, 32_768))]) == ()
    assert agreed([]) == ()
