"""The table of the guards beside the rows: none that refuses is without a row."""

from __future__ import annotations

import pytest

from backend.planning.guards import GUARDS
from tests.refusals import (
    test_engine_mistakes,
    test_saved_plans,
    test_sealed_plans,
    test_wrong_budgets,
    test_wrong_hosts,
    test_wrong_plans,
)

pytestmark = pytest.mark.refusals

ELSEWHERE = {
    "address.unreachable": "tests/control: a dial between two agents that no machine alone can fail",
    "address.unlistenable": "tests/control: the other side of that dial",
    "check.failed": "tests/control: an agent that does not answer its check",
    "check.unreadable": "tests/control: an agent of a release that answers otherwise",
    "load.target": "unrepresentable: the command's type has no node for a target; the core's E_UNKNOWN_NODE is a row",
    "bound.overflow": "tests/planning/engines: the p4 engine's formula",
    "canary.failed": "tests/engines: an engine that loads and does not answer",
    "host.unreadable": "tests/engines: a kernel that hides processes",
    "address.moved": "tests/refusals/test_p4_drifts: a p4 agent that advertises another address than it did",
    "load.refused": "tests/e2e/test_p4_ends: what a p4 agent says no to, and its rollback",
    "session.silent": "tests/e2e/test_p4_ends: a stage that the head's agent does not reach",
    "resident.journal": "tests/refusals/test_p4_drifts: a p4 agent without a journal",
    "resident.loopback": "tests/refusals/test_p4_drifts: a p4 agent that advertises loopback",
    "resident.name": "tests/refusals/test_p4_drifts: a node of that name, loaded by somebody else",
    "resident.same": "tests/planning/test_resident_guards: two p4 agents under one address",
    "placement.differs": "tests/engines: an engine's log, read after a load that printed no plan",
}
"""Guards that need more than a wrong request, and where they are tried."""


def test_every_guard_that_refuses_has_a_row() -> None:
    """Each guard of the table that refuses has a wrong load here."""
    tables = (
        test_engine_mistakes.MISTAKES,
        test_saved_plans.ROWS,
        test_sealed_plans.ROWS,
        test_wrong_budgets.WRONG,
        test_wrong_hosts.ROWS,
        test_wrong_plans.ROWS,
    )
    rows = {row.id for table in tables for row in table}
    refusing = {guard.id for guard in GUARDS if guard.severity == "refuse"}
    assert refusing - rows - set(ELSEWHERE) - {"batch.order"} == set()
