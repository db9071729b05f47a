"""Rehearses a file of events against a catalog file. Reads those two, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from backend.contract.words import HostId
from backend.control.catalog_reader import CatalogReader
from backend.control.event_file import FORMAT, BadLine, Head, Heard, read
from backend.control.rehearsal import Rehearsal, Rehearsed, Shown


class RehearsalRefused(ValueError):
    """Nothing can be rehearsed; the message names the file and says why."""


def rehearse_file(path: Path, catalog: Path, show: Callable[[Shown], None]) -> Rehearsed:
    """Go through a file of events; ``show`` gets what the console would have shown. Raises RehearsalRefused.

    A file without a head has the hosts that its lines name. The catalog is read as it is now.
    """
    models, words = CatalogReader(catalog).read()
    if not models and words:
        raise RehearsalRefused(words)
    head = _head_of(path)
    return Rehearsal(head, models, words, show).run(each for each in _lines(path) if not isinstance(each, Head))


def _head_of(path: Path) -> Head:
    """The head, or one of all hosts that are named."""
    hosts: dict[HostId, str] = {}
    for each in _lines(path):
        if isinstance(each, Head):
            return each
        if isinstance(each, Heard) and each.line.host:
            hosts.setdefault(each.line.host, "")
    if not hosts:
        raise RehearsalRefused(f"{path}: no line of it names a host, so there is nothing to rehearse.")
    return Head(format=FORMAT, hosts=dict(sorted(hosts.items())))


def _lines(path: Path) -> Iterator[Head | Heard | BadLine]:
    try:
        with path.open("rb") as file:
            yield from read(file)
    except OSError as error:
        raise RehearsalRefused(f"{path}: cannot be read: {error.strerror}.") from error
