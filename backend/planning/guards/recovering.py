"""The guards of a recovery of an engine's own agent: what must not be ended before it is known how it comes back.

They look at a process and not at a plan of a load, so they run where the recovery is planned; here they are described.
"""

from __future__ import annotations

from backend.planning.guards.situation import Guard
from backend.planning.guards.table import refusing, warning

_STEP = "recover"

RECOVERING: tuple[Guard, ...] = (
    refusing(
        "recovery.our_journal",
        "deeds at an engine's agent that nobody wrote down",
        "Repair the journal of the host's ringtop agent.",
        "the health of its journal",
        step=_STEP,
    ),
    refusing(
        "recovery.unseen",
        "a stop of whatever listens on its port by then",
        "Let the ringtop agent see the p4 agent's process.",
        "its socket and its process",
        step=_STEP,
    ),
    refusing(
        "recovery.no_journal",
        "a p4 agent that is ended and refuses to start again",
        "Set journal of engines.p4 in agent.toml.",
        "its environment, agent.toml",
        step=_STEP,
    ),
    refusing(
        "recovery.foreign",
        "stages of somebody else cut without a word",
        "Say that they are cut.",
        "INSPECT and the record of who loads past ringtop",
        step=_STEP,
    ),
    warning(
        "recovery.not_ours",
        "a ring that is gone and does not come back",
        "Have whoever loaded it load it again.",
        "the load record",
        step=_STEP,
    ),
    warning(
        "recovery.keeper",
        "a keeper that loads in the midst of it",
        "Pause its models.",
        "the keeper's lease",
        step=_STEP,
    ),
)
