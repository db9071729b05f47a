"""Guards about what a plan says of itself: ranks, layer windows and endpoints. They hold for a saved plan as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan
from backend.planning.engines import RULES
from backend.planning.fleet import FleetFacts, machine_of
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import refusing


def ranks(situation: Situation) -> Iterator[Finding]:
    """Every rank once, in order."""
    yield from ranks_of(situation.plan)


def layers(situation: Situation) -> Iterator[Finding]:
    """Every layer once."""
    yield from layers_of(situation.plan)


def endpoints(situation: Situation) -> Iterator[Finding]:
    """Every endpoint once."""
    yield from endpoints_of(situation.plan, situation.fleet)


def ranks_of(plan: Plan) -> Iterator[Finding]:
    """The same for a plan alone. Without any shard there was no host, which is a finding of its own."""
    found, wanted = [shard.rank for shard in plan.shards], list(range(plan.profile.ranks))
    if plan.shards and found != wanted:
        twice = sorted({rank for rank in found if found.count(rank) > 1})
        missing = sorted(set(wanted) - set(found))
        why = [f"{_listed(twice)} is there twice"] if twice else []
        why += [f"{_listed(missing)} is missing"] if missing else []
        yield refuse(
            "ranks.order",
            plan.replica,
            expected=f"ranks 0 to {plan.profile.ranks - 1}, each once and in order, from ranks = {plan.profile.ranks}",
            found=f"ranks {_listed(found)}" + (f": {'; '.join(why)}" if why else ", which is another order"),
            remedy="The ranks would not form one chain. Plan again instead of editing.",
        )


def layers_of(plan: Plan) -> Iterator[Finding]:
    """The same for a plan alone, as far as the plan places layers and the model's are known."""
    rules = RULES.get(plan.engine)
    windows = [(shard.node_id, shard.layers, shard.holds_output) for shard in plan.shards if shard.layers is not None]
    if rules is None or not rules.places_layers or plan.model_facts is None or not windows:
        return
    at = 0
    for node, (first, end), _ in windows:
        if first != at or end <= first:
            yield refuse(
                "layers.window",
                node,
                expected=f"a window that begins at layer {at}, where the one before it ends, and is not empty",
                found=f"layers {first} to {end}, the last one not included",
                remedy="A layer would be computed twice or by nobody. Plan again instead of editing.",
            )
        at = max(at, end)
    if at != plan.model_facts.n_layer:
        yield refuse(
            "layers.window",
            plan.replica,
            expected=f"{plan.model_facts.n_layer} layers, from the header of {plan.model_facts.path}",
            found=f"windows that end at layer {at}",
            remedy="A part of the model would be nowhere. Plan again instead of editing.",
        )
    outputs = [node for node, _, holds_output in windows if holds_output]
    if outputs != [windows[-1][0]]:
        yield refuse(
            "layers.window",
            plan.replica,
            expected=f"the output at {windows[-1][0]}, which holds the last layers",
            found=f"the output at {_listed(outputs)}",
            remedy="Nothing would come out of the last window. Plan again instead of editing.",
        )


def endpoints_of(plan: Plan, fleet: FleetFacts) -> Iterator[Finding]:
    """Whole bands against each other: by machine, and by advertised address."""
    owners: dict[tuple[str, int], str] = {}
    for shard in plan.shards:
        report = fleet.report(shard.host)
        where = machine_of(report) if report is not None else shard.host
        for port in shard.ports:
            other = owners.setdefault((where, port), shard.node_id)
            if other != shard.node_id:
                yield refuse(
                    "port.clash",
                    f"{shard.node_id} on {shard.host}",
                    expected="ports that no other shard of the plan has on that machine",
                    found=f"port {port} at {shard.advertise or 'no address'}, which {other} has as well",
                    remedy="One of the two would fail to bind, or answer for the other. Plan again without its port.",
                )


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "nothing"


GUARDS: tuple[Guard, ...] = (
    refusing("port.clash", "two shards on one endpoint", "Plan again.", "the plan", endpoints),
    refusing("ranks.order", "a ring with a rank twice or missing", "Plan again.", "the plan", ranks),
    refusing("layers.window", "a layer computed twice, or by nobody", "Plan again.", "the plan", layers),
)
