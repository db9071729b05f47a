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


class _Said(msgspec.Struct):
    format: int | None = None


T = TypeVar("T", bound=Sealed)


class SealedUnreadable(ValueError):
    """A saved document cannot be used; the message names the file and the reason."""


def write_sealed(document: Sealed, path: Path) -> None:
    """Save a document as JSON that a person can read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def read_sealed(
    path: Path,
    kind: type[T],
    what: str,
    digest_of: Callable[[T], str],
    unreadable: type[SealedUnreadable],
    *,
    form: int | None = None,
) -> T:
    """A document that was saved. ``what`` names it to a person, ``form`` is the format that is read here.

    Raises ``unreadable``, also for an edited one.
    """
    try:
        data = path.read_bytes()
        said = msgspec.json.decode(data, type=_Said).format
        if form is not None and said is not None and said != form:
            raise unreadable(
                f"{path}: is of format {said}, and this ringtop reads {form}. Make a new {what} with this one."
            )
        document = msgspec.json.decode(data, type=kind)
    except OSError as error:
        raise unreadable(f"{path}: cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(f"{path}: is no {what} of ringtop: {error}.") from error
    if (found := digest_of(document)) != document.digest:
        raise unreadable(
            f"{path}: its digest is {document.digest[:8] or 'missing'} and its content gives {found[:8]}: it was "
            f"edited. Make a new {what}."
        )
    return document
