"""What is at work on a replica, in the words of the derivation. A reload is a load of what it brings up. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backend.contract.words import ReplicaId
from backend.control.derive import OPEN_STATES
from backend.control.views import OperationView

_STAGE = "stage "


def touched_by(operation: OperationView) -> set[ReplicaId]:
    """The replicas that an operation is about."""
    touched = {ReplicaId(operation.subject)}
    if operation.kind == "reload" and operation.plan is not None:
        touched.add(operation.plan.replica)
    return touched


def open_operations(replica: ReplicaId, operations: Iterable[OperationView]) -> list[OperationView]:
    """The open operations of one replica, a reload in its load stage as the load that it is there."""
    found = [_as_seen_by(replica, operation) for operation in operations if operation.state in OPEN_STATES]
    return [operation for operation in found if operation is not None]


def _as_seen_by(replica: ReplicaId, operation: OperationView) -> OperationView | None:
    plan = operation.plan
    if operation.kind == "reload" and plan is not None and plan.replica == replica:
        stage = next((step.what for step in reversed(operation.steps) if step.what.startswith(_STAGE)), "")
        if stage == f"{_STAGE}load":
            return msgspec.structs.replace(
                operation, kind="load", subject=replica, load_generation=plan.load_generation
            )
    return operation if operation.subject == replica else None
