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
from console.safe_text import cut, safe_text
from console.spans import LONGEST_SECONDS, parse_span

F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_TARGET = 127  # two names of at most 63, and the colon


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
        seconds = parse_span(text)
        if seconds is None:
            self.fail(f"{text!r} is no length of time; write 90s, 2m, 2:00 or 1h", param, ctx)
        if not 0 < seconds <= LONGEST_SECONDS:
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
    """Make this the home of this process and of those it starts; None leaves it as it is.

    Raises for a home that no folder can have, named here or in ``RINGTOP_HOME``: a longer name than the system takes,
    or that of a user who does not exist.
    """
    named = str(home) if home is not None else os.environ.get("RINGTOP_HOME", "")
    if not named:
        return None
    try:
        chosen = Path(named).expanduser().absolute()
        (chosen / "ledger").exists()
    except OSError as error:
        raise refused(
            f"the home {cut(safe_text(named), 80)!r} cannot be: {error.strerror}. Set RINGTOP_HOME to another one."
        ) from error
    except RuntimeError as error:
        raise refused(
            f"the home {named!r} begins with a user whom this machine does not know. Set RINGTOP_HOME or --home to an "
            "absolute path."
        ) from error
    if home is None:
        return None
    os.environ["RINGTOP_HOME"] = str(chosen)
    return chosen


def split_target(text: str) -> str:
    """A ``MODEL[:PROFILE]``, checked for shape only."""
    model, colon, profile = text.partition(":")
    if len(text) > _LONGEST_TARGET:
        raise refused(f"{text[:40]!r}… has {len(text)} characters; no MODEL:PROFILE is longer than {_LONGEST_TARGET}")
    if not model or (colon and not profile):
        raise refused(f"{text!r} is no MODEL or MODEL:PROFILE; for example tiny:two-host")
    return text
