"""JSON as the engine reads it: no duplicate members, no float for an integer, no lone surrogate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class BadJson(ValueError):
    """A text that the engine's parser refuses."""


@dataclass(frozen=True, slots=True)
class Float:
    """A number that is no integer to the engine, by its own text."""

    text: str


def read_json(raw: bytes, *, numbers: bool = False) -> Any:
    """The value of a text. Numbers that are no integers become Float, or float with ``numbers``. Raises BadJson."""
    try:
        return json.loads(
            raw.decode(),
            object_pairs_hook=_members,
            parse_float=float if numbers else Float,
            parse_int=_integer,
            parse_constant=_constant,
        )
    except (ValueError, RecursionError) as error:
        raise BadJson(str(error)) from None


def write_json(value: Any) -> bytes:
    """The compact text of a value, as the engine writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise BadJson(f"duplicate field `{name}`")
        _scalar_text(name)
        members[name] = value
    return members


def _scalar_text(text: str) -> None:
    text.encode()


def _integer(text: str) -> int | Float:
    return Float(text) if text == "-0" else int(text)


def _constant(text: str) -> Any:
    raise BadJson(f"expected value, found {text}")
