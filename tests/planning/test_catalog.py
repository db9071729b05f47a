"""The catalog: what it says, and how it says what is wrong with it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.plans import Profile
from backend.planning.catalog import (
    CatalogError,
    Scaling,
    UnknownModel,
    fingerprint,
    parse_catalog,
    read_catalog,
    with_geometry,
)
from tests.planning.worlds import a_model

GOOD = """
[models.tiny]
path = "tiny.gguf"
aliases = ["t", "toy"]
engine = "llamacpp"

[models.tiny.profiles.two-host]
ranks = 3
hosts = ["host-a", "host-b"]
device = "CPU"
split = [2, 2]
context = 2048
sequences = 2
n_batch = 512
n_ubatch = 128
threads = 1
port = 18090
exact_build = false
options = { flash_attn = "on", cram = 64 }

[models.qwen-122b]
path = "/models/qwen.gguf"
[models.qwen-122b.profiles.small]
ranks = 1
[models.qwen-122b.profiles.wide]
ranks = 8
"""


def test_a_catalog_says_every_field_of_its_profiles() -> None:
    catalog = parse_catalog(GOOD, "catalog.toml")
    entry, name, profile = catalog.resolve("tiny:two-host")
    assert (entry.name, entry.path, entry.engine, entry.aliases) == ("tiny", "tiny.gguf", "llamacpp", ("t", "toy"))
    assert name == "two-host"
    assert profile == Profile(
        ranks=3,
        hosts=("host-a", "host-b"),
        split=(2, 2),
        context=2048,
        sequences=2,
        n_batch=512,
        n_ubatch=128,
        port=18_090,
        options={"flash_attn": "on", "cram": 64},
    )


def test_an_alias_resolves_to_the_canonical_name_and_a_lone_profile_needs_no_name() -> None:
    catalog = parse_catalog(GOOD, "catalog.toml")
    assert catalog.resolve("toy")[0].name == "tiny"
    assert catalog.resolve("t")[1] == "two-host"
    assert catalog.canonical("toy") == "tiny"
    assert catalog.canonical("nope") is None


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tinny", r"no model 'tinny'.*did you mean 'tiny'.*tiny, qwen-122b"),
        ("qwen-122b", r"has profiles small, wide; name one as qwen-122b:PROFILE"),
        ("qwen-122b:wise", r"no profile 'wise'.*did you mean 'wide'.*small, wide"),
        ("tiny:", r"no profile ''"),
    ],
)
def test_an_unknown_target_names_what_is_known(target: str, words: str) -> None:
    with pytest.raises(UnknownModel, match=words):
        parse_catalog(GOOD, "catalog.toml").resolve(target)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 1", r"the top level.*unknown key 'model' \(did you mean 'models'\?\); allowed: models"),
        ("models = 3", r"models is 3, which is an integer; it must be a table"),
        ("[models.a]\npath = 3", r"\[models.a\] path is 3, which is an integer; it must be a text"),
        ("[models.a]\nengine = 'llamacpp'", r"\[models.a\] has no path"),
        ("[models.a]\npath = 'x'\nengin = 'x'", r"unknown key 'engin' \(did you mean 'engine'\?\); allowed: path, "),
        ("[models.a]\npath = 'x'\naliases = ['y', 3]", r"aliases\[1\] is 3, which is an integer; it must be a text"),
        ("[models.a]\npath = 'x'\naliases = 'y'", r"aliases is 'y', which is a text; it must be a list of texts"),
        ("[models.a]\npath = 'x'\n[models.b]\npath = 'y'\naliases = ['a']", r"'a' belongs to both a and b"),
        ("[models.'a b']\npath = 'x'", r"the name 'a b' must begin"),
        ("[models.'a:b']\npath = 'x'", r"the name 'a:b' must begin"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nsplit = [1]", r"\[models.a.profiles.p\] has no ranks"),
        (
            "[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = '3'",
            r"ranks is '3', which is a text; it must be an integer",
        ),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = true", r"ranks is True, which is true or false"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 3\ncontex = 1", r"did you mean 'context'\?"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 0", r"\[models.a.profiles.p\]: ranks is 0, outside 1"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 513", r"ranks is 513, more than 512"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 2\nport = 70000", r"port is 70000, outside"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 2\nsplit = [0]", r"split is 0, outside"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 2\ncontext = 1.5", r"1.5, which is a decimal number"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 2\nhosts = ['h', 'h']", r"one host twice"),
        ("[models.a\n", r"is not TOML"),
        ("[models.a]\npath = 'x'\nid = 'y'", r"has both a path and an id"),
        ("[models.a]\npath = 'x'\ngeometry = { n_layr = 3 }", r"did you mean 'n_layer'"),
        ("[models.a]\npath = 'x'\ngeometry = { cut_tensors = 0 }", r"cut_tensors is 0, outside 1..16384"),
        ("[models.a]\npath = 'x'\ngeometry = { n_layer = 3000000 }", r"n_layer is 3000000, outside 1\.\.512"),
        (
            "[models.a]\npath = 'x'\ngeometry = { n_embd = 4294967296 }",
            r"n_embd is 4294967296, outside 1\.\.2147483648",
        ),
        ("x = " + "9" * 5_000, r"is not TOML: Exceeds the limit"),
        ("x = " + "[" * 5_000, r"is not TOML: maximum recursion"),
        (
            "[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 2\nmemory = 8",
            r"8, which is an integer; it must be a s",
        ),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 2\nmemory = '8 GB'", r"'8 GB'; write a whole number"),
        ("[models.a]\npath = 'x'\n[models.a.profiles.p]\nranks = 2\ndevices = 0", r"devices is 0, outside 1"),
        ("[models.a]\npath = 'x'\nscaling = { mode = 'auto' }", r"mode is 'auto'; it must be manual or on_demand"),
        ("[models.a]\npath = 'x'\nscaling = { mode = 'on_demand' }", r"has no idle_timeout; say after what"),
        ("[models.a]\npath = 'x'\nscaling = { desired = 2 }", r"has desired with mode 'manual'"),
        (
            "[models.a]\npath = 'x'\nscaling = { mode = 'on_demand', idle_timeout = '10' }",
            r"idle_timeout is '10'; write a whole number and s, m, h or d",
        ),
        (
            "[models.a]\npath = 'x'\nscaling = { mode = 'on_demand', idle_timeout = '1m', profile = 'q' }",
            r"profile is 'q'; its profiles: none",
        ),
    ],
)
def test_a_catalog_that_is_wrong_says_where_and_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(CatalogError, match=words) as caught:
        parse_catalog(text, "some/catalog.toml")
    assert "some/catalog.toml" in str(caught.value)


def test_a_catalog_file_that_is_missing_or_no_text_is_refused_by_path(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    with pytest.raises(CatalogError, match=r"catalog.toml cannot be read: No such file"):
        read_catalog(path)
    path.write_bytes(b"# \xff")
    with pytest.raises(CatalogError, match=r"not UTF-8: byte 2 is 0xff"):
        read_catalog(path)
    path.write_text(GOOD)
    assert set(read_catalog(path).models) == {"tiny", "qwen-122b"}


def test_an_empty_catalog_has_no_models() -> None:
    with pytest.raises(UnknownModel, match="it has no models"):
        parse_catalog("", "catalog.toml").resolve("tiny")


def test_a_fingerprint_changes_with_every_field_and_with_nothing_else() -> None:
    profile = parse_catalog(GOOD, "catalog.toml").resolve("tiny")[2]
    again = parse_catalog(GOOD.replace('flash_attn = "on", cram = 64', 'cram = 64, flash_attn = "on"'), "b.toml")
    assert fingerprint(again.resolve("tiny")[2]) == fingerprint(profile)
    changes: dict[str, Any] = {"ranks": 4, "context": 4096, "options": {}, "hosts": ("host-a",), "threads": 2}
    changes |= {"devices": 2, "memory": 1, "cpu_cores": 1, "power": 1, "weight": 1, "pool": "a", "fabric": "b"}
    changes |= {"ranks_per_host": 1, "share_device": True}
    for name, value in changes.items():
        assert fingerprint(msgspec.structs.replace(profile, **{name: value})) != fingerprint(profile), name


WHOLE = """
[models.step37]
path = "/models/step37.gguf"
engine = "p4"
geometry = { cut_tensors = 2, cut_row_bytes = 32768 }
scaling = { mode = "on_demand", idle_timeout = "30m", desired = 1, profile = "wide" }
[models.step37.profiles.wide]
ranks = 4
devices = 1
ranks_per_host = 2
memory = "12GiB"
cpu_cores = 4
power = 300
weight = 20
pool = "night"
fabric = "ib0"
share_device = true
[models.step37.profiles.narrow]
ranks = 2

