"""Opening the console, where there is a terminal that can show it."""

from __future__ import annotations

import os
import sys

from console.commands.door import chosen_context
from console.commands.exits import refused
from console.commands.output import speaks_utf8
from console.commands.settings import Settings


def is_terminal() -> bool:
    """Whether somebody sits at this process: keys come from a terminal and the screen is one."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def require_screen() -> None:
    """Raise, in one line, where the console cannot be shown."""
    if not is_terminal():
        raise refused("the console needs a terminal, and this is none; for one-shot output use: ringtop ls replicas")
    if os.environ.get("TERM", "") in ("", "dumb"):
        named = os.environ.get("TERM", "")
        raise refused(
            f"TERM is {named!r}, and such a terminal cannot show the console; set TERM to what it really is, "
            "or use: ringtop ls replicas"
        )


def open_console(settings: Settings) -> int:
    """Open the console of the chosen context; returns its exit code."""
    require_screen()
    from backend.api import Backend
    from console.app import run_console

    return run_console(
        Backend(chosen_context(settings)),
        ascii=settings.ascii or not speaks_utf8(),
        mono=settings.mono,
        slow=settings.slow,
        theme=settings.theme,
        mouse=settings.mouse,
    )
