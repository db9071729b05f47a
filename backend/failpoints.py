"""Named places where a test makes a process die, fail or stand still, at the step where it would hurt most.

Off unless ``RINGTOP_TEST=1``; then ``RINGTOP_FAILPOINTS`` says what happens where, for example
``journal.before_write=kill@3;link.before_send=delay:0.5``:

- ``kill`` ends this process by KILL, ``raise[:ERRNO]`` raises InjectedFault (EIO), ``delay:SECONDS`` stands still,
  ``stop`` stops it by STOP until somebody sends CONT: what happens meanwhile is up to the test, not to its speed;
- ``@N`` acts at the N-th time only (the first without it), ``@N-M`` at all from the N-th to the M-th, ``@N-`` from
  the N-th on.

``RINGTOP_FAILPOINT_HITS`` names a file to which every point is written that was passed (once) or acted (each time),
so that a test can fail for a point that it never reached. When off, a point costs one look into an empty table.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Mapping

NAMES = (
    "journal.before_write",
    "journal.after_write_before_sync",
    "journal.after_sync_before_ack",
    "journal.before_rotation",
    "journal.after_rotation",
    "journal.before_head",
    "journal.after_head",
    "agent.after_sync",
    "agent.before_spawn",
    "agent.before_send",
    "agent.after_send",
    "supervisor.before_shim",
    "supervisor.after_shim",
    "supervisor.after_spawn_record",
    "supervisor.before_exit_read",
    "runs.before_resume",
    "runs.before_stop",
    "runs.before_prove",
    "ledger.before_first_write",
    "ledger.after_first_sync",
    "ledger.before_step",
    "operation.before_reserve",
    "operation.before_check",
    "operation.before_load",
    "operation.before_leader",
    "operation.before_end",
    "recovery.before_step",
    "recovery.before_child",
    "recovery.before_move",
    "recovery.before_tend",
    "recovery.after_tend",
    "link.before_hello",
    "link.before_send",
    "link.after_answer",
)
"""Every point there is. ``area.when``; the area is the module's idea, not its path."""

_RULE = re.compile(
    r"(?P<name>[a-z_.]+)=(?P<act>kill|raise|delay|stop)(:(?P<how>[A-Z0-9.]+))?(@(?P<first>\d+)(?P<dash>-(?P<last>\d*))?)?"
)
_FOREVER = 1 << 62


class InjectedFault(OSError):
    """What an armed point raises: the error of a system call at that place, as far as its caller can tell."""


class Point:
    """One point while tests run: counts how often it was passed, and acts when its turn has come."""

    def __init__(self, name: str, hits: int | None) -> None:
        self.name = name
        self._hits = hits
        self._lock = threading.Lock()
        self._count = 0
        self._act = ""
        self._how = ""
        self._first, self._last = 0, -1

    def arm(self, act: str, how: str, first: int, last: int) -> None:
        """Act at every pass from the ``first`` to the ``last``."""
        if act == "delay":
            float(how)
        elif act == "raise":
            getattr(errno, how)
        self._act, self._how, self._first, self._last = act, how, first, last

    def hit(self) -> None:
        """Pass once. Raises InjectedFault, or never returns, when that is what was asked for."""
        with self._lock:
            self._count += 1
            count = self._count
        is_due = self._first <= count <= self._last
        if is_due or count == 1:
            self._write_down(f"{self.name} {self._act if is_due else 'passed'} {count} {os.getpid()}\n")
        if not is_due:
            return
        if self._act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._act == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if self._act == "raise":
            number = getattr(errno, self._how)
            raise InjectedFault(number, f"{os.strerror(number)} (failpoint {self.name})")
        time.sleep(float(self._how))

    def _write_down(self, line: str) -> None:
        if self._hits is not None:
            os.write(self._hits, line.encode())


def armed_points(environ: Mapping[str, str]) -> dict[str, Point]:
    """The points by name as the environment says; none when it does not say that tests run.

    Raises ValueError for a rule that names no point or cannot be read: a fault that silently never comes proves
    nothing.
    """
    if environ.get("RINGTOP_TEST") != "1":
        return {}
    hits = environ.get("RINGTOP_FAILPOINT_HITS")
    # Opened now: a point must not need a descriptor when it is passed, or it would be a fault of its own.
    fd = os.open(hits, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600) if hits else None
    points = {name: Point(name, fd) for name in NAMES}
    for rule in filter(None, environ.get("RINGTOP_FAILPOINTS", "").split(";")):
        parsed = _RULE.fullmatch(rule)
        if parsed is None or parsed["name"] not in points or (parsed["act"] == "delay" and not parsed["how"]):
            raise ValueError(
                f"RINGTOP_FAILPOINTS: the rule {rule!r} is not NAME=kill|raise[:ERRNO]|delay:SECONDS|stop[@N[-M]]; "
                f"names: {', '.join(NAMES)}"
            )
        first = int(parsed["first"] or 1)
        last = first if parsed["dash"] is None else int(parsed["last"] or _FOREVER)
        points[parsed["name"]].arm(parsed["act"], parsed["how"] or "EIO", first, last)
    return points


_POINTS = armed_points(os.environ)


def failpoint(name: str) -> None:
    """Something may go wrong here when a test says so; nothing does otherwise. Raises InjectedFault then."""
    point = _POINTS.get(name)
    if point is not None:
        point.hit()
