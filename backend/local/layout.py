"""Where the embedded fleet keeps its things, and the files that it writes once and never again."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOSTS = ("host-a", "host-b")
"""The two agents of the embedded fleet."""
TARGET = "tiny:two-host"
"""What ``ringtop up`` loads."""
AGENT_GRACE_SECONDS = 15.0
"""How long an agent may take to end before it is killed."""
SOCKET_PATH_MAX = 100
"""Longest path of a socket here, in bytes; the kernel's own limit is 107 (``man 7 unix``)."""

_FIRST_PORT = 18_000
_PORTS_PER_HOST = 50
_PORT_BLOCKS = 140


class LayoutError(Exception):
    """The folders or files of the embedded fleet cannot be used; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Layout:
    """Every path of one home's embedded fleet. Pure: nothing is read or made."""

    home: Path

    @property
    def root(self) -> Path:
        """The folder of everything that only the embedded fleet uses."""
        return self.home / "local"

    @property
    def contexts(self) -> Path:
        """The operator's contexts."""
        return self.home / "contexts.toml"

    @property
    def catalog(self) -> Path:
        """The catalog of the ``local`` context."""
        return self.home / "catalog.toml"

    @property
    def models(self) -> Path:
        """The one model root of both agents."""
        return self.root / "models"

    @property
    def tiny(self) -> Path:
        """The tiny model."""
        return self.models / "tiny.gguf"

    @property
    def lock(self) -> Path:
        """Locked for as long as a caretaker lives."""
        return self.root / "caretaker.lock"

    @property
    def record(self) -> Path:
        """Which processes the caretaker started; there until everything was stopped in good order."""
        return self.root / "caretaker.json"

    @property
    def once_lock(self) -> Path:
        """Locked by the one ``ringtop up --once`` that may be at work."""
        return self.root / "once.lock"

    @property
    def caretaker_log(self) -> Path:
        """What the caretaker said."""
        return self.root / "caretaker.log"

    @property
    def sockets(self) -> Path:
        """The folder of the agents' sockets: under the home, or a short one of this user's where that is too long."""
        inside = self.root / "run"
        if len(os.fsencode(inside / f"{HOSTS[0]}.sock")) <= SOCKET_PATH_MAX:
            return inside
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        return Path(f"/tmp/ringtop-{os.getuid()}") / digest

    def config(self, host: str) -> Path:
        """The configuration of one agent."""
        return self.root / host / "agent.toml"

    def state(self, host: str) -> Path:
        """The durable state of one agent."""
        return self.root / host / "state"

    def agent_log(self, host: str) -> Path:
        """What one agent process said."""
        return self.root / host / "agent.log"

    def socket(self, host: str) -> Path:
        """Where one agent listens."""
        return self.sockets / f"{host}.sock"

    def ports(self, host: str) -> tuple[int, int]:
        """The inclusive port range of one agent, below the range that Linux gives to outgoing connections.

        Homes are spread over 140 blocks by a checksum of their path, so that two fleets on one machine seldom have
        the same ports: planning passes over a port that is taken, but two agents that know nothing of each other can
        both find it free and both give it to an engine at the same moment.
        """
        block = zlib.crc32(os.fsencode(self.home)) % _PORT_BLOCKS
        first = _FIRST_PORT + (block * len(HOSTS) + HOSTS.index(host)) * _PORTS_PER_HOST
        return first, first + _PORTS_PER_HOST - 1


def write_files(layout: Layout) -> None:
    """Make every folder, and each file that is absent. A file that is there is a person's and stays as it is.

    Raises LayoutError when a folder belongs to someone else or is open to others, or when a file that is there
    lacks what the embedded fleet needs.
    """
    for folder in (layout.home, layout.home / "ledger", layout.root, layout.models):
        folder.mkdir(parents=True, exist_ok=True)
    if layout.sockets.parent != layout.root:
        private_folder(layout.sockets.parent)
    private_folder(layout.sockets)
    for host in HOSTS:
        layout.config(host).parent.mkdir(exist_ok=True)
        _write_when_absent(layout.config(host), agent_toml(layout, host))
    _write_when_absent(layout.contexts, contexts_toml(layout))
    _write_when_absent(layout.catalog, CATALOG)
    _check_files(layout)