[models.glm]
id = "org/glm-5"
engine = "vllm"
[models.glm.profiles.pair]
ranks = 2
devices = 4
device = "CUDA*"

[models.odd]
path = "odd.bin"
engine = "llamacp"
[models.odd.profiles.one]
ranks = 1
"""


def test_a_profile_says_what_it_takes_and_where_it_may_go() -> None:
    entry, _, profile = parse_catalog(WHOLE, "catalog.toml").resolve("step37:wide")
    assert (profile.memory, profile.cpu_cores, profile.power, profile.weight) == (12 * 2**30, 4, 300, 20)
    assert (profile.devices, profile.ranks_per_host, profile.pool, profile.fabric) == (1, 2, "night", "ib0")
    assert profile.share_device
    assert entry.scaling == Scaling(mode="on_demand", idle_seconds=1800, desired=1, profile="wide")
    assert parse_catalog(GOOD, "c").resolve("tiny")[0].scaling == Scaling()


def test_a_model_is_a_file_or_an_id_as_its_engine_takes_it() -> None:
    catalog = parse_catalog(WHOLE, "catalog.toml")
    assert catalog.resolve("glm")[0].path == "org/glm-5"
    text = "[models.a]\nid = 'org/a'\n[models.a.profiles.p]\nranks = 1"
    with pytest.raises(UnknownModel, match=r"model a cannot be used: .*id = 'org/a', and llamacpp reads a file"):
        parse_catalog(text, "c").resolve("a")


def test_a_model_of_an_unknown_engine_is_unusable_with_words_and_the_others_go_on() -> None:
    catalog = parse_catalog(WHOLE, "catalog.toml")
    assert catalog.resolve("step37:narrow")[2].ranks == 2
    with pytest.raises(
        UnknownModel, match=r"model odd cannot be used: .*'llamacp' \(did you mean 'llamacpp'\?\); known"
    ):
        catalog.resolve("odd")


def test_geometry_of_the_catalog_stands_over_the_header() -> None:
    entry = parse_catalog(WHOLE, "catalog.toml").models["step37"]
    model = with_geometry(a_model(), entry)
    assert model is not None
    assert (model.cut_tensors, model.cut_row_bytes, model.n_layer) == (2, 32_768, 4)
    alone = with_geometry(None, entry)
    assert alone is not None
    assert (alone.path, alone.n_layer, alone.cut_tensors) == ("/models/step37.gguf", 0, 2)
    assert with_geometry(None, parse_catalog(GOOD, "c").models["tiny"]) is None


def test_a_field_that_stays_at_its_default_is_in_no_fingerprint() -> None:
    assert fingerprint(Profile(ranks=3)) == hashlib.sha256(b'{"ranks":3}').hexdigest()
    assert fingerprint(Profile(ranks=3)) == fingerprint(Profile(ranks=3, weight=100, pool="", devices=1))
    assert fingerprint(Profile(ranks=3)) != fingerprint(Profile(ranks=2))
