"""Which driver runs which engine."""

from __future__ import annotations

from pathlib import Path

from backend.engines.driver import Driver, EngineMissing
from backend.engines.llamacpp.drive import LlamaCpp
from backend.engines.p4.drive import P4
from backend.engines.p4.place import P4Place


def driver_for(engine: str, folder: Path | None, p4: P4Place | None = None, state: Path | None = None) -> Driver:
    """The driver of one engine. ``folder`` None means what was installed with the agent. Raises EngineMissing.

    p4 is not started from a folder: ``p4`` says where its agent is, ``state`` where this agent may keep what it must
    remember of it.
    """
    if engine == LlamaCpp.engine:
        return LlamaCpp(folder)
    if engine == P4.engine and p4 is not None and state is not None:
        return P4(p4, state)
    raise EngineMissing(
        f"engine {engine!r} has no driver in this agent; it can run: {LlamaCpp.engine}, {P4.engine}. "
        "Correct [engines] in agent.toml."
    )
