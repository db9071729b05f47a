"""The folders and files of the embedded fleet."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.agent.config import read_config
from backend.control.contexts import load_context
from backend.local.layout import HOSTS, SOCKET_PATH_MAX, Layout, LayoutError, private_folder, write_files


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        yield Path(folder)


def test_what_is_written_is_what_agent_and_console_read(home: Path) -> None:
    layout = Layout(home)
    write_files(layout)
    context = load_context(None, home)
    assert context.name == "local"
    for host in HOSTS:
        config = read_config(layout.config(host))
        assert config.host == host
        assert context.hosts[config.host] == f"unix:{config.socket}"
        assert config.model_roots == (str(layout.models),)
        assert Path(config.socket).parent.stat().st_mode & 0o777 == 0o700
    assert context.catalog_path == layout.catalog
    assert "two-host" in tomllib.loads(layout.catalog.read_text())["models"]["tiny"]["profiles"]


def test_ports_of_the_two_agents_never_meet_and_stay_below_outgoing_ones(home: Path) -> None:
    (first_low, first_high), (second_low, second_high) = (Layout(home).ports(host) for host in HOSTS)
    assert 18_000 <= first_low < first_high < second_low < second_high <= 31_999
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if outgoing.exists():
        assert second_high < int(outgoing.read_text().split()[0])


def test_an_edited_file_is_never_written_again(home: Path) -> None:
    layout = Layout(home)
    write_files(layout)
    edited = {
        path: path.read_text() + "# mine\n" for path in (layout.contexts, layout.catalog, layout.config("host-a"))
    }
    for path, text in edited.items():
        path.write_text(text)
    write_files(layout)
    assert {path: path.read_text() for path in edited} == edited


def test_contexts_without_the_local_fleet_are_refused_with_what_to_write(home: Path) -> None:
    layout = Layout(home)
    layout.contexts.write_text('default = "prod"\n[contexts.prod.hosts]\ngpu-a = "ssh://gpu-a"\n')
    with pytest.raises(LayoutError) as refusal:
        write_files(layout)
    assert str(layout.socket("host-a")) in str(refusal.value)
    assert "prod" in layout.contexts.read_text()


def test_a_catalog_without_the_tiny_model_is_refused_with_what_to_write(home: Path) -> None:
    layout = Layout(home)
    layout.catalog.write_text("[models]\n")
    with pytest.raises(LayoutError, match=r"\[models\.tiny\]"):
        write_files(layout)


@pytest.mark.parametrize("text", ['[contexts]\nlocal = "x"\n', "contexts = 5\n", '[contexts.local]\nhosts = ["x"]\n'])
def test_contexts_of_another_shape_are_refused_with_what_to_write(home: Path, text: str) -> None:
    layout = Layout(home)
    layout.contexts.write_text(text)
    with pytest.raises(LayoutError, match="has nothing for host-a"):
        write_files(layout)


@pytest.mark.parametrize("text", ["models = 5\n", 'models = "tiny"\n'])
def test_a_catalog_of_another_shape_is_refused_with_what_to_write(home: Path, text: str) -> None:
    layout = Layout(home)
    layout.catalog.write_text(text)
    with pytest.raises(LayoutError, match="has no model named tiny"):
        write_files(layout)


@pytest.mark.parametrize(
    ("text", "words"), [("models = [\n", "line"), (f"x = {'9' * 5_000}", "digits"), (f"x = {'[' * 5_000}", "recursion")]
)
def test_a_broken_file_is_named_with_what_breaks_it(home: Path, text: str, words: str) -> None:
    layout = Layout(home)
    layout.catalog.write_text(text)
    with pytest.raises(LayoutError, match=rf"catalog\.toml is not TOML.*{words}"):
        write_files(layout)


def test_a_home_with_a_long_path_has_its_sockets_in_a_short_private_folder(home: Path) -> None:
    layout = Layout(home / ("deep" * 20))
    other = Layout(home / ("deep" * 21))
    assert layout.sockets.is_relative_to(f"/tmp/ringtop-{os.getuid()}")
    assert len(os.fsencode(layout.socket("host-b"))) <= SOCKET_PATH_MAX
    assert layout.sockets != other.sockets


def test_a_socket_folder_that_others_may_enter_is_refused(home: Path) -> None:
    folder = home / "run"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(LayoutError, match=r"0755.*chmod 700"):
        private_folder(folder)


def test_a_link_in_place_of_the_socket_folder_is_refused(home: Path) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    (home / "run").symlink_to(home / "elsewhere")
    with pytest.raises(LayoutError, match="no folder"):
        private_folder(home / "run")
