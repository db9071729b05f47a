"""The guards of an adoption: an engine that no agent started beside the profile that it is said to be.

They look at a process and not at a plan, so they run where the adoption is planned; here they are described.
"""

from __future__ import annotations

from backend.planning.guards.situation import Guard
from backend.planning.guards.table import refusing, warning

_STEP = "adopt"

ADOPTING: tuple[Guard, ...] = (
    refusing(
        "foreign.engine",
        "an engine that is asked and stopped as if it were another",
        "Adopt it as a model that its engine runs.",
        "its command line",
        step=_STEP,
    ),
    refusing(
        "foreign.role",
        "a part of an engine taken for a replica",
        "Adopt the leader that it works for.",
        "its command line",
        step=_STEP,
    ),
    refusing(
        "foreign.identity",
        "a stop of whatever has its pid by then",
        "Update the agent.",
        "pid, start ticks and boot id",
        step=_STEP,
    ),
    refusing(
        "foreign.user",
        "a drain that ends with a process nobody may stop",
        "Stop it as its user, and load it.",
        "signal 0, which asks and sends nothing",
        step=_STEP,
    ),
    refusing(
        "foreign.ranks",
        "a replica that is short, or has a rank too many",
        "Adopt it as a profile with as many ranks.",
        "its command line",
        step=_STEP,
    ),
    refusing(
        "foreign.ring",
        "a ring of which one rank is known",
        "Stop it by hand and load it.",
        "ranks of the profile",
        step=_STEP,
    ),
    refusing(
        "foreign.model",
        "requests answered by another model",
        "Adopt it as the model that it serves.",
        "its command line and answers",
        step=_STEP,
    ),
    refusing(
        "foreign.port",
        "requests sent to a port where nothing listens",
        "Adopt it as a profile without that port.",
        "its sockets",
        step=_STEP,
    ),
    refusing(
        "foreign.device",
        "memory counted on a device that it does not use",
        "Adopt it as a profile of its device.",
        "the drivers",
        step=_STEP,
    ),
    warning(
        "foreign.memory",
        "memory given out that it holds",
        "Look at what its devices have free.",
        "the process table and the drivers",
        step=_STEP,
    ),
    refusing(
        "foreign.answers",
        "something else behind its port",
        "Look at the process on its host.",
        "the shape of its answers",
        step=_STEP,
    ),
)
