"""Which driver runs which engine."""

from __future__ import annotations

from pathlib import Path

from backend.engines.driver import Driver, EngineMissing
from backend.engines.llamacpp.drive import LlamaCpp

_DRIVERS = {LlamaCpp.engine: LlamaCpp}


def driver_for(engine: str, folder: Path | None) -> Driver:
    """The driver of one engine. ``folder`` None means what was installed with the agent. Raises EngineMissing."""
    try:
        return _DRIVERS[engine](folder)
    except KeyError:
        known = ", ".join(sorted(_DRIVERS))
        raise EngineMissing(
            f"engine {engine!r} has no driver in this agent; it can run: {known}. Correct [engines] in agent.toml."
        ) from None
