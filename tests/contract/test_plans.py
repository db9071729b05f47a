"""What a person confirms is a plan's digest: it moves with everything in the plan, and with nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.findings import refuse
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, Profile, plan_digest, sealed
from backend.contract.words import Bytes, HostId, LoadGeneration, Port, ReplicaId, UnixMs
from tests.contract.factories import GENERATION, plan, planned

FACTS = ModelFacts(
    path="tiny.gguf",
    file_bytes=Bytes(10),
    expected_bytes=Bytes(10),
    header_digest="aa",
    architecture="llama",
    name="tiny",
    n_layer=4,
    n_embd=64,
    n_head=4,
    n_head_kv=2,
    key_length=16,
    value_length=16,
    n_vocab=256,
    context_train=512,
    blocks=(),
    output_bytes=Bytes(1),
    token_embd_bytes=Bytes(1),
    has_output=True,
    tensor_types=("F16",),
)
OTHER: dict[str, Any] = {
    "replica": ReplicaId("tiny-2"),
    "model": "other",
    "model_path": "other.gguf",
    "model_facts": FACTS,
    "profile_name": "one-host",
    "profile": Profile(ranks=2),
    "profile_fingerprint": "beef",
    "engine": "vllm",
    "load_generation": LoadGeneration(GENERATION + 1),
    "shards": (),
    "phases": (),
    "facts": (),
    "candidates": (),
    "findings": (),
    "made_unix_ms": UnixMs(2),
}


def test_every_field_of_a_plan_is_tried_here() -> None:
    assert set(OTHER) == set(Plan.__struct_fields__) - {"digest"}


@pytest.mark.parametrize("name", sorted(OTHER))
def test_the_digest_changes_with_every_field(name: str) -> None:
    assert plan_digest(msgspec.structs.replace(plan(), **{name: OTHER[name]})) != plan_digest(plan())


@pytest.mark.parametrize(
    ("name", "value"), [("rank", 1), ("ports", (Port(18_091),)), ("layers", (0, 3)), ("advertise", "10.0.0.1")]
)
def test_the_digest_changes_with_what_is_inside_a_shard(name: str, value: Any) -> None:
    other = msgspec.structs.replace(plan(), shards=(msgspec.structs.replace(planned(), **{name: value}),))
    assert plan_digest(other) != plan_digest(plan())


def test_the_digest_does_not_count_itself_and_sealing_twice_is_sealing_once() -> None:
    once = sealed(plan())
    assert once.digest == plan_digest(plan()) == plan_digest(once)
    assert sealed(once) == once
    assert len(once.digest) == 64


def test_the_digest_ignores_the_order_of_options_and_survives_the_wire() -> None:
    one = msgspec.structs.replace(plan(), profile=Profile(ranks=1, options={"a": 1, "b": 2}))
    two = msgspec.structs.replace(plan(), profile=Profile(ranks=1, options={"b": 2, "a": 1}))
    assert plan_digest(one) == plan_digest(two)
    travelled = msgspec.json.decode(msgspec.json.encode(sealed(one)), type=Plan)
    assert plan_digest(travelled) == travelled.digest == plan_digest(one)


def test_a_refusal_refuses_the_plan_and_a_warning_does_not() -> None:
    assert not plan().is_refused
    finding = refuse("address.loopback", "tiny-1/1", expected="a routable address", found="127.0.0.1", remedy="Set it.")
    assert msgspec.structs.replace(plan(), findings=(finding,)).is_refused


def test_a_plan_finds_its_shards_hosts_and_phase_bounds() -> None:
    far = msgspec.structs.replace(planned(1), host=HostId("a-host"))
    both = msgspec.structs.replace(plan(), shards=(planned(), far))
    assert both.hosts == ("a-host", "host-a")
    assert both.on_host(HostId("a-host")) == (far,)
    assert both.phase_seconds("loading") == 30.0
    with pytest.raises(KeyError):
        both.phase_seconds("napping")


@pytest.mark.parametrize(
    "fields",
    [{"ranks": 0}, {"ranks": 513}, {"ranks": True}, {"context": 0}, {"split": (1, 0)}, {"port": 0}, {"port": 65_536}],
)
def test_an_impossible_profile_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"outside|not an integer|more than 512"):
        Profile(**{"ranks": 1, **fields})
