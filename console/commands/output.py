"""Where one-shot commands print: JSON for programs, safe text for people."""

from __future__ import annotations

import json
import locale
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from console.commands.settings import Settings
from console.safe_text import ascii_only, safe_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backend.api import OperationStep
    from console.render.cells import Line, Look, Table

_UNLIMITED = 1 << 20


def say(text: str = "", *, err: bool = False) -> None:
    """Print text for people, line by line, with whatever could steer a terminal made visible."""
    for line in text.split("\n"):
        click.echo(_drawable(safe_text(line)), err=err)


def note(text: str) -> None:
    """Say something beside the answer, on standard error."""
    say(text, err=True)


def print_json(value: Any) -> None:
    """Print one JSON value; structs of the backend are turned into plain trees."""
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=_plain))


def print_json_line(value: Any) -> None:
    """Print one JSON value in a line of its own, at once, for a stream of them."""
    click.echo(json.dumps(value, default=_plain))
    sys.stdout.flush()


def screen_width() -> int:
    """How many cells a line may take: the terminal's, or no limit when something else reads the output."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else _UNLIMITED


def print_table(table: Table, look: Look) -> None:
    """Print a table in aligned columns."""
    from console.render.cells import text_lines

    for line in text_lines(table, screen_width(), glyphs=look.glyphs):
        click.echo(_drawable(line))


def print_lines(lines: Iterable[Line]) -> None:
    """Print styled lines without their styles."""
    from console.render.cells import line_text

    for line in lines:
        click.echo(_drawable(line_text(line).rstrip()))


def show_step(settings: Settings) -> Callable[[OperationStep], None]:
    """What prints the steps of an operation as they come: for people one line each, for programs nothing."""
    if settings.as_json:
        return lambda step: None
    from console.render.values import clock

    look = look_for(settings)
    return lambda step: say(f"{clock(step.at_unix_ms, look)} {step.target} {step.what} {step.words}".rstrip())


def _drawable(text: str) -> str:
    """As it is, or with a ``?`` in the place of what a locale without UTF-8 cannot show."""
    return text if text.isascii() or speaks_utf8() else ascii_only(text)


def look_for(settings: Settings) -> Look:
    """How to show things here and now. Whole generations: nothing is as narrow as a panel."""
    from console.render.cells import Look
    from console.render.glyphs import ASCII, UNICODE

    glyphs = ASCII if settings.ascii or not speaks_utf8() else UNICODE
    return Look(glyphs=glyphs, now=time.monotonic(), now_ms=time.time_ns() // 1_000_000, wide=True)


def speaks_utf8() -> bool:
    """Whether the person's locale says UTF-8. Python's own coercion of the C locale is not asked."""
    named = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    return "utf-8" in named.lower() or "utf8" in named.lower() or locale.getencoding().lower() in ("cp65001",)


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)
