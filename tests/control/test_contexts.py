"""Contexts: what a file may say, and what its errors name."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.control.contexts import ContextError, home_folder, load_context, load_contexts, who_asks

GOOD = """
default = "local"
[contexts.local]
label = "LOCAL"
catalog = "catalog.toml"
[contexts.local.hosts]
host-a = "unix:/run/ringtop/host-a.sock"
gpu-b = "ssh://ops@gpu-b"
[contexts.prod]
read_only = true
[contexts.prod.hosts]
gpu-a = "ssh://gpu-a"
"""


def write(home: Path, text: str) -> Path:
    (home / "contexts.toml").write_text(text)
    return home


def test_a_context_has_its_hosts_its_catalog_and_its_ledger_under_its_home(tmp_path: Path) -> None:
    context = load_context(home=write(tmp_path, GOOD))
    assert (context.name, context.label, context.read_only) == ("local", "LOCAL", False)
    assert context.hosts == {"host-a": "unix:/run/ringtop/host-a.sock", "gpu-b": "ssh://ops@gpu-b"}
    assert context.catalog_path == tmp_path / "catalog.toml"
    assert context.ledger_folder == tmp_path / "ledger"


def test_a_context_may_be_read_only_and_is_labelled_by_its_name(tmp_path: Path) -> None:
    context = load_context("prod", write(tmp_path, GOOD))
    assert (context.label, context.read_only) == ("PROD", True)


def test_the_home_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTOP_HOME", str(tmp_path))
    assert home_folder() == tmp_path
    monkeypatch.delenv("RINGTOP_HOME")
    assert home_folder().name == "ringtop"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('default = "local"', 'default = "lokal"'), ["default is 'lokal'", "local, prod"]),
        (('default = "local"', ""), ["default is missing", "2 contexts: local, prod", "--context"]),
        (('default = "local"', "default = 5"), ["default is 5", "local, prod"]),
        (('"unix:/run/ringtop/host-a.sock"', '"unix:run/a.sock"'), ["'unix:run/a.sock'", "an absolute path"]),
        (('"unix:/run/ringtop/host-a.sock"', '"unix:~/a.sock"'), ["'unix:~/a.sock'", "an absolute path"]),
        (('"unix:/run/ringtop/host-a.sock"', '"unix:/run/\\u0000"'), ["host-a", "an absolute path"]),
        (('label = "LOCAL"', 'lable = "LOCAL"'), ["contexts.local.lable is unknown", "label"]),
        (("read_only = true", 'read_only = "yes"'), ["contexts.prod.read_only is 'yes'", "true or false"]),
        (('"ssh://gpu-a"', '"gpu-a:9000"'), ["contexts.prod.hosts.gpu-a is 'gpu-a:9000'", "ssh://[user@]host"]),
        (("gpu-b = ", '"b/../c" = '), ["'b/../c'", "letters"]),
        (('"ssh://ops@gpu-b"', '"unix:/run/ringtop/host-a.sock"'), ["gpu-b", "host-a", "one agent is one host"]),
        (("[contexts.prod.hosts]\ngpu-a", "[contexts.prod.hosts]\n#"), ["contexts.prod.hosts is {}", "at least one"]),
        (("[contexts.local]\n", "[contexts.local\n"), ["is not TOML"]),
        (('default = "local"', 'defualt = "local"'), ["'defualt' is unknown"]),
    ],
)
def test_an_error_names_the_file_the_key_and_both_values(
    tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    old, new = change
    assert old in GOOD
    with pytest.raises(ContextError) as caught:
        load_contexts(write(tmp_path, GOOD.replace(old, new)))
    for word in [str(tmp_path / "contexts.toml"), *words]:
        assert word in str(caught.value)


def test_a_context_that_is_named_needs_no_default(tmp_path: Path) -> None:
    assert load_context("prod", write(tmp_path, GOOD.replace('default = "local"', ""))).name == "prod"


def test_a_name_of_a_person_that_is_no_unicode_is_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann\udcff")
    assert who_asks() == "ann?"


def test_a_missing_file_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match="ringtop up"):
        load_contexts(tmp_path)


def test_a_context_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match="no context 'stage'; it has local, prod"):
        load_context("stage", write(tmp_path, GOOD))
