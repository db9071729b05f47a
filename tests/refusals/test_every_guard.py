"""The table of the guards beside the rows: none is without a row."""

from __future__ import annotations

import pytest

from backend.planning.guards import GUARDS
from tests.refusals import (
    test_engine_mistakes,
    test_right_plans,
    test_saved_plans,
    test_sealed_plans,
    test_warnings,
    test_wrong_budgets,
    test_wrong_checks,
    test_wrong_hosts,
    test_wrong_plans,
)

pytestmark = pytest.mark.refusals

ELSEWHERE = {
    "load.target": "unrepresentable: the command's type has no node for a target; the core's E_UNKNOWN_NODE is a row",
    "host.unreadable": "tests/engines: a kernel that hides processes from the drive of a shard, injected",
    "address.moved": "tests/refusals/test_p4_drifts: a p4 agent that advertises another address than it did",
    "load.refused": "tests/e2e/test_p4_ends: what a p4 agent says no to, and its rollback",
    "session.silent": "tests/engines/p4/test_stage: a stage that the head's agent does not reach",
    "resident.journal": "tests/refusals/test_p4_drifts: a p4 agent without a journal",
    "resident.loopback": "tests/refusals/test_p4_drifts: a p4 agent that advertises loopback",
    "resident.name": "tests/refusals/test_p4_drifts: a node of that name, loaded by somebody else",
    "resident.restart": "tests/planning/test_resident_guards: a p4 agent that its journal would not let start again",
    "resident.slots": "tests/planning/test_resident_guards: a p4 agent with few connection slots left",
    "resident.untold": "tests/planning/test_resident_guards: a bridge that nobody tells",
    "resident.same": "tests/planning/test_resident_guards: two p4 agents under one address",
    "placement.differs": "tests/engines: an engine's log, read after a load that printed no plan",
}
"""Guards that need more than a wrong request, and where they are tried."""


def rows_by_id() -> set[str]:
    """The ids that some row of a wrong load or of a warning names."""
    tables = (
        test_engine_mistakes.MISTAKES,
        test_saved_plans.ROWS,
        test_sealed_plans.ROWS,
        test_wrong_budgets.WRONG,
        test_wrong_checks.ROWS,
        test_wrong_hosts.ROWS,
        test_wrong_plans.ROWS,
    )
    warned = {id for row in test_warnings.ROWS for id in row.warns}
    told = {id for row in (*test_right_plans.ROWS, *test_wrong_budgets.RIGHT) for id in row.warns}
    p4 = {id for id, *_ in test_warnings.P4_REFUSED}
    return {id for table in tables for row in table for id in row.id.split("|")} | warned | told | p4


def test_every_guard_has_a_row() -> None:
    """Each guard of the table has a wrong load here, or one that is warned of."""
    # no load: their rows are in tests/adoption and tests/control/test_recovery
    no_load = {guard.id for guard in GUARDS if guard.step in ("adopt", "recover")}
    assert {guard.id for guard in GUARDS} - rows_by_id() - set(ELSEWHERE) - no_load == set()


def test_every_row_names_a_guard() -> None:
    """No row waits for an id that no guard has; those of the core's refusals and of newer agents apart."""
    codes = {"", "E_INVALID", "new.guard"}
    assert rows_by_id() - {guard.id for guard in GUARDS} - codes == set()
