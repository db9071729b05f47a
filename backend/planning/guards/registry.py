"""Every guard there is, by the id that its findings carry: what it prevents, what to do, and when it can first know.

A guard that looks at a plan is described beside its check; those that can only know later have modules of their own.
"""

from __future__ import annotations

from backend.planning.guards import (
    addresses,
    devices,
    hosts,
    memory,
    model,
    numbers,
    replicas,
    residents,
    serving,
    shape,
)
from backend.planning.guards.adopting import ADOPTING
from backend.planning.guards.later import LATER
from backend.planning.guards.recovering import RECOVERING
from backend.planning.guards.situation import Guard
from backend.planning.guards.table import Check

_AT_THE_PLAN = (hosts, devices, addresses, numbers, model, shape, memory, residents, replicas, serving)

GUARDS: tuple[Guard, ...] = (
    *(guard for module in _AT_THE_PLAN for guard in module.GUARDS),
    *LATER,
    *ADOPTING,
    *RECOVERING,
)
BY_ID = {guard.id: guard for guard in GUARDS}
CHECKS: tuple[Check, ...] = tuple(dict.fromkeys(guard.check for guard in GUARDS if guard.check is not None))
"""What runs at the plan, each once and in the order of the list."""
