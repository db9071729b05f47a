"""One look of a keeper at the fleet, indexed once: no rule goes through the whole fleet for each of its replicas."""

from __future__ import annotations

from functools import cached_property

from backend.contract.entities import OperatorHold, Shard, operator_hold_key
from backend.contract.states import HostState
from backend.contract.words import ReplicaId
from backend.control.derive import OPEN_STATES
from backend.control.keeper_decisions import KeeperRules
from backend.control.views import FleetState, HostView, ModelView, ReplicaView

ON_DEMAND = "on_demand"


def holds_in(state: FleetState) -> dict[str, OperatorHold]:
    """What people decided, as any host says: the newest for each subject. What a silent host last said still counts."""
    newest: dict[str, OperatorHold] = {}
    for view in state.hosts.values():
        for key, held in view.entities.operator_holds.items():
            if key not in newest or held.at_unix_ms > newest[key].at_unix_ms:
                newest[key] = held
    return newest


def model_part(replica: str) -> str:
    """The model in the name of a replica: ``tiny`` of ``tiny-1``."""
    return replica.rpartition("-")[0]


class Look:
    """The fleet at one moment, with what several rules ask of it."""

    def __init__(self, state: FleetState, now: float, rules: KeeperRules) -> None:
        self.state = state
        self.now = now
        self.rules = rules
        self.holds = holds_in(state)
        self.all_live = all(view.state is HostState.LIVE for view in state.hosts.values())
        self.all_have_reported = all(view.reported_at for view in state.hosts.values())
        self.busy = _busy(state)
        self.busy_models = {model_part(name) for name in self.busy}

    @cached_property
    def models(self) -> list[ModelView]:
        """The models that a keeper sees to: on demand, usable, and held by nobody."""
        return [
            model
            for name, model in sorted(self.state.models.items())
            if model.mode == ON_DEMAND and not model.words and operator_hold_key("model", name) not in self.holds
        ]

    def of_model(self, model: ModelView) -> list[ReplicaView]:
        """Its replicas, by its name and then by its aliases."""
        return [view for name in (model.name, *model.aliases) for view in self._by_model.get(name, ())]

    def held_of_model(self, model: ModelView) -> list[ReplicaId]:
        """The replicas of a model that somebody holds, there or not."""
        return self._held_by_model.get(model.name, [])

    def is_held(self, replica: ReplicaId) -> bool:
        """Somebody decided about it."""
        return operator_hold_key("replica", replica) in self.holds

    def is_model_held(self, name: str) -> bool:
        """Somebody decided about the model of this name or alias."""
        return operator_hold_key("model", self._canonical.get(name, name)) in self.holds

    def is_in_catalog(self, name: str) -> bool:
        """The catalog has a model of this name or alias."""
        return name in self._canonical

    def all_heard(self, view: ReplicaView) -> bool:
        """A fresh report from every host of the context and of the load record; without a record nobody can say."""
        hosts = {shard.shard.host for shard in view.shards} | set(view.plan.hosts if view.plan else ())
        return self.all_live and hosts <= self.state.hosts.keys()

    def shards(self, replica: ReplicaId) -> list[tuple[HostView, Shard]]:
        """Every shard of a replica that any host has, of whatever generation."""
        return self._shards.get(replica, [])

    @cached_property
    def _canonical(self) -> dict[str, str]:
        found = {name: name for name in self.state.models}
        for name, model in self.state.models.items():
            for alias in model.aliases:
                found.setdefault(alias, name)
        return found

    @cached_property
    def _by_model(self) -> dict[str, list[ReplicaView]]:
        found: dict[str, list[ReplicaView]] = {}
        for view in self.state.replicas.values():
            found.setdefault(view.model, []).append(view)
        return found

    @cached_property
    def _held_by_model(self) -> dict[str, list[ReplicaId]]:
        found: dict[str, list[ReplicaId]] = {}
        for held in self.holds.values():
            if held.scope == "replica":
                found.setdefault(model_part(held.subject), []).append(ReplicaId(held.subject))
        return found

    @cached_property
    def _shards(self) -> dict[ReplicaId, list[tuple[HostView, Shard]]]:
        found: dict[ReplicaId, list[tuple[HostView, Shard]]] = {}
        for host in self.state.hosts.values():
            for shard in host.entities.shards.values():
                found.setdefault(shard.replica, []).append((host, shard))
        return found


def _busy(state: FleetState) -> set[str]:
    """The replicas that somebody is doing something about: an open operation, a reservation, a command under way."""
    busy: set[str] = {op.subject for op in state.operations.values() if op.state in OPEN_STATES}
    for host in state.hosts.values():
        busy |= {reservation.replica for reservation in host.entities.reservations.values()}
        busy |= {
            operation.subject.partition("/")[0]
            for operation in host.entities.operations.values()
            if operation.result is None
        }
        busy |= {drain.replica for drain in host.entities.drains.values() if not drain.outcome}
    return {name.partition("/")[0] for name in busy}
