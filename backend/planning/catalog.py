"""``catalog.toml``: which models may be loaded, and in which shapes. Closed: a key that is not known is refused.

A model of an engine that is not known here is kept, unusable, with the reason: the other models go on.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from backend.contract.models import ModelFacts
from backend.contract.naming import nearest
from backend.contract.numbers import U64_MAX
from backend.contract.plans import Profile
from backend.planning.engines import RULES, rules
from backend.planning.engines.p4_bounds import MAX_TENSORS
from backend.planning.engines.rules import MAX_LAYERS, NOTHING_KNOWN

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TEXT, _INTEGER, _FLAG, _TABLE = "a text", "an integer", "true or false", "a table"
_TEXTS, _INTEGERS = "a list of texts", "a list of integers"
_SIZE, _DURATION = "a size such as '8GiB'", "a length of time such as '10m'"
_ITEMS = {_TEXTS: _TEXT, _INTEGERS: _INTEGER}
_WORDED = {_SIZE: _TEXT, _DURATION: _TEXT}
_MODEL_KEYS = {
    "path": _TEXT,
    "id": _TEXT,
    "aliases": _TEXTS,
    "engine": _TEXT,
    "geometry": _TABLE,
    "scaling": _TABLE,
    "profiles": _TABLE,
}
_SCALING_KEYS = {"mode": _TEXT, "idle_timeout": _DURATION, "desired": _INTEGER, "profile": _TEXT}
# The most that each number of a geometry may be: what a header may say, and what p4 counts in.
_GEOMETRY_MOST = {
    "n_layer": MAX_LAYERS,
    **dict.fromkeys(
        ("n_embd", "n_head", "n_head_kv", "key_length", "value_length", "n_vocab", "context_train"), 1 << 31
    ),
    "cut_tensors": MAX_TENSORS,
    "cut_row_bytes": U64_MAX,
}
_GEOMETRY_KEYS = {"architecture": _TEXT, **dict.fromkeys(_GEOMETRY_MOST, _INTEGER)}
_PROFILE_KEYS = {
    "ranks": _INTEGER,
    "hosts": _TEXTS,
    "device": _TEXT,
    "split": _INTEGERS,
    "context": _INTEGER,
    "sequences": _INTEGER,
    "n_batch": _INTEGER,
    "n_ubatch": _INTEGER,
    "threads": _INTEGER,
    "port": _INTEGER,
    "exact_build": _FLAG,
    "options": _TABLE,
    "devices": _INTEGER,
    "ranks_per_host": _INTEGER,
    "memory": _SIZE,
    "cpu_cores": _INTEGER,
    "power": _INTEGER,
    "weight": _INTEGER,
    "pool": _TEXT,
    "fabric": _TEXT,
    "share_device": _FLAG,
}
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MANUAL, ON_DEMAND = "manual", "on_demand"
_FOUND = {bool: _FLAG, int: _INTEGER, float: "a decimal number", str: _TEXT, list: "a list", dict: _TABLE}


class CatalogError(ValueError):
    """A catalog that cannot be used. The message names file, table, key, what was found and what is allowed."""


class UnknownModel(LookupError):
    """A model or profile that the catalog does not have; the message names those that it has."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas a model should have. ``mode`` is ``manual`` (people load and unload) or ``on_demand``.

    On demand, a replica that nobody used for ``idle_seconds`` may be unloaded, down to ``desired`` ones. ``profile`` is
    the shape that is loaded; a model with one profile needs none.
    """

    mode: str = MANUAL
    idle_seconds: int = 0
    desired: int = 0
    profile: str = ""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalog. ``path`` is the file or folder as the agents see it, or the id that an engine takes.

    ``geometry`` overrides what its header says, or stands in for a header. ``trouble`` is why it cannot be planned.
    """

    name: str
    path: str
    engine: str = "llamacpp"
    aliases: tuple[str, ...] = ()
    profiles: dict[str, Profile] = {}
    geometry: dict[str, Any] = {}
    scaling: Scaling = Scaling()
    trouble: str = ""


