"""Wrong catalogs, contexts and agent configurations: refused by file, key, what was found and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from backend.agent.config import ConfigError, read_config
from backend.control.contexts import ContextError, load_context
from backend.planning.catalog import CatalogError, UnknownModel, parse_catalog
from tests.refusals.rows import as_parameters

pytestmark = pytest.mark.refusals


class WrongText(NamedTuple):
    """A file's text, and the words that the refusal must hold."""

    title: str
    text: str
    words: tuple[str, ...]


def profile(lines: str) -> str:
    return f"[models.tiny]\npath = 'tiny.gguf'\n[models.tiny.profiles.p]\n{lines}\n"


CATALOGS = [
    WrongText("no TOML", "[models.tiny\n", ("is not TOML",)),
    WrongText("an unknown table", "model = 1", ("'model'", "did you mean 'models'")),
    WrongText("a model without a path", "[models.tiny]\nengine = 'llamacpp'", ("[models.tiny] has no path",)),
    WrongText("a model name that is no file name", "[models.'../x']\npath = 'x'", ("'../x'", "letters, digits")),
    WrongText(
        "one alias for two models",
        "[models.a]\npath = 'x'\naliases = ['z']\n[models.b]\npath = 'y'\naliases = ['z']",
        ("'z'", "both a and b"),
    ),
    WrongText("a profile without ranks", profile("context = 1"), ("has no ranks", "leader included")),
    WrongText("ranks = 0", profile("ranks = 0"), ("ranks is 0", "1..")),
    WrongText("ranks = 513", profile("ranks = 513"), ("ranks is 513", "512")),
    WrongText("ranks below zero", profile("ranks = -3"), ("ranks is -3", "1..")),
    WrongText("ranks beyond 64 bits", profile("ranks = 99999999999999999999"), ("ranks", "9999")),
    WrongText("ranks in words", profile("ranks = 'three'"), ("'three'", "an integer")),
    WrongText("ranks = true", profile("ranks = true"), ("True", "an integer")),
    WrongText("context = 0, which each build reads differently", profile("ranks = 2\ncontext = 0"), ("context is 0",)),
    WrongText("a context in decimals", profile("ranks = 2\ncontext = 4e3"), ("4000.0", "an integer")),
    WrongText("a layer count of 0", profile("ranks = 3\nsplit = [4, 0]"), ("split is 0", "1..")),
    WrongText("a port of 0", profile("ranks = 2\nport = 0"), ("port is 0", "65535")),
    WrongText("a port of 65536", profile("ranks = 2\nport = 65536"), ("port is 65536", "65535")),
    WrongText("one host twice", profile("ranks = 2\nhosts = ['host-a', 'host-a']"), ("one host twice",)),
    WrongText("n_ubatch = 0", profile("ranks = 2\nn_ubatch = 0"), ("n_ubatch is 0",)),
    WrongText("a misspelt key", profile("ranks = 2\ncontex = 1"), ("'contex'", "did you mean 'context'")),
    WrongText("a path and an id", "[models.tiny]\npath = 'x'\nid = 'y'", ("both a path and an id",)),
    WrongText("memory in decimal units", profile("ranks = 2\nmemory = '8GB'"), ("'8GB'", "GiB")),
    WrongText("devices = 0", profile("ranks = 2\ndevices = 0"), ("devices is 0",)),
    WrongText("a geometry without layers", "[models.tiny]\npath = 'x'\ngeometry = { n_layer = 0 }", ("n_layer is 0",)),
    WrongText("options that are no table", profile("ranks = 2\noptions = ['-ngl', '0']"), ("options", "a table")),
]


@pytest.mark.parametrize("row", as_parameters(CATALOGS))
def test_catalog(row: WrongText) -> None:
    """A wrong catalog is refused by place, value and what is allowed."""
    with pytest.raises(CatalogError) as caught:
        parse_catalog(row.text, "some/catalog.toml")
    for word in (*row.words, "some/catalog.toml"):
        assert word in str(caught.value)


ODD = "[models.odd]\npath = 'x'\nengine = 'olama'\n[models.odd.profiles.p]\nranks = 2\n"
TARGETS = [
    WrongText("a model with a typo", "tinny", ("'tinny'", "did you mean 'tiny'")),
    WrongText("a profile with a typo", "tiny:q", ("'q'", "its profiles: p")),
    WrongText("a profile without a name", "tiny:", ("no profile ''",)),
    WrongText("a model in capitals", "TINY", ("'TINY'", "tiny")),
    WrongText("nothing", "", ("no model ''",)),
    WrongText("a model of an engine without rules", "odd", ("cannot be used", "'olama'", "llamacpp")),
]


