"""How a guard of the table is written down, and the names of the seven drifts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backend.contract.findings import Finding
from backend.planning.guards.situation import Guard, Situation

GENERATION = "load generation differs from node generation"
BOUND = "result bound guessed"
LOOPBACK = "loopback advertised across hosts"
JOURNAL = "journal off"
DEVICE = "device name of another backend"
RELEASE = "native server older than the agent"
TARGET = "LOAD sent to the node that it creates"

Check = Callable[[Situation], Iterable[Finding]]


def refusing(
    id: str, prevents: str, remedy: str, source: str, check: Check | None = None, step: str = "plan", drift: str = ""
) -> Guard:
    """A guard whose finding stops the load."""
    return Guard(
        id=id, prevents=prevents, severity="refuse", remedy=remedy, source=source, step=step, drift=drift, check=check
    )


def warning(
    id: str, prevents: str, remedy: str, source: str, check: Check | None = None, step: str = "plan", drift: str = ""
) -> Guard:
    """A guard whose finding a person may confirm away."""
    return Guard(
        id=id, prevents=prevents, severity="warn", remedy=remedy, source=source, step=step, drift=drift, check=check
    )
