"""Documents that people save, read and confirm: JSON with a digest, refused when they were edited since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec


class Sealed(Protocol):
    """What is saved: a struct that carries the digest of its own content."""

    @property
    def digest(self) -> str:
        """In hexadecimal; empty when it was never sealed."""


T = TypeVar("T", bound=Sealed)


class SealedUnreadable(ValueError):
    """A saved document cannot be used; the message names the file and the reason."""


def write_sealed(document: Sealed, path: Path) -> None:
    """Save a document as JSON that a person can read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def read_sealed(
    path: Path, kind: type[T], what: str, digest_of: Callable[[T], str], unreadable: type[SealedUnreadable]
) -> T:
    """A document that was saved. ``what`` names it to a person. Raises ``unreadable``, also for an edited one."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise unreadable(f"{path}: cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise unreadable(f"{path}: is no {what} of ringtop: {error}.") from error
    if (found := digest_of(document)) != document.digest:
        raise unreadable(
            f"{path}: its digest is {document.digest[:8] or 'missing'} and its content gives {found[:8]}: it was "
            f"edited. Make a new {what}."
        )
    return document