class Catalog(msgspec.Struct, frozen=True):
    """Every model by its canonical name. ``name`` is where the catalog came from.

    ``stale`` says why the file is no longer what is used here, when a later edit of it could not be read.
    """

    name: str
    models: dict[str, ModelEntry]
    stale: str = ""

    def canonical(self, name: str) -> str | None:
        """The canonical name for a name or alias, or None."""
        if name in self.models:
            return name
        return next((entry.name for entry in self.models.values() if name in entry.aliases), None)

    def resolve(self, target: str) -> tuple[ModelEntry, str, Profile]:
        """The model, profile name and profile for ``MODEL[:PROFILE]``.

        A model with exactly one profile needs no profile name. Raises UnknownModel.
        """
        wanted, colon, profile_name = target.partition(":")
        name = self.canonical(wanted)
        if name is None:
            raise UnknownModel(f"no model {wanted!r} in {self.name}{_near(wanted, self._names())}; {self._known()}")
        entry = self.models[name]
        if entry.trouble:
            raise UnknownModel(f"model {name} cannot be used: {entry.trouble}")
        known = ", ".join(entry.profiles) or "none"
        if not colon and len(entry.profiles) == 1:
            profile_name = next(iter(entry.profiles))
        elif not colon:
            raise UnknownModel(f"model {name} has profiles {known}; name one as {name}:PROFILE")
        if profile_name not in entry.profiles:
            hint = _near(profile_name, entry.profiles)
            raise UnknownModel(f"model {name} has no profile {profile_name!r}{hint}; its profiles: {known}")
        return entry, profile_name, entry.profiles[profile_name]

    def _names(self) -> list[str]:
        return [name for entry in self.models.values() for name in (entry.name, *entry.aliases)]

    def _known(self) -> str:
        return f"its models: {', '.join(self.models)}" if self.models else "it has no models"


