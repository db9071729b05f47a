"""The agent's own configuration: ``agent.toml``. Binaries and model roots come from here, never from the wire."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from backend.contract.numbers import check_port
from backend.contract.p4.addresses import parse_address
from backend.contract.words import HostId, Port
from backend.engines.p4.place import BridgePlace, P4Place

_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB|TiB)?")
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
P4_ENGINE = "p4"
MAX_SOCKET_PATH = 107
"""Longest path of a unix socket in bytes (``sun_path`` less its final zero)."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names file, key, both values and the remedy."""


class BridgeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bridge that submits to p4 rings: its record file, or a program that tells it, and where it is asked.

    ``restart`` is a command that restarts it.
    """

    record: str = ""
    hook: tuple[str, ...] = ()
    url: str = ""
    token_file: str = ""
    restart: tuple[str, ...] = ()


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one engine is installed; an empty folder means the pinned package.

    All else is of p4 alone: the p4 agent that is dialled and the address it advertises (``tcp://host:port``), the
    stage's program, the folder of its journal, the ``last-load.json`` of who loads past ringtop, the stage's release
    where it is known, the commands that ``stop`` and ``start`` the p4 agent in a recovery, and the bridge.
    """

    folder: str = ""
    agent: str = ""
    advertise: str = ""
    binary: str = ""
    journal: str = ""
    record: str = ""
    release: str = ""
    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    bridge: BridgeConfig = BridgeConfig()

    @property
    def settings(self) -> P4Place:
        """The same, as p4 takes it. Raises ValueError naming the key, and what it must be."""
        if not self.agent:
            raise ValueError(
                "engines.p4.agent is missing; write where its p4 agent listens, such as tcp://127.0.0.1:4201"
            )
        for key in ("binary", "journal", "record"):
            path = getattr(self, key)
            if (path or key == "binary") and not Path(path).is_absolute():
                raise ValueError(f"engines.p4.{key} is {path!r}; it must be an absolute path")
        bridge = self.bridge
        for key in ("record", "token_file"):
            if getattr(bridge, key) and not Path(getattr(bridge, key)).is_absolute():
                raise ValueError(f"engines.p4.bridge.{key} is {getattr(bridge, key)!r}; it must be an absolute path")
        if bridge.url and not bridge.url.startswith("http://"):
            raise ValueError(f"engines.p4.bridge.url is {bridge.url!r}; the bridge speaks http:// on its own host")
        for key, command in (("stop", self.stop), ("start", self.start), ("bridge.restart", bridge.restart)):
            if command and not Path(command[0]).is_absolute():
                raise ValueError(f"engines.p4.{key} runs {command[0]!r}; its program must be an absolute path")
        if found := sorted({"-9", "-KILL", "-SIGKILL", "--signal=KILL", "--signal=SIGKILL"}.intersection(self.stop)):
            raise ValueError(
                f"engines.p4.stop has {found[0]!r}; a p4 agent is ended by TERM, as KILL may leave its stages behind"
            )
        agent = parse_address(self.agent)
        return P4Place(
            agent=agent,
            advertise=parse_address(self.advertise) if self.advertise else agent,
            binary=self.binary,
            journal=self.journal,
            record=self.record,
            release=self.release,
            stop=self.stop,
            start=self.start,
            bridge=BridgePlace(
                record=bridge.record,
                hook=bridge.hook,
                url=bridge.url,
                token=bridge.token_file,
                restart=bridge.restart,
            ),
        )


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cap on what the agent may hand out of one device, such as ``8GiB``."""

    memory: str = ""


class JournalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of its journal the agent keeps: days, and GiB in all, whichever ends first."""

    keep_days: float = 30.0
    keep_gib: float = 8.0

    def __post_init__(self) -> None:
        for key in ("keep_days", "keep_gib"):
            if not 0 < getattr(self, key) <= 100_000:
                raise ValueError(f"journal.{key} is {getattr(self, key):g}; it must be above 0 and at most 100000")


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One agent. ``ports`` is the inclusive range for engines; ``model_roots`` the only folders models come from.

    ``pool`` and ``fabric`` are labels that a profile may ask for; ``cores`` and ``power_w`` (watts) the budgets that
    profiles' demands come out of, 0 for all cores and for no limit.
    """

    host: HostId
    state: str
    socket: str
    advertise: str = "127.0.0.1"
    ports: tuple[Port, Port] = (Port(18_000), Port(18_999))
    model_roots: tuple[str, ...] = ()
    engines: dict[str, EngineConfig] = msgspec.field(default_factory=lambda: {"llamacpp": EngineConfig()})
    devices: dict[str, DeviceConfig] = {}
    journal: JournalConfig = JournalConfig()
    pool: str = ""
    fabric: str = ""
    cores: int = 0
    power_w: int = 0

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise ValueError(f"host is {self.host!r}; it must be letters, digits, '.', '_' and '-', at most 63 of them")
        low, high = (check_port("ports", port) for port in self.ports)
        if low > high:
            raise ValueError(f"ports is [{low}, {high}]; the first must not be above the last")
        for key in ("pool", "fabric"):
            if getattr(self, key) and not _HOST.fullmatch(getattr(self, key)):
                raise ValueError(f"{key} is {getattr(self, key)!r}; it must be letters, digits, '.', '_' and '-'")
        for key, most in (("cores", 65_536), ("power_w", 10_000_000)):
            if not 0 <= getattr(self, key) <= most:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be 0 (not given) to {most}")
        for key in ("state", "socket"):
            if not Path(getattr(self, key)).is_absolute():
                raise ValueError(f"{key} is {getattr(self, key)!r}; it must be an absolute path")
        if len(self.socket.encode()) > MAX_SOCKET_PATH:
            raise ValueError(
                f"socket has {len(self.socket.encode())} bytes; a unix socket's path takes {MAX_SOCKET_PATH}. "
                "Choose a shorter folder."
            )
        for name, engine in self.engines.items():
            if name == P4_ENGINE:
                _ = engine.settings
            elif engine != EngineConfig(folder=engine.folder):
                raise ValueError(f"engines.{name} takes a folder; the other keys are those of engines.{P4_ENGINE}")
        for name, device in self.devices.items():
            if device.memory:
                parse_size(f"devices.{name}.memory", device.memory)

    def device_cap(self, device: str) -> int | None:
        """The configured cap of a device in bytes, or None."""
        entry = self.devices.get(device)
        return parse_size(device, entry.memory) if entry is not None and entry.memory else None


def parse_size(name: str, text: str) -> int:
    """Bytes of a text such as ``512MiB``; raises ValueError naming the key, the text and the accepted units."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{name} is {text!r}; write a whole number and B, KiB, MiB, GiB or TiB, such as 8GiB")
    return int(match[1]) * _UNITS[match[2]]


def read_config(path: Path) -> AgentConfig:
    """Read ``agent.toml``. Raises ConfigError."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}. Give the agent's configuration with --config.") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits, or too deep
        raise ConfigError(f"{path}: not TOML: {error}") from error
    try:
        return msgspec.convert(tree, AgentConfig)
    except (msgspec.ValidationError, ValueError) as error:
        known = ", ".join(AgentConfig.__struct_fields__)
        raise ConfigError(f"{path}: {error}. Known keys: {known}.") from error
