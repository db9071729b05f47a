"""A reload as lines: which way it goes, why, what changes for clients, and what happens when it fails."""

from __future__ import annotations

from backend.api import Answer, FleetState, Plan, ReplicaId
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.drain import at_deadline_words, cuts_words
from console.render.plan import plan_lines
from console.render.values import duration, generation

BESIDE = "replacement first"
PLAN_OF = {"last": "the profile of its load record", "now": "the catalog's present profile"}


def reload_lines(
    answer: Answer,
    state: FleetState | None,
    look: Look,
    width: int,
    *,
    deadline: float,
    at_deadline: str,
    derivation: bool = False,
) -> list[Line]:
    """The plan of a reload as a person should read it before confirming it."""
    plan, value = answer.plan, answer.value
    if plan is None:
        return wrapped(answer.words or "No plan came back, and no reason either.", width, 1, "alarm")
    old = str(value["replica"])
    out: list[Line] = [
        line(
            cell(f" {old}", "name"),
            f"  {value['mode']}: {value['reason']}",
        )
    ]
    if len(str(value["reason"])) > width - len(old) - 20:
        out = [line(cell(f" {old}", "name"), f"  {value['mode']}"), *wrapped(str(value["reason"]), width, 3, "note")]
    out += wrapped(f"By {PLAN_OF[str(value['plan_of'])]}.", width, 1)
    for number, words in enumerate(_steps(plan, value, state, look, deadline, at_deadline), start=1):
        out += wrapped(f"{number}. {words}", width, 1)
    out += wrapped(_failure(plan, value), width, 1, "note")
    if value["endpoint"]:
        out += wrapped(f"Its endpoint {value['endpoint']} goes; the new one is said when it is ready.", width, 1)
    return [*out, line(""), *plan_lines(plan, state, look, width, derivation=derivation, effect="")]


def _steps(
    plan: Plan, value: dict[str, object], state: FleetState | None, look: Look, deadline: float, at_deadline: str
) -> list[str]:
    old = str(value["replica"])
    view = None if state is None else state.replicas.get(ReplicaId(old))
    if value["leave"] == "drain":
        end = at_deadline_words(at_deadline)
        cut = f" ({cuts_words(view)} in flight now)" if at_deadline == "stop" else ""
        leave = f"Drain {old} for at most {duration(deadline)}, then {end}{cut}; when it is empty, unload it."
    else:
        leave = f"Unload and dismiss what is left of {old}."
    made = generation(plan.load_generation, look)
    load = f"Load {plan.replica} at generation {made} and wait until every rank is ready."
    return [load, leave] if value["mode"] == BESIDE else [leave, load]


def _failure(plan: Plan, value: dict[str, object]) -> str:
    old = value["replica"]
    if value["mode"] == BESIDE:
        return f"If {plan.replica} does not come up, {old} is left as it is."
    if value["leave"] == "drain":
        return f"There is a gap: from the end of the drain until it is ready again, {old} serves nobody."
    return f"{old} serves nobody until it is ready again."
