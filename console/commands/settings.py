"""What the options in front of every command say."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from console.commands.exits import refused

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True)
class Settings:
    """Which fleet, in which way to answer, and how the console is to look. None means the default."""

    context: str | None = None
    home: Path | None = None
    read_only: bool = False
    as_json: bool = False
    ascii: bool = False
    mono: bool = False
    slow: bool = False
    theme: str | None = None
    mouse: bool = False


class Duration(click.ParamType[float]):
    """A length of time such as ``90``, ``90s``, ``2m``, ``2:00`` or ``1h``; seconds when no unit is given."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; at most 30 days."""
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip()
        unit = _UNITS.get(text[-1:].lower())
        digits = text[:-1] if unit else text
        seconds = 0.0
        try:
            for part in digits.split(":") if unit is None else [digits]:
                seconds = seconds * 60 + float(part)
        except ValueError:
            self.fail(f"{text!r} is no length of time; write 90s, 2m, 2:00 or 1h", param, ctx)
        seconds *= unit or 1.0
        if not 0 < seconds <= 30 * 86_400:
            self.fail(f"{text!r} is outside what can be waited for; write more than 0 and at most 30d", param, ctx)
        return seconds


def fleet_command(command: F) -> F:
    """Give a command ``--context``, ``--home`` and ``--json``, and pass it the settings as its first argument."""

    @click.option("--context", metavar="NAME", help="The fleet to reach, from contexts.toml.")
    @click.option("--home", type=click.Path(path_type=Path, file_okay=False), help="The folder of ringtop's own files.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON value, errors included.")
    @click.pass_obj
    @functools.wraps(command)
    def wrapped(
        settings: Settings | None, /, *, context: str | None, home: Path | None, as_json: bool, **rest: Any
    ) -> Any:
        base = settings or Settings()
        merged = replace(
            base,
            context=context or base.context,
            home=choose_home(home) or base.home,
            as_json=as_json or base.as_json,
        )
        return command(merged, **rest)

    return wrapped  # type: ignore[return-value]  # click's decorators keep the callable's type, functools.wraps does not


def choose_home(home: Path | None) -> Path | None:
    """Make this the home of this process and of those it starts; None leaves it as it is."""
    if home is None:
        return None
    chosen = home.expanduser().absolute()
    os.environ["RINGTOP_HOME"] = str(chosen)
    return chosen


def split_target(text: str) -> str:
    """A ``MODEL[:PROFILE]``, checked for shape only."""
    model, colon, profile = text.partition(":")
    if not model or (colon and not profile):
        raise refused(f"{text!r} is no MODEL or MODEL:PROFILE; for example tiny:two-host")
    return text
