"""Records what the links hear of a live fleet, in the event format; changes nothing anywhere but its own file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from backend.contract.words import HostId
from backend.control.contexts import Context
from backend.control.durable import sync_folder
from backend.control.event_file import FORMAT, EventLine, Head, frame_line, write
from backend.control.fleet_events import AnyFleetEvent, Slept
from backend.control.ledger import new_op_id
from backend.control.link_ends import LinkSettings
from backend.control.link_events import LinkDown, LinkRefused, Noted
from backend.control.reach import Reach
from backend.control.wall_clock import now_unix_ms
from backend.versions import RINGTOP_VERSION

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RecordRefused(ValueError):
    """The file cannot be written; the message names it and says why."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording holds. ``frames`` counts by host; ``never_heard`` are hosts without one."""

    file: str
    seconds: float
    lines: int
    frames: dict[HostId, int]
    never_heard: dict[HostId, str]
    end: str


def record_fleet(
    context: Context, path: Path, *, seconds: float | None, who: str, settings: LinkSettings | None = None
) -> Recorded:
    """Record until ``seconds`` are over, or INT or TERM; the file appears whole under its name when it is closed.

    Until then it is written beside it, with ``.part`` behind its name, and can be rehearsed from there. Raises
    RecordRefused for a name that is taken, and when nothing can be written.
    """
    if path.exists():
        raise RecordRefused(f"{path} is there already, and is kept. Name another file.")
    part = path.with_name(f"{path.name}.part")
    try:
        with _opened(part) as file:
            recorder = _Recorder(context, path, file)
            recorded = asyncio.run(recorder.run(seconds, who, settings))
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # a rename would replace a file that came meanwhile
        part.unlink()
        sync_folder(path.absolute().parent)
    except FileExistsError as error:
        raise RecordRefused(f"{path} came into being meanwhile, and is kept; the recording is {part}.") from error
    except OSError as error:
        kept = f"; what was recorded until then is {part}" if part.exists() else ""
        raise RecordRefused(f"the recording cannot be written as {path}: {error.strerror or error}{kept}") from error
    return recorded


def _opened(part: Path) -> BinaryIO:
    """The file that is written to; one that is there already may be somebody's."""
    try:
        return part.open("xb")
    except FileExistsError as error:
        raise RecordRefused(
            f"{part} is there: another recorder writes it, or one was killed and left it. Move it, or name another."
        ) from error


class _Recorder:
    def __init__(self, context: Context, path: Path, file: BinaryIO) -> None:
        self._context = context
        self._path = path
        self._file = file
        self._began = time.monotonic()
        self._lines = 0
        self._frames: dict[HostId, int] = dict.fromkeys(sorted(context.hosts), 0)
        self._stop = asyncio.Event()
        self._unwritable: OSError | None = None

    async def run(self, seconds: float | None, who: str, settings: LinkSettings | None) -> Recorded:
        """Follow the fleet until it is enough."""
        loop = asyncio.get_running_loop()
        for each in _STOP_SIGNALS:
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: then only time ends it
                loop.add_signal_handler(each, self._stop.set)
        began_ms = now_unix_ms()
        hosts = {host: str(address) for host, address in self._context.hosts.items()}
        head = Head(
            format=FORMAT,
            context=self._context.name,
            label=self._context.label,
            hosts=hosts,
            started_unix_ms=began_ms,
            ringtop=RINGTOP_VERSION,
        )
        self._put(write(head))
        reach = Reach(
            self._context,
            self._context.hosts,
            console=f"recorder-{new_op_id('record', began_ms)}",
            who=who,
            read_only=True,
            settings=settings,
            tap=self._frame,
            told=self._told,
        )
        end = await self._until(reach, seconds)
        self._put(write(EventLine(at=self._at(), unix_ms=now_unix_ms(), end=end)))
        if self._unwritable is not None:
            raise self._unwritable
        views = reach.state.hosts
        return Recorded(
            file=str(self._path),
            seconds=round(self._at(), 3),
            lines=self._lines,
            frames=self._frames,
            never_heard={host: views[host].words for host, count in self._frames.items() if not count},
            end=end,
        )

    async def _until(self, reach: Reach, seconds: float | None) -> str:
        links = asyncio.create_task(reach.run())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({links, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if links in done:
                links.result()  # raises what ended the links
            return "stopped by a person" if stopped in done else "the time was over"
        finally:
            links.cancel()
            stopped.cancel()
            await asyncio.wait({links, stopped})

    def _at(self) -> float:
        return round(time.monotonic() - self._began, 6)

    def _put(self, data: bytes) -> None:
        """Write one line at once. A disk that takes no more ends the recording, and is no fault of the links."""
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._unwritable = self._unwritable or error
            self._stop.set()
        else:
            self._lines += 1

    def _frame(self, host: HostId, frame: str) -> None:
        self._frames[host] += 1
        self._put(frame_line(self._at(), now_unix_ms(), host, frame))

    def _told(self, event: AnyFleetEvent) -> None:
        """The events of the links that are no frames."""
        at, now = self._at(), now_unix_ms()
        match event:
            case LinkDown():
                line = EventLine(at=at, unix_ms=now, host=event.host, link="down", words=event.words)
            case LinkRefused():
                line = EventLine(at=at, unix_ms=now, host=event.host, link="refused", words=event.words)
            case Noted():
                line = EventLine(
                    at=at,
                    unix_ms=now,
                    host=event.host,
                    link="note",
                    words=event.words,
                    kind=event.kind,
                    level=event.level,
                )
            case Slept():
                line = EventLine(at=at, unix_ms=now, slept=event.seconds)
            case _:
                return
        self._put(write(line))
