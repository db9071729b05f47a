"""``catalog.toml``: which models may be loaded, and in which shapes. Closed: a key that is not known is refused."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from backend.contract.plans import Profile
from backend.planning.engines import RULES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TEXT, _INTEGER, _FLAG, _TABLE = "a text", "an integer", "true or false", "a table"
_TEXTS, _INTEGERS = "a list of texts", "a list of integers"
_ITEMS = {_TEXTS: _TEXT, _INTEGERS: _INTEGER}
_MODEL_KEYS = {"path": _TEXT, "aliases": _TEXTS, "engine": _TEXT, "profiles": _TABLE}
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
}
_FOUND = {bool: _FLAG, int: _INTEGER, float: "a decimal number", str: _TEXT, list: "a list", dict: _TABLE}


class CatalogError(ValueError):
    """A catalog that cannot be used. The message names file, table, key, what was found and what is allowed."""


class UnknownModel(LookupError):
    """A model or profile that the catalog does not have; the message names those that it has."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalog. ``path`` is the file as the agents see it."""

    name: str
    path: str
    engine: str = "llamacpp"
    aliases: tuple[str, ...] = ()
    profiles: dict[str, Profile] = {}


class Catalog(msgspec.Struct, frozen=True):
    """Every model by its canonical name. ``name`` is where the catalog came from."""

    name: str
    models: dict[str, ModelEntry]

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
    except tomllib.TOMLDecodeError as error:
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
    """sha256 over every field of a profile, keys sorted: two profiles with one fingerprint are one shape."""
    return hashlib.sha256(msgspec.json.encode(profile, order="sorted")).hexdigest()


def _model(name: str, where: str, model: str, raw: Mapping[str, Any]) -> ModelEntry:
    table = _table(name, where, raw, _MODEL_KEYS)
    if not table.get("path"):
        raise CatalogError(f"{name} {where} has no path; give the file as the agents see it")
    engine = table.get("engine", "llamacpp")
    if engine not in RULES:
        raise CatalogError(f"{name} {where} engine is {engine!r}{_near(engine, RULES)}; known: {', '.join(RULES)}")
    for alias in table.get("aliases", []):
        _check_name(name, f"{where} aliases", alias)
    profiles: dict[str, Profile] = {}
    for profile, value in table.get("profiles", {}).items():
        inner = f"[models.{model}.profiles.{profile}]"
        _check_name(name, inner, profile)
        profiles[profile] = _profile(name, inner, _typed(name, inner, profile, value, _TABLE))
    return ModelEntry(
        name=model,
        path=table["path"],
        engine=engine,
        aliases=tuple(table.get("aliases", ())),
        profiles=profiles,
    )


def _profile(name: str, where: str, raw: Mapping[str, Any]) -> Profile:
    table = _table(name, where, raw, _PROFILE_KEYS)
    if "ranks" not in table:
        raise CatalogError(f"{name} {where} has no ranks; it is the number of shards, the leader included")
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
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
    if wanted in _ITEMS and isinstance(value, list):
        for index, item in enumerate(value):
            _typed(name, where, f"{key}[{index}]", item, _ITEMS[wanted])
        return value
    if found != wanted:
        raise CatalogError(f"{name} {where} {key} is {value!r}, which is {found}; it must be {wanted}")
    return value


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
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