def private_folder(path: Path) -> None:
    """Make a folder that only this user can enter, or prove that it is one. Raises LayoutError otherwise."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise LayoutError(f"{path} is no folder, and the agents' sockets belong in it. Move it away.")
    if found.st_uid != os.getuid():
        raise LayoutError(
            f"{path} belongs to user {found.st_uid}, not to {os.getuid()}: whoever owns it could take over the agents. "
            "Have it removed, or set RINGTOP_HOME to a shorter path, so that the sockets fit under it."
        )
    if mode & 0o077:
        raise LayoutError(f"{path} has mode {mode:04o}, and others could reach the agents. Run: chmod 700 {path}")


def engine_folder(layout: Layout, host: str) -> str:
    """The folder of the llama.cpp programs in one agent's configuration; empty means the pinned package."""
    return str(_table(_read_toml(layout.config(host)), "engines", "llamacpp").get("folder", ""))


def agent_toml(layout: Layout, host: str) -> str:
    """The configuration of one agent of the embedded fleet."""
    first, last = layout.ports(host)
    return "\n".join(
        (
            f"# The agent {host} of the embedded fleet. Written by ringtop up when absent; yours to edit.",
            f"host = {_text(host)}",
            f"state = {_text(layout.state(host))}",
            f"socket = {_text(layout.socket(host))}",
            'advertise = "127.0.0.1"',
            f"ports = [{first}, {last}]",
            f"model_roots = [{_text(layout.models)}]",
            "",
            "[engines.llamacpp]",
            "# the folder of llama-server and ggml-rpc-server; empty: the pinned package",
            'folder = ""',
            "",
            "[devices.CPU]",
            "# the most that shards may be promised here",
            'memory = "4GiB"',
            "",
        )
    )


def contexts_toml(layout: Layout) -> str:
    """The contexts of a home that has none: the embedded fleet as ``local``."""
    lines = (f"{host} = {_text(f'unix:{layout.socket(host)}')}" for host in HOSTS)
    return "\n".join(
        (
            "# Which fleets this console reaches. Written by ringtop up when absent; yours to edit.",
            'default = "local"',
            "",
            "[contexts.local]",
            'label = "LOCAL"',
            'catalog = "catalog.toml"',
            "read_only = false",
            "",
            "[contexts.local.hosts]",
            *lines,
            "",
        )
    )


CATALOG = """\
# What may be loaded, and in which shape. Written by ringtop up when absent; yours to edit.
[models.tiny]
path = "tiny.gguf"
aliases = ["t"]
engine = "llamacpp"

# one leader, which holds no layer, and two workers with two layers each
[models.tiny.profiles.two-host]
ranks = 3
hosts = ["host-a", "host-b"]
device = "CPU"
split = [2, 2]
context = 2048
sequences = 2
n_batch = 256
n_ubatch = 128
threads = 1

# one process with every layer
[models.tiny.profiles.one-host]
ranks = 1
hosts = ["host-a"]
device = "CPU"
context = 2048
sequences = 2
n_batch = 256
n_ubatch = 128
threads = 1
"""


def _check_files(layout: Layout) -> None:
    hosts = _table(_read_toml(layout.contexts), "contexts", "local", "hosts")
    for host in HOSTS:
        wanted = f"unix:{_read_toml(layout.config(host)).get('socket', layout.socket(host))}"
        found = hosts.get(host)
        if found != wanted:
            raise LayoutError(
                f"{layout.contexts} has {f'{found!r}' if found else 'nothing'} for {host} in [contexts.local.hosts], "
                f"and the agent's own {layout.config(host)} says {wanted!r}. Write that there: it is never edited "
                "by a program."
            )
    if "tiny" not in _table(_read_toml(layout.catalog), "models"):
        raise LayoutError(f"{layout.catalog} has no model named tiny. Add this to it:\n{CATALOG}")


def _write_when_absent(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits, or too deep
        raise LayoutError(f"{path} is not TOML: {error}. Correct that line, or move the file away.") from error


def _table(tree: dict[str, Any], *names: str) -> dict[str, Any]:
    """The table at the end of these names; empty where something else stands, or nothing."""
    for name in names:
        found = tree.get(name)
        tree = found if isinstance(found, dict) else {}
    return tree


def _text(value: object) -> str:
    """A TOML basic string. JSON's escapes are a subset of TOML's for every character a path can hold."""
    return json.dumps(str(value), ensure_ascii=False)
