"""``ringtop logs``: what the engine of one shard printed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from console.commands.door import ask, opened, require_a_host, settle, state_of
from console.commands.exits import DONE, INTERRUPTED, no_such
from console.commands.output import note, print_json, print_json_line, say
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import Backend

_MOST = 65_536
_PAUSE = 0.5


@click.command(short_help="Print what the engine of a shard printed.")
@click.argument("shard")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is printed; with --json one object per piece.")
@click.option(
    "--tail",
    type=click.IntRange(1, 16 << 20),
    default=16_384,
    show_default=True,
    metavar="BYTES",
    help="How much of the end to begin with.",
)
@click.option("--previous", is_flag=True, help="What the run before the present one printed.")
@fleet_command
def logs(settings: Settings, shard: str, tail: int, *, follow: bool, previous: bool) -> int:
    """Print the engine output of SHARD, such as tiny-1/0, as its host keeps it."""
    if follow and previous:
        raise click.UsageError("the previous run is over: --previous cannot be followed")
    with opened(settings) as backend:
        _require_shard(backend, shard)
        printer = _Printer(settings, shard, is_stream=follow, is_previous=previous)
        offset = printer.read(backend, -tail)
        if not follow:
            printer.end()
            return DONE
        try:
            while True:
                new = printer.read(backend, offset)
                if new == offset:
                    time.sleep(_PAUSE)
                offset = new
        except KeyboardInterrupt:
            printer.end()
            return INTERRUPTED


def _require_shard(backend: Backend, shard: str) -> None:
    state = state_of(backend)
    known = [view.shard.node_id for replica in state.replicas.values() for view in replica.shards]
    if shard not in known:
        require_a_host(state)
        raise no_such("shard", shard, known)


class _Printer:
    """Prints pieces of a log as they are read; people see whole lines only, so that no line is cut in two."""

    def __init__(self, settings: Settings, shard: str, *, is_stream: bool, is_previous: bool = False) -> None:
        self._settings = settings
        self._is_stream = is_stream
        self._is_previous = is_previous
        self._generation: int | None = None
        self._shard = shard
        self._begun = ""
        self._pieces: list[str] = []
        self._offset = 0

    def read(self, backend: Backend, offset: int) -> int:
        """Print from ``offset`` to the present end of the log; returns the offset of that end."""
        from backend.api import LogRequest

        while True:
            request = LogRequest(node_id=self._shard, offset=offset, limit=_MOST, previous=self._is_previous)
            value = settle(ask(backend, request)).value
            text, offset = str(value["text"]), int(value["offset"])
            if self._generation not in (None, value.get("generation")):
                note(f"ringtop: {self._shard} was loaded again; what follows is of generation {value['generation']}")
                offset, self._generation = 0, int(value["generation"])
                continue
            self._generation = value.get("generation")
            if value.get("skipped"):
                note(f"ringtop: {value['skipped']} bytes were rotated away before they were read")
            self._offset = offset
            self._take(text)
            if not text or offset >= int(value["size"]):
                return offset

    def end(self) -> None:
        """Print what is left: a last line without its end, or the one JSON object of a log that is not followed."""
        if self._begun:
            say(self._begun)
            self._begun = ""
        if self._settings.as_json and not self._is_stream:
            value = {"node_id": self._shard, "generation": self._generation, "text": "".join(self._pieces)}
            print_json({**value, "offset": self._offset})

    def _take(self, text: str) -> None:
        if self._settings.as_json and self._is_stream:
            if text:
                print_json_line({"node_id": self._shard, "text": text, "offset": self._offset})
            return
        if self._settings.as_json:
            self._pieces.append(text)
            return
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            say(line.rstrip("\r"))
