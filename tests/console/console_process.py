"""The whole console as a process of its own, over a stand-in door: for tests with a real pseudo-terminal.

Run as ``python -m tests.console.console_process [hostile|busy|storm|broken] [ascii] [mono]``.
"""

from __future__ import annotations

import sys
import threading
import time

from console.app import run_console
from tests.console import worlds as w
from tests.console.stand_in import StandInDoor

HOSTILE = (
    "[/x] [bold",
    "\x1b]52;c;AAAA\x07",
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[?1049l",
    "\x9b2J",
    "\u202edcba",
    "\x1bP1;1|\x1b\\",
)


def _storm(door: StandInDoor) -> None:
    for number in range(3000):
        door.say(*(w.journal_line(words=f"line {number} {text}") for text in HOSTILE[:2]))
        if number % 100 == 0:
            time.sleep(0.05)


def main(words: list[str]) -> int:
    """Run the console until it is left."""
    door = StandInDoor(w.fleet(w.replica(measured_at=0.0)) if "idle" in words else w.busy_fleet())
    if "hostile" in words:
        door.say(*(w.journal_line(words=f"said {text} here", host=f"h{text}", node_id=text) for text in HOSTILE))
    if "storm" in words:
        threading.Thread(target=_storm, args=(door,), daemon=True).start()
    if "broken" in words:
        threading.Timer(1.0, lambda: setattr(door, "current", None)).start()
    try:
        return run_console(door, ascii="ascii" in words, mono="mono" in words)  # type: ignore[arg-type]
    except AttributeError as bug:
        print(f"raised {bug}")
        return 70


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
