"""The result bound of p4 to the byte, what fits a store, and a chain of stages as the plan sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.plans import Plan, Profile, Term
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.engines.p4 import P4_RULES, is_verified, pairs_that_fit, window_counts
from backend.planning.engines.p4_bounds import (
    BoundRefused,
    ResultShape,
    derivation,
    fitting_pairs,
    largest_n_ubatch,
    largest_result,
)
from backend.planning.engines.p4_commands import load_body, stage_plan
from backend.planning.plan import plan
from tests.planning.worlds import GIB, NOW, Ask, a_fleet, a_host, a_model, an_engine, ids

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data/result-bound.json").read_text())
MIB = 2**20


def step37(n_batch: int, n_ubatch: int, **changes: Any) -> ResultShape:
    """A head or middle stage of the one model that was measured."""
    return ResultShape(
        **{
            "n_batch": n_batch,
            "n_ubatch": n_ubatch,
            "n_seq_max": 8,
            "tensors": 2,
            "payload_bytes": 32_768 * n_ubatch,
            **changes,
        }
    )


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_every_reported_bound_is_met_to_the_byte(vector: dict[str, Any]) -> None:
    shape = msgspec.convert({key: vector[key] for key in ResultShape.__struct_fields__}, ResultShape)
    assert largest_result(shape) == vector["max_physical_result_bytes"]
    assert derivation(shape).value == vector["max_physical_result_bytes"]


def test_the_derivation_is_a_tree_whose_parts_give_the_number() -> None:
    for shape in (step37(128, 32), step37(128, 32, speculative=True), step37(2048, 512)):
        root = derivation(shape)
        assert root.value == max(part.value for part in root.terms)
        goes_on = {part.name: part.value for part in root.terms[0].terms}
        each = goes_on["capsule"] + goes_on["tensors"] * goes_on["descriptor"] + goes_on["payload"] + goes_on["row"]
        assert root.terms[0].value == goes_on["header"] + goes_on["n_batch"] * each
        ends = {part.name: part.value for part in root.terms[1].terms}
        assert root.terms[1].value == 12 + ends["n_batch"] * (ends["capsule"] + ends["row"] + ends["outcome"])
        assert all(term.source for term in every(root))


def every(term: Term) -> list[Term]:
    return [term, *(inner for part in term.terms for inner in every(part))]


shapes = st.builds(
    lambda n_batch, share, n_seq_max, tensors, row, speculative: ResultShape(
        n_batch=n_batch,
        n_ubatch=max(1, n_batch * share // 100),
        n_seq_max=n_seq_max,
        tensors=tensors,
        payload_bytes=row * max(1, n_batch * share // 100) if tensors else 0,
        speculative=speculative,
    ),
    st.integers(1, 65_536),
    st.integers(1, 100),
    st.integers(1, 512),
    st.integers(0, 64),
    st.integers(0, 2**20),
    st.booleans(),
)


@given(shapes, st.integers(1, 4096))
def test_the_bound_never_shrinks_as_a_batch_grows(shape: ResultShape, more: int) -> None:
    here = largest_result(shape)
    if shape.n_batch + more <= 65_536:
        assert largest_result(shape.at(shape.n_batch + more, shape.n_ubatch)) > here
    if shape.n_ubatch + more <= shape.n_batch:
        assert largest_result(shape.at(shape.n_batch, shape.n_ubatch + more)) >= here


@given(shapes, st.integers(1, 2 * GIB))
def test_each_offered_pair_fits_and_one_row_more_does_not(shape: ResultShape, store: int) -> None:
    for pair in fitting_pairs(shape, store):
        assert pair.max_physical_result_bytes == largest_result(shape.at(pair.n_batch, pair.n_ubatch)) <= store
        if pair.n_ubatch < pair.n_batch:
            assert largest_result(shape.at(pair.n_batch, pair.n_ubatch + 1)) > store
    if largest_n_ubatch(shape, shape.n_batch, store) is None:
        assert largest_result(shape.at(shape.n_batch, 1)) > store


def test_the_pairs_are_those_that_operators_worked_out() -> None:
    of_192 = {128: 47, 256: 23, 512: 11, 2048: 2}
    of_256 = {128: 63, 256: 31, 512: 15, 2048: 3}
    for store, wanted in ((192 * MIB, of_192), (256 * MIB, of_256)):
        found = {pair.n_batch: pair.n_ubatch for pair in fitting_pairs(step37(128, 32), store)}
        assert {n_batch: found[n_batch] for n_batch in wanted} == wanted


def test_small_batches_are_offered_only_where_nothing_larger_fits() -> None:
    assert min(pair.n_batch for pair in fitting_pairs(step37(128, 32))) == 32
    assert [pair.n_batch for pair in fitting_pairs(step37(128, 32), 200_000)] == [1, 2]
    assert fitting_pairs(step37(128, 32), 1_000) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"payload_bytes": 2**53}, "is 18446744073"),
        ({"payload_bytes": 2**64}, "payload_bytes is"),
        ({"n_batch": 65_537}, "at most 65536 rows"),
        ({"n_ubatch": 2049}, "above n_batch 2048"),
        ({"n_ubatch": 0}, "n_ubatch is 0"),
        ({"n_seq_max": 0}, "n_seq_max is 0"),
        ({"tensors": 16_385}, "at most 16384"),
        ({"tensors": 0}, "tensors = 0"),
    ],
)
def test_what_the_engine_refuses_has_no_bound(changes: dict[str, int], words: str) -> None:
    with pytest.raises(BoundRefused, match=words):
        largest_result(step37(**{"n_batch": 2048, "n_ubatch": 512, **changes}))


def test_the_last_number_that_fits_u64_is_no_overflow() -> None:
    room = 2**64 - 1 - 12 - (20_615 + 32 + 4_198)
    assert largest_result(ResultShape(n_batch=1, n_ubatch=1, n_seq_max=8, tensors=1, payload_bytes=room)) == 2**64 - 1
    with pytest.raises(BoundRefused, match="more than 2\\^64-1"):
        largest_result(ResultShape(n_batch=1, n_ubatch=1, n_seq_max=8, tensors=1, payload_bytes=room + 1))


# --- the chain ----------------------------------------------------------------------------------------------------


def a_chain(*, model: Any = None, geometry: dict[str, Any] | None = None, **profile: Any) -> Plan:
    shape = Profile(
        **{"ranks": 4, "device": "CUDA*", "n_batch": 128, "n_ubatch": 32, "sequences": 8, "context": 4096, **profile}
    )
    entry = ModelEntry(
        name="step37", path="step37.gguf", engine="p4", profiles={"wide": shape}, geometry=geometry or {}
    )
    gpus = {"CPU": (20 * GIB, 0), "CUDA0": (20 * GIB, 0), "CUDA1": (20 * GIB, 0)}
    engine = msgspec.structs.replace(an_engine(*gpus), engine="p4")
    fleet = a_fleet(*(a_host(name, devices=gpus, engines=(engine,)) for name in ("host-a", "host-b")))
    facts = a_model(architecture="step35", n_embd=4096, context_train=4096) if model is None else model
    return plan(Catalog("c", {"step37": entry}), fleet, Ask("step37"), model=facts, now_unix_ms=NOW)


def test_a_chain_has_a_window_for_every_stage_and_the_reported_bounds() -> None:
    made = a_chain()
    assert made.findings == ()
    assert [shard.role for shard in made.shards] == ["head", "stage", "stage", "tail"]
    assert [shard.layers for shard in made.shards] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [(shard.host, shard.device) for shard in made.shards] == [
        ("host-a", "CUDA0"),
        ("host-a", "CUDA1"),
        ("host-b", "CUDA0"),
        ("host-b", "CUDA1"),
    ]
    assert [shard.bound.result for shard in made.shards] == [137_935_244] * 3 + [3_696_012]
    assert all(shard.bound.result_derived and shard.bound.result_limit == 256 * MIB for shard in made.shards)


def test_a_result_that_fits_no_store_is_refused_with_the_pairs_that_do() -> None:
    made = a_chain(n_batch=2048, n_ubatch=512)
    found = [finding for finding in made.findings if finding.id == "bound.result"]
    assert len(found) == 3
    assert "34419218444" in found[0].found
    assert "2048 with n_ubatch up to 3" in found[0].remedy
    assert "128 with n_ubatch up to 63" in found[0].remedy
    assert "bound.result" not in ids(a_chain(n_batch=2048, n_ubatch=3))
    assert "bound.result" in ids(a_chain(n_batch=2048, n_ubatch=4))


def test_a_cut_that_nobody_verified_warns_and_reported_geometry_settles_it() -> None:
    other = a_model(architecture="glm5", n_embd=4096, context_train=4096)
    warned = a_chain(model=other)
    assert ids(warned) == ["bound.unverified"]
    assert not warned.shards[0].bound.result_derived
    assert warned.shards[3].bound.result_derived
    settled = a_chain(model=other, geometry={"cut_tensors": 2, "cut_row_bytes": 32_768})
    assert settled.findings == ()
    assert settled.shards[0].bound.result == 137_935_244
    assert not is_verified(other)


def test_a_bound_beyond_u64_is_a_finding() -> None:
    made = a_chain(geometry={"cut_tensors": 2, "cut_row_bytes": 2**55})
    assert "bound.overflow" in ids(made)
    assert made.is_refused


def test_a_cut_for_which_no_batch_fits_is_a_finding_and_not_an_error() -> None:
    """Larger batches, which the remedy looks through, are beyond 2^64-1 where the one asked for is not."""
    made = a_chain(geometry={"cut_tensors": 2, "cut_row_bytes": 2**50}, n_batch=1, n_ubatch=1)
    finding = next(each for each in made.findings if each.id == "bound.result")
    assert "No batch fits this store" in finding.remedy


@pytest.mark.parametrize(
    ("profile", "id"),
    [
        ({"ranks": 1}, "ranks"),
        ({"ranks": 5}, "ranks"),
        ({"devices": 2}, "ranks.devices"),
        ({"split": (2, 2)}, "split.length"),
        ({"split": (1, 1, 1, 2)}, "split.sum"),
        ({"n_batch": 16}, "batch.order"),
        ({"options": {"wait_policy": "active"}}, "threads.spin"),
        ({"options": {"environment": "x"}}, "options.refused"),
        ({"options": {"stor": 3}}, "options.unknown"),
        ({"options": {"store": 0}}, "options.value"),
        ({"options": {"flash_attn": "off", "cache_type_v": "q8_0"}}, "options.value"),
        ({"context": 8192}, "context.training"),
    ],
)
def test_a_chain_that_cannot_work_is_named(profile: dict[str, Any], id: str) -> None:
    assert id in ids(a_chain(**profile))


def test_windows_are_even_with_the_remainder_in_front() -> None:
    assert window_counts(Profile(ranks=4), a_model(n_layer=45)) == (12, 11, 11, 11)
    assert window_counts(Profile(ranks=2, split=(1, 3)), a_model()) == (1, 3)
    assert P4_RULES.stop_order(a_chain()) == ((0,), (1, 2, 3))
    assert P4_RULES.start_order(a_chain()) == ((1, 2, 3), (0,))


def test_the_agent_is_told_one_generation_the_derived_bound_and_threads_that_sleep() -> None:
    made = a_chain()
    body = load_body(made, made.shards[1], binary="/opt/p4/stage", model="/models/step37.gguf")
    assert body["load_generation"] == int(made.shards[1].node_generation) == NOW
    assert body["endpoint"] == f"127.0.0.1:{made.shards[1].ports[0]}"
    assert body["resource_profile"]["max_physical_result_bytes"] == 137_935_244
    assert len(body["resource_profile"]) == 12
    assert body["environment"] == [["OMP_WAIT_POLICY", "PASSIVE"]]
    assert body["context_size"] * body["sequence_capacity"] == body["total_context_size"] == 32_768
    profile = body["resource_profile"]
    assert profile["max_physical_result_bytes"] <= profile["max_completion_payload_bytes"]
    assert profile["max_requests"] * profile["max_output_tokens_per_request"] <= profile["max_output_tokens"]
    assert profile["max_request_bytes"] <= profile["max_request_retained_bytes"]


def test_the_stage_is_told_its_window_and_the_device_that_must_hold_it() -> None:
    made = a_chain()
    words = stage_plan(made, made.shards[3], "/models/step 37.gguf")
    assert '--model "/models/step 37.gguf"' in words
    assert "--layer-begin 3 --layer-end 4 --kv-layer-begin 3 --kv-layer-end 4" in words
    assert "--expect-layer-device 3:4:CUDA1" in words
    assert "--memory-topology discrete" in words
    stranger = msgspec.structs.replace(made.shards[3], layers=None)
    with pytest.raises(ValueError, match="no window of layers"):
        stage_plan(made, stranger, "/m")


def test_a_smaller_store_takes_smaller_batches() -> None:
    small = Profile(ranks=4, n_batch=128, n_ubatch=32, sequences=8, options={"store": 192})
    model = a_model(architecture="step35", n_embd=4096)
    assert {pair.n_batch: pair.n_ubatch for pair in pairs_that_fit(small, model)}[128] == 47


@pytest.mark.parametrize("path", ['/models/a"b.gguf', '/m.gguf" --stage-only "', "/m\nn.gguf"])
def test_a_path_that_would_end_its_own_quotes_is_refused(path: str) -> None:
    made = a_chain()
    with pytest.raises(ValueError, match="Rename the file"):
        stage_plan(made, made.shards[0], path)


def test_a_plan_without_bounds_of_its_phases_is_no_load() -> None:
    made = msgspec.structs.replace(a_chain(), phases=())
    with pytest.raises(ValueError, match="no bound for the phase 'connecting'"):
        load_body(made, made.shards[0], binary="/stage", model="/m")
