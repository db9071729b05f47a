"""Host names that are none: an empty label, a label of over 63 letters, a NUL. They cannot even be looked up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def looked_up(host: str) -> Iterator[None]:
    """Around whatever looks a name up: one that cannot be looked up is an OSError like one that is not found."""
    try:
        yield
    except ValueError as error:
        raise OSError(f"{host!r} is no host name: {error}") from error
