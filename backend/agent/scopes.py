"""A scope of its own for each engine, where systemd runs: no restart of the agent's unit can reach what is in it.

``systemd-run --scope`` moves itself into the new scope and then executes the shim, so the process stays the same one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

SYSTEMD_RUNS = Path("/run/systemd/system")
"""There when systemd is process 1, see sd_booted(3)."""
SYSTEMD_RUN = (Path("/usr/bin/systemd-run"), Path("/bin/systemd-run"))
_UNSAFE = re.compile(r"[^A-Za-z0-9:_.-]")
_LONGEST_NAME = 200


class Scope(msgspec.Struct, frozen=True):
    """What goes in front of a shim's command line, and the environment that it takes. The engine has its own."""

    argv: tuple[str, ...]
    environment: dict[str, str]


def own_scope(
    run: str,
    *,
    uid: int | None = None,
    environment: Mapping[str, str] | None = None,
    systemd_runs: Path | None = None,
    programs: tuple[Path, ...] | None = None,
) -> Scope | None:
    """The scope for a run of this name, or None where there is none to be had and the unit's settings must do.

    Root asks the system's manager; everybody else the manager of their own user, which answers only where it has a
    bus: a system service that runs as a plain user has neither.
    """
    program = next((path for path in programs or SYSTEMD_RUN if os.access(path, os.X_OK)), None)
    if program is None or not (systemd_runs or SYSTEMD_RUNS).exists():
        return None
    command = [str(program), "--scope", "--quiet", "--collect", f"--unit={scope_name(run)}"]
    if (os.geteuid() if uid is None else uid) == 0:
        return Scope((*command, "--"), {})
    runtime = (os.environ if environment is None else environment).get("XDG_RUNTIME_DIR", "")
    if not runtime or not (Path(runtime) / "bus").exists():
        return None
    return Scope((*command, "--user", "--"), {"XDG_RUNTIME_DIR": runtime})


def scope_name(run: str) -> str:
    """The unit's name: the run's, with what systemd does not take in a name replaced."""
    return f"ringtop-engine-{_UNSAFE.sub('_', run)[-_LONGEST_NAME:]}.scope"
