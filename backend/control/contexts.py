"""Contexts: which fleet an operator means, from ``<home>/contexts.toml``."""

from __future__ import annotations

import getpass
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from backend.contract.words import AgentAddress, HostId

CONTEXTS_FILE = "contexts.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CONTEXT_KEYS = {"label", "catalog", "read_only", "hosts"}
_SCHEMES = ("unix:", "ssh://", "wss://")
"""What is taken as an address; the last of these is refused in words when it is dialled, so that the others go on."""


class ContextError(ValueError):
    """A context that cannot be used; the message names the file, the key, what was found and what was expected."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet as an operator reaches it. ``label`` is what the screen shows in large, ``hosts`` how to dial each."""

    name: str
    label: str
    home: Path
    catalog_path: Path
    hosts: dict[HostId, AgentAddress]
    read_only: bool = False

    @property
    def ledger_folder(self) -> Path:
        """Where the operations of this home keep their files."""
        return ledger_folder(self.home)


def ledger_folder(home: Path) -> Path:
    """Where the operations of a home keep their files."""
    return home / "ledger"


def home_folder() -> Path:
    """The operator's state folder: ``$RINGTOP_HOME``, else the user's state folder of this system."""
    named = os.environ.get("RINGTOP_HOME")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs  # 6 ms that only a home without a name needs

    return Path(platformdirs.user_state_path("ringtop"))


def who_asks() -> str:
    """The name under which this person's commands are recorded; the uid when the system knows no name."""
    try:
        return getpass.getuser().encode(errors="replace").decode()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def load_contexts(home: Path | None = None) -> tuple[dict[str, Context], str]:
    """Every context of a home by name, and the name of its default. Raises ContextError."""
    path = (home or home_folder()) / CONTEXTS_FILE
    contexts, default = _all(path)
    return contexts, _chosen(path, contexts, default)


def load_context(name: str | None = None, home: Path | None = None) -> Context:
    """The context with this name, else the default one. Raises ContextError naming those that exist."""
    path = (home or home_folder()) / CONTEXTS_FILE
    contexts, default = _all(path)
    if name is None:
        return contexts[_chosen(path, contexts, default)]
    if name not in contexts:
        raise ContextError(f"{path}: there is no context {name!r}; it has {', '.join(sorted(contexts))}.")
    return contexts[name]


def _all(path: Path) -> tuple[dict[str, Context], str | None]:
    """Every context, and the default: the one that is named, else the only one."""
    tree = _read(path)
    unknown = sorted(set(tree) - {"default", "contexts"})
    if unknown:
        raise ContextError(f"{path}: the key {unknown[0]!r} is unknown; known here: contexts, default.")
    tables = tree.get("contexts")
    if not isinstance(tables, dict) or not tables:
        raise ContextError(f"{path}: contexts is {_found(tables)}; expected at least one table [contexts.NAME].")
    contexts: dict[str, Context] = {name: _context(path, name, table) for name, table in tables.items()}
    default = tree.get("default", next(iter(contexts)) if len(contexts) == 1 else None)
    if default is not None and default not in contexts:
        known = ", ".join(sorted(contexts))
        raise ContextError(f"{path}: default is {_found(default)}; expected one of {known}. Correct it.")
    return contexts, default


def _chosen(path: Path, contexts: dict[str, Context], default: str | None) -> str:
    if default is None:
        known = ", ".join(sorted(contexts))
        raise ContextError(
            f"{path}: default is missing, and there are {len(contexts)} contexts: {known}. Set default, or name one "
            "with --context."
        )
    return default


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        raise ContextError(
            f"{path}: there is no such file, so no fleet is known. Run `ringtop up` for a fleet on this machine, "
            "or write the file by hand."
        ) from error
    except OSError as error:
        raise ContextError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits, or too deep
        raise ContextError(f"{path}: is not TOML: {error}.") from error


def _context(path: Path, name: str, table: object) -> Context:
    key = f"contexts.{name}"
    if not isinstance(table, dict):
        raise ContextError(f"{path}: {key} is {_found(table)}; expected a table.")
    if not _NAME.fullmatch(name):
        raise ContextError(f"{path}: the context name {name!r} is refused; expected letters, digits, dot, _ and -.")
    unknown = sorted(set(table) - _CONTEXT_KEYS)
    if unknown:
        known = ", ".join(sorted(_CONTEXT_KEYS))
        raise ContextError(f"{path}: {key}.{unknown[0]} is unknown; known here: {known}.")
    catalog = _typed(path, f"{key}.catalog", table.get("catalog", "catalog.toml"), str, "a path")
    return Context(
        name=name,
        label=_typed(path, f"{key}.label", table.get("label", name.upper()), str, "a text"),
        home=path.parent,
        catalog_path=path.parent / catalog,
        hosts=_hosts(path, f"{key}.hosts", table.get("hosts")),
        read_only=_typed(path, f"{key}.read_only", table.get("read_only", False), bool, "true or false"),
    )


def _hosts(path: Path, key: str, table: object) -> dict[HostId, AgentAddress]:
    if not isinstance(table, dict) or not table:
        raise ContextError(f'{path}: {key} is {_found(table)}; expected at least one line such as host-a = "unix:…".')
    hosts: dict[HostId, AgentAddress] = {}
    owner: dict[str, str] = {}
    for name, address in table.items():
        if not _NAME.fullmatch(name):
            raise ContextError(f"{path}: {key} names the host {name!r}; expected letters, digits, dot, _ and -.")
        text: str = _typed(path, f"{key}.{name}", address, str, "an address")
        if not text.startswith(_SCHEMES):
            raise ContextError(f"{path}: {key}.{name} is {text!r}; expected unix:PATH or ssh://[user@]host.")
        if text.startswith("unix:") and (not text.startswith("unix:/") or "\0" in text):
            raise ContextError(
                f"{path}: {key}.{name} is {text!r}; expected an absolute path, such as unix:/run/ringtop/agent.sock: "
                "operations run in another folder."
            )
        if text in owner:
            raise ContextError(
                f"{path}: {key}.{name} and {key}.{owner[text]} both are {text!r}; one agent is one host. "
                "Give each host its own address."
            )
        owner[text] = name
        hosts[HostId(name)] = AgentAddress(text)
    return hosts


def _typed(path: Path, key: str, value: object, kind: type, expected: str) -> Any:
    if type(value) is not kind:
        raise ContextError(f"{path}: {key} is {_found(value)}; expected {expected}.")
    return value


def _found(value: object) -> str:
    return "missing" if value is None else repr(value)
