"""The interoperability vectors, read from their files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).parent / "vectors"


def entries(name: str) -> list[Any]:
    """The entries of one file as parameters of a test, by their names."""
    return [pytest.param(entry, id=entry["name"]) for entry in json.loads((_FOLDER / f"{name}.json").read_text())]


def body_of(entry: dict[str, Any]) -> bytes:
    """The bytes of an entry, checked against the length and digest beside them."""
    if "parts" in entry:
        body = b"".join(bytes.fromhex(part["hex"]) * part.get("repeat", 1) for part in entry["parts"])
    else:
        body = bytes.fromhex(entry["hex"])
    assert entry.get("length", len(body)) == len(body)
    assert entry.get("sha256", hashlib.sha256(body).hexdigest()) == hashlib.sha256(body).hexdigest()
    return body


def canonical(entry: dict[str, Any]) -> bytes:
    """What an encoder writes for the fields of a valid entry."""
    return body_of(entry) if entry.get("canonical", True) else bytes.fromhex(entry["canonical_hex"])