def read_catalog(path: Path) -> Catalog:
    """The catalog in a file. Raises CatalogError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CatalogError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}") from error
    return parse_catalog(text, str(path))


def parse_catalog(text: str, name: str) -> Catalog:
    """The catalog in a TOML text; ``name`` says where it is from. Raises CatalogError."""
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, tables in tables without end
        raise CatalogError(f"{name} is not TOML: {error}") from error
    top = _table(name, "the top level", raw, {"models": _TABLE})
    models: dict[str, ModelEntry] = {}
    for model, value in top.get("models", {}).items():
        where = f"[models.{model}]"
        _check_name(name, where, model)
        models[model] = _model(name, where, model, _typed(name, where, model, value, _TABLE))
    _check_aliases(name, models)
    return Catalog(name, models)


def fingerprint(profile: Profile) -> str:
    """sha256 over every field of a profile that is not at its default, keys sorted: one fingerprint is one shape.

    So a field that a later release adds changes no fingerprint of a profile that does not use it.
    """
    plain = Profile(ranks=1)
    said = {name: getattr(profile, name) for name in Profile.__struct_fields__}
    shape = {name: value for name, value in said.items() if name == "ranks" or value != getattr(plain, name)}
    return hashlib.sha256(msgspec.json.encode(shape, order="sorted")).hexdigest()


def with_geometry(model: ModelFacts | None, entry: ModelEntry) -> ModelFacts | None:
    """The model's header with the catalog's geometry over it; the geometry alone where no header is to be read."""
    if not entry.geometry:
        return model
    known = model or msgspec.structs.replace(NOTHING_KNOWN, path=entry.path, name=entry.name)
    return msgspec.structs.replace(known, **entry.geometry)


def _model(name: str, where: str, model: str, raw: Mapping[str, Any]) -> ModelEntry:
    table = _table(name, where, raw, _MODEL_KEYS)
    if bool(table.get("path")) == bool(table.get("id")):
        both = "both a path and an id" if table.get("path") else "no path"
        raise CatalogError(f"{name} {where} has {both}; give the file as the agents see it, or the engine's id as id")
    engine = table.get("engine", "llamacpp")
    trouble = ""
    if engine not in RULES:
        trouble = f"{where} engine is {engine!r}{_near(engine, RULES)}; known: {', '.join(RULES)}"
    elif table.get("id") and rules(engine).reads_header:
        trouble = f"{where} has id = {table['id']!r}, and {engine} reads a file: give its path"
    for alias in table.get("aliases", []):
        _check_name(name, f"{where} aliases", alias)
    profiles: dict[str, Profile] = {}
    for profile, value in table.get("profiles", {}).items():
        inner = f"[models.{model}.profiles.{profile}]"
        _check_name(name, inner, profile)
        profiles[profile] = _profile(name, inner, _typed(name, inner, profile, value, _TABLE))
    geometry = _table(name, f"{where} geometry", table.get("geometry", {}), _GEOMETRY_KEYS)
    for key, value in geometry.items():
        if isinstance(value, int) and not 1 <= value <= _GEOMETRY_MOST[key]:
            raise CatalogError(f"{name} {where} geometry {key} is {value}, outside 1..{_GEOMETRY_MOST[key]}")
    return ModelEntry(
        name=model,
        path=table.get("path") or table["id"],
        engine=engine,
        aliases=tuple(table.get("aliases", ())),
        profiles=profiles,
        geometry=dict(geometry),
        scaling=_scaling(name, where, table.get("scaling", {}), profiles),
        trouble=trouble,
    )


def _scaling(name: str, where: str, raw: Mapping[str, Any], profiles: Mapping[str, Profile]) -> Scaling:
    where = f"{where} scaling"
    table = _table(name, where, raw, _SCALING_KEYS)
    mode, profile = table.get("mode", MANUAL), table.get("profile", "")
    if mode not in (MANUAL, ON_DEMAND):
        raise CatalogError(f"{name} {where} mode is {mode!r}; it must be {MANUAL} or {ON_DEMAND}")
    if profile and profile not in profiles:
        raise CatalogError(f"{name} {where} profile is {profile!r}; its profiles: {', '.join(profiles) or 'none'}")
    desired = table.get("desired", 0)
    if not 0 <= desired <= 1000:
        raise CatalogError(f"{name} {where} desired is {desired}, outside 0..1000")
    if mode == MANUAL and ("idle_timeout" in table or "desired" in table):
        key = "idle_timeout" if "idle_timeout" in table else "desired"
        raise CatalogError(f"{name} {where} has {key} with mode {MANUAL!r}; say mode = {ON_DEMAND!r}, or leave it out")
    if mode == ON_DEMAND and "idle_timeout" not in table:
        raise CatalogError(f"{name} {where} is {ON_DEMAND} and has no idle_timeout; say after what, such as '30m'")
    if mode == ON_DEMAND and len(profiles) > 1 and not profile:
        raise CatalogError(f"{name} {where} is {ON_DEMAND} and names no profile of {', '.join(profiles)}")
    idle = _duration(name, where, "idle_timeout", table["idle_timeout"]) if mode == ON_DEMAND else 0
    return Scaling(mode=mode, idle_seconds=idle, desired=desired, profile=profile)


def _profile(name: str, where: str, raw: Mapping[str, Any]) -> Profile:
    table = _table(name, where, raw, _PROFILE_KEYS)
    if "ranks" not in table:
        raise CatalogError(f"{name} {where} has no ranks; it is the number of shards, the leader included")
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    if "memory" in fields:
        fields["memory"] = _size(name, where, "memory", fields["memory"])
    hosts = fields.get("hosts", ())
    if len(set(hosts)) != len(hosts):
        raise CatalogError(f"{name} {where} hosts names one host twice: {', '.join(hosts)}")
    try:
        return Profile(**fields)
    except ValueError as error:
        raise CatalogError(f"{name} {where}: {error}") from error


def _table(name: str, where: str, raw: Mapping[str, Any], keys: Mapping[str, str]) -> Mapping[str, Any]:
    """The table, when each of its keys is allowed and has its type."""
    for key, value in raw.items():
        if key not in keys:
            raise CatalogError(
                f"{name} {where} has the unknown key {key!r}{_near(key, keys)}; allowed: {', '.join(keys)}"
            )
        _typed(name, where, key, value, keys[key])
    return raw


def _typed(name: str, where: str, key: str, value: Any, wanted: str) -> Any:
    """The value, when it is of the wanted type; of a list, when each element is."""
    found = _FOUND.get(type(value), f"a {type(value).__name__}")
    if found == _WORDED.get(wanted):
        return value
    if wanted in _ITEMS and isinstance(value, list):
        for index, item in enumerate(value):
            _typed(name, where, f"{key}[{index}]", item, _ITEMS[wanted])
        return value
    if found != wanted:
        raise CatalogError(f"{name} {where} {key} is {value!r}, which is {found}; it must be {wanted}")
    return value


def _size(name: str, where: str, key: str, text: str) -> int:
    """Bytes of a text such as ``512MiB``."""
    match = re.fullmatch(r"(\d{1,19})\s*(B|KiB|MiB|GiB|TiB)?", text.strip())
    if match is None:
        raise CatalogError(
            f"{name} {where} {key} is {text!r}; write a whole number and B, KiB, MiB, GiB or TiB: '8GiB'"
        )
    return int(match[1]) * _UNITS[match[2]]


def _duration(name: str, where: str, key: str, text: str) -> int:
    """Seconds of a text such as ``30m``; at least one."""
    match = re.fullmatch(r"([1-9]\d{0,7})\s*([smhd])", text.strip())
    if match is None:
        raise CatalogError(f"{name} {where} {key} is {text!r}; write a whole number and s, m, h or d, such as '30m'")
    return int(match[1]) * _SECONDS[match[2]]


def _check_name(name: str, where: str, text: str) -> None:
    """Names become replica ids and file names, so they are kept to letters, digits, dot, underscore and hyphen."""
    if not _NAME.fullmatch(text):
        raise CatalogError(
            f"{name} {where}: the name {text!r} must begin with a letter or digit and go on with at most 62 letters, "
            "digits, dots, underscores or hyphens"
        )


def _check_aliases(name: str, models: Mapping[str, ModelEntry]) -> None:
    owners: dict[str, str] = {}
    for entry in models.values():
        for word in (entry.name, *entry.aliases):
            if word in owners:
                raise CatalogError(f"{name}: the name {word!r} belongs to both {owners[word]} and {entry.name}")
            owners[word] = entry.name


def _near(word: str, known: Iterable[str]) -> str:
    close = nearest(word, known)
    return f" (did you mean {close!r}?)" if close else ""
