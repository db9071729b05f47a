"""The catalog: what it says, and how it says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backend.contract.plans import Profile
from backend.planning.catalog import CatalogError, UnknownModel, fingerprint, parse_catalog, read_catalog

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
        ("[models.a]\npath = 'x'\nengine = 'llamacp'", r"engine is 'llamacp' \(did you mean 'llamacpp'\?\); known: ll"),
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
    for name, value in {"ranks": 4, "context": 4096, "options": {}, "hosts": ("host-a",), "threads": 2}.items():
        assert fingerprint(msgspec.structs.replace(profile, **{name: value})) != fingerprint(profile), name
