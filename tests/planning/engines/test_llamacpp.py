"""The rules of llama.cpp against its float32 arithmetic, and against the engine's own lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.models import ModelFacts
from backend.contract.plans import Profile
from backend.engines.llamacpp.model_file import read_header
from backend.local.tiny_model import write_tiny_model
from backend.planning.engines import RULES, UnknownEngine, rules
from backend.planning.engines.llamacpp import (
    LLAMACPP,
    canary_slot,
    layer_counts,
    leader_command,
    tensor_split,
    worker_command,
)
from backend.planning.engines.llamacpp_bounds import placed_counts, row_bytes
from backend.planning.engines.llamacpp_options import OPTIONS, REFUSED
from tests.planning.engines.real_ring import derived, loopback_plan, running
from tests.planning.worlds import a_model, a_plan


def numpy_placement(split: tuple[float, ...], n_layer: int) -> tuple[int, ...]:
    """The engine's arithmetic once more, by a library's float32."""
    sums = np.cumsum(np.array(split, dtype=np.float32), dtype=np.float32)
    shares = sums / sums[-1]
    counts = [0] * len(split)
    for layer in range(n_layer):
        counts[int(np.searchsorted(shares, np.float32(layer) / np.float32(n_layer + 1), side="right"))] += 1
    return tuple(counts)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_chosen_counts_are_the_counts_that_the_engine_places(counts: list[int]) -> None:
    chosen = tuple(counts)
    assert placed_counts(tensor_split(chosen), sum(chosen)) == chosen


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0, 1.5, 3.0]), min_size=1, max_size=6), st.integers(1, 90))
def test_fractions_are_placed_in_float32_as_the_engine_does(split: list[float], n_layer: int) -> None:
    assert placed_counts(tuple(split), n_layer) == numpy_placement(tuple(split), n_layer)


@given(st.integers(1, 120), st.integers(1, 16))
def test_an_even_split_gives_every_worker_a_layer_and_no_two_differ_by_more_than_one(
    n_layer: int, workers: int
) -> None:
    if workers > n_layer:
        return
    counts = layer_counts(Profile(ranks=workers + 1), a_model(n_layer=n_layer))
    assert len(counts) == workers
    assert sum(counts) == n_layer
    assert min(counts) >= 1
    units = tensor_split(counts)
    assert max(units[:-1], default=units[-1]) - min(units) <= 1 or counts[-1] == 1


@pytest.mark.parametrize(
    ("ranks", "split", "ranges"),
    [
        (3, (), [None, (0, 3), (3, 4)]),
        (3, (2, 2), [None, (0, 2), (2, 4)]),
        (4, (), [None, (0, 2), (2, 3), (3, 4)]),
        (2, (), [None, (0, 4)]),
        (1, (), [(0, 4)]),
    ],
)
def test_layers_are_contiguous_and_the_last_worker_holds_the_output(
    ranks: int, split: tuple[int, ...], ranges: list[tuple[int, int] | None]
) -> None:
    seats = LLAMACPP.seats(Profile(ranks=ranks, split=split), a_model())
    assert [seat.layers for seat in seats] == ranges
    assert [seat.holds_output for seat in seats] == [False] * (ranks - 1) + [True]
    assert [seat.role for seat in seats] == ["leader"] + ["worker"] * (ranks - 1)


@pytest.mark.parametrize(
    ("profile", "id", "both"),
    [
        (Profile(ranks=3, split=(4,)), "split.length", ("2", "1")),
        (Profile(ranks=3, split=(2, 3)), "split.sum", ("4", "5")),
        (Profile(ranks=6), "ranks", ("4", "6")),
    ],
)
def test_a_shape_that_does_not_go_with_the_model_names_both_numbers(
    profile: Profile, id: str, both: tuple[str, str]
) -> None:
    (finding,) = LLAMACPP.check_shape(profile, a_model())
    assert finding.id == id
    assert both[0] in finding.expected
    assert both[1] in finding.found
    assert all(seat.layers is None for seat in LLAMACPP.seats(profile, a_model()))


def test_the_leaders_command_line_sets_every_option_with_a_dangerous_default() -> None:
    plan = a_plan(profile={"sequences": 2, "threads": 3})
    argv, env = leader_command(plan, plan.shards[0], "/engines", "/models/tiny.gguf")
    text = " ".join(argv)
    a, b = plan.shards[1], plan.shards[2]
    assert text.startswith("/engines/llama-server -m /models/tiny.gguf --host 127.0.0.1 --port 18000 ")
    assert f"--rpc {a.advertise}:{a.ports[0]},{b.advertise}:{b.ports[0]} --device RPC0,RPC1 -ts 3,2 " in text
    assert " -ngl 999 -c 2048 -np 3 -kvu -b 2048 -ub 512 -t 3 " in text
    assert " -ctk f16 -ctv f16 -fa auto -cram 0 " in text
    assert text.endswith("--metrics -lv 4 --sse-ping-interval 2 --no-cache-idle-slots --no-webui")
    assert env == {
        "GGML_NO_BACKTRACE": "1",
        "VK_ICD_FILENAMES": "/nonexistent",
        "VK_DRIVER_FILES": "/nonexistent",
    }
    assert canary_slot(plan) == 2


def test_a_workers_command_line_names_address_port_device_and_threads() -> None:
    plan = a_plan(profile={"threads": 3})
    argv, env = worker_command(plan, plan.shards[2], "/engines")
    shard = plan.shards[2]
    assert argv == (
        *("/engines/ggml-rpc-server", "-H", shard.advertise, "-p", str(shard.ports[0])),
        *("-d", "CPU", "-t", "3"),
    )
    assert env["VK_ICD_FILENAMES"] == "/nonexistent"


def test_a_gpu_worker_keeps_its_gpus_visible() -> None:
    plan = a_plan()
    shard = msgspec.structs.replace(plan.shards[1], device="Vulkan0")
    plan = msgspec.structs.replace(plan, shards=(plan.shards[0], shard, plan.shards[2]))
    assert worker_command(plan, shard, "/engines")[1] == {"GGML_NO_BACKTRACE": "1"}


def test_one_rank_alone_dials_nobody() -> None:
    plan = a_plan(profile={"ranks": 1, "hosts": ("host-a",)})
    text = " ".join(leader_command(plan, plan.shards[0], "/engines", "/m.gguf")[0])
    assert "--rpc" not in text
    assert " --device none -ngl 999 " in text


def test_options_from_the_wire_are_refused_at_the_command_line_too() -> None:
    plan = a_plan()
    for options in ({"lora": "/etc/passwd"}, {"cram": "0 --host 0.0.0.0"}, {"flash_attn": True}):
        bad = msgspec.structs.replace(plan, profile=msgspec.structs.replace(plan.profile, options=options))
        with pytest.raises(ValueError, match=next(iter(options))):
            leader_command(bad, bad.shards[0], "/engines", "/m.gguf")


def test_a_shard_of_another_role_or_without_address_gets_no_command_line() -> None:
    plan = a_plan()
    with pytest.raises(ValueError, match="no worker"):
        worker_command(plan, plan.shards[0], "/engines")
    with pytest.raises(ValueError, match="not the leader"):
        leader_command(plan, plan.shards[1], "/engines", "/m.gguf")
    silent = msgspec.structs.replace(plan.shards[1], ports=())
    plan = msgspec.structs.replace(plan, shards=(plan.shards[0], silent))
    with pytest.raises(ValueError, match="has no address"):
        worker_command(plan, silent, "/engines")


@pytest.mark.parametrize(
    ("options", "id"),
    [
        ({"flash_atn": "on"}, "options.unknown"),
        ({"ngl": 99}, "options.refused"),
        ({"cram": -1}, "options.value"),
        ({"cram": True}, "options.value"),
        ({"cache_type_k": "q3_k"}, "options.value"),
        ({"flash_attn": "off", "cache_type_v": "q8_0"}, "options.value"),
    ],
)
def test_an_option_outside_the_allowlist_is_refused_by_name(options: dict[str, Any], id: str) -> None:
    (finding,) = LLAMACPP.check_options(Profile(ranks=1, options=options))
    assert finding.id == id
    assert finding.severity == "refuse"


def test_allowed_options_pass_and_no_option_is_both_allowed_and_refused() -> None:
    options = {"cache_type_k": "q8_0", "cache_type_v": "f32", "flash_attn": "on", "cram": 512}
    assert LLAMACPP.check_options(Profile(ranks=1, options=options)) == ()
    assert not set(OPTIONS) & set(REFUSED)


def test_the_largest_result_of_a_middle_rank_is_its_micro_batch_of_hidden_rows() -> None:
    bounds = LLAMACPP.bounds(a_model(n_embd=8192), Profile(ranks=3, context=4096, n_ubatch=512), (2, 2))
    assert [bound.result for bound in bounds] == [0, 512 * 8192 * 4 + 8, 3 * 547 * 4 + 8]


def test_a_micro_batch_is_cut_to_the_batch_and_the_context() -> None:
    def result(**profile: Any) -> int:
        return LLAMACPP.bounds(a_model(), Profile(ranks=3, n_ubatch=4_000_000, **profile), (2, 2))[1].result

    assert result(n_batch=64) == 64 * 128 * 4 + 8
    assert result(n_batch=4_000_000, context=1000) == 1024 * 128 * 4 + 8


def test_every_term_of_a_derivation_names_its_source() -> None:
    for bound in LLAMACPP.bounds(a_model(), Profile(ranks=3), (2, 2)):
        assert bound.derived
        assert all(term.source for term in bound.terms)
        assert any("estimate" in term.source for term in bound.terms if term.name == "compute")


def test_quantized_rows_are_whole_blocks() -> None:
    assert row_bytes("q8_0", 64) == 68
    assert row_bytes("q4_0", 64) == 36
    with pytest.raises(ValueError, match="multiple of 32"):
        row_bytes("q8_0", 40)


def test_an_architecture_that_was_never_tried_is_not_derived() -> None:
    for model in (a_model(architecture="gemma3"), a_model(has_unusual_cache=True)):
        assert [finding.id for finding in LLAMACPP.check_model(Profile(ranks=3), model)] == ["model.architecture"]
        assert not any(bound.derived for bound in LLAMACPP.bounds(model, Profile(ranks=3), (2, 2)))
    assert LLAMACPP.check_model(Profile(ranks=3), a_model()) == ()


def test_workers_start_before_the_leader_and_stop_after_it() -> None:
    plan = a_plan()
    assert LLAMACPP.start_order(plan) == ((1, 2), (0,))
    assert LLAMACPP.stop_order(plan) == ((0,), (1, 2))


def test_the_loading_bound_grows_with_the_weights_and_states_its_formula() -> None:
    model = a_model(token_embd_bytes=10 * 2**30)
    bounds = LLAMACPP.bounds(model, Profile(ranks=3), (2, 2))
    phases = {phase.phase: phase for phase in LLAMACPP.phases(Profile(ranks=3), bounds)}
    assert phases["loading"].seconds == pytest.approx(10 / 0.05 + 60, abs=1)
    assert phases["loading"].formula == "10.00 GiB / 0.05 GiB/s + 60 s"
    assert list(phases) == ["spawning", "connecting", "loading", "warming"]


def test_an_engine_without_rules_is_refused_with_those_that_have_some() -> None:
    assert rules("llamacpp") is RULES["llamacpp"]
    with pytest.raises(UnknownEngine, match=r"'ollama'.*llamacpp"):
        rules("ollama")


SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "7x320": {"layers": 7, "embd": 320, "heads": 5, "kv_heads": 1},
    "tied": {"layers": 5, "embd": 256, "tied": True},
}


def model_file(folder: Path, shape: str) -> tuple[Path, ModelFacts]:
    path = folder / "model.gguf"
    write_tiny_model(path, **SHAPES[shape])
    return path, read_header(path)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("shape", "profile"),
    [
        ("tiny", {"ranks": 1}),
        ("tiny", {"ranks": 2}),
        ("tiny", {"ranks": 3}),
        ("tiny", {"ranks": 4, "context": 1000, "sequences": 3}),
        ("tiny", {"ranks": 3, "split": (1, 3), "context": 100, "n_ubatch": 64}),
        ("7x320", {"ranks": 1, "options": {"flash_attn": "off"}}),
        ("7x320", {"ranks": 4, "options": {"cache_type_k": "bf16", "cache_type_v": "q4_1"}}),
        ("7x320", {"ranks": 3, "split": (6, 1), "options": {"cache_type_v": "q5_0", "cram": 16}}),
        ("tied", {"ranks": 1}),
        ("tied", {"ranks": 3}),
    ],
)
def test_derived_weights_and_kv_are_what_the_engine_prints(shape: str, profile: dict[str, Any], tmp_path: Path) -> None:
    path, facts = model_file(tmp_path, shape)
    plan = loopback_plan(facts, **profile)
    with running(plan, path, tmp_path) as ring:
        assert ring.printed() == derived(plan)
        assert "offloaded" in ring.log.read_text()


@pytest.mark.engine
def test_a_canary_fits_into_the_spare_slot_and_no_further(tmp_path: Path) -> None:
    path, facts = model_file(tmp_path, "tiny")
    plan = loopback_plan(facts, ranks=3, sequences=2)
    with running(plan, path, tmp_path) as ring:
        assert ring.canary()["id_slot"] == 2
        assert "n_slots = 3" in ring.log.read_text()