@pytest.mark.parametrize("row", as_parameters(TARGETS))
def test_target(row: WrongText) -> None:
    """A target that the catalog does not have is refused beside those that it has."""
    with pytest.raises(UnknownModel) as caught:
        parse_catalog(profile("ranks = 2") + ODD, "catalog.toml").resolve(row.text)
    for word in row.words:
        assert word in str(caught.value)


HOSTS = "[contexts.one.hosts]\nhost-a = 'unix:/run/a.sock'\n"
CONTEXTS = [
    WrongText("an unknown top key", f"defalt = 'one'\n{HOSTS}", ("'defalt'", "contexts, default")),
    WrongText("a context without hosts", "[contexts.one]\nlabel = 'ONE'\n", ("contexts.one.hosts is missing",)),
    WrongText("a default that does not exist", f"default = 'two'\n{HOSTS}", ("'two'", "one")),
    WrongText(
        "two contexts and no default", f"{HOSTS}{HOSTS.replace('one', 'two')}", ("default is missing", "one, two")
    ),
    WrongText(
        "an address without a scheme", "[contexts.one.hosts]\nhost-a = '/run/a.sock'\n", ("'/run/a.sock'", "unix:")
    ),
    WrongText(
        "one socket for two hosts",
        f"{HOSTS}host-b = 'unix:/run/a.sock'\n",
        ("host-a", "host-b", "one agent is one host"),
    ),
    WrongText("a host name with a slash", "[contexts.one.hosts]\n'a/b' = 'unix:/run/a.sock'\n", ("'a/b'",)),
    WrongText("read_only in words", f"[contexts.one]\nread_only = 'no'\n{HOSTS}", ("'no'", "true or false")),
    WrongText("no TOML", "[contexts", ("is not TOML",)),
    WrongText("a number of thousands of digits", f"x = {'9' * 5_000}", ("is not TOML",)),
    WrongText("brackets without end", f"x = {'[' * 5_000}", ("is not TOML",)),
    WrongText("an empty file", "", ("contexts is missing",)),
]


@pytest.mark.parametrize("row", as_parameters(CONTEXTS))
def test_context(row: WrongText, tmp_path: Path) -> None:
    """A wrong contexts.toml is refused by key, with what was found and what was expected."""
    (tmp_path / "contexts.toml").write_text(row.text)
    with pytest.raises(ContextError) as caught:
        load_context(home=tmp_path)
    for word in (*row.words, "contexts.toml"):
        assert word in str(caught.value)


AGENT = "host = 'host-a'\nstate = '/s'\nsocket = '/s/a.sock'\n"
CONFIGS = [
    WrongText("ports the wrong way round", f"{AGENT}ports = [19000, 18000]\n", ("[19000, 18000]", "above the last")),
    WrongText("a port beyond 65535", f"{AGENT}ports = [18000, 70000]\n", ("70000", "65535")),
    WrongText("a state folder that is not absolute", AGENT.replace("'/s'", "'s'"), ("'s'", "absolute path")),
    WrongText("a socket path that no socket can have", AGENT.replace("/s/a", "/s/" + "a" * 120), ("128 bytes", "107")),
    WrongText("a memory cap without a unit that is known", f"{AGENT}[devices.CPU]\nmemory = '8GB'\n", ("'8GB'", "GiB")),
    WrongText("a host name that is no name", AGENT.replace("host-a", "host a"), ("'host a'", "letters")),
    WrongText("no TOML", "host = [", ("not TOML",)),
    WrongText("a number of thousands of digits", f"x = {'9' * 5_000}", ("not TOML",)),
    WrongText("brackets without end", f"x = {'[' * 5_000}", ("not TOML",)),
    WrongText("an unknown key", f"{AGENT}advertize = '10.0.0.1'\n", ("advertize", "advertise")),
]


@pytest.mark.parametrize("row", as_parameters(CONFIGS))
def test_agent(row: WrongText, tmp_path: Path) -> None:
    """A wrong agent.toml is refused before the agent starts."""
    path = tmp_path / "agent.toml"
    path.write_text(row.text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    for word in (*row.words, "agent.toml"):
        assert word in str(caught.value)
