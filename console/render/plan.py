"""A plan as lines: what a load would do, what speaks against it, and how long it may take."""

from __future__ import annotations

from backend.api import FleetState, GuardOnPaper, P4Bound, Plan, PlannedShard, ReportedBound, Term, said_by
from console.render.cells import (
    Cell,
    Column,
    Line,
    Look,
    Row,
    Table,
    cell,
    fit_columns,
    line,
    natural_widths,
    pad,
    right,
    wrapped,
)
from console.render.hosts import room_on
from console.render.values import clock, duration, generation, number, plural, size

_STEPS = {
    "plan": "in the plan, from what the hosts have said",
    "recheck": "before the first command leaves",
    "check": "at every agent, before anything is started",
    "start": "with the engines up, before weights are read",
    "load": "until ready",
    "adopt": "when an engine that no agent started is to be adopted",
    "recover": "when the agent of an engine is to be recovered",
}

COLUMNS = (
    Column("RANK", "right"),
    Column("HOST"),
    Column("DEVICE"),
    Column("LAYERS", "right"),
    Column("MEMORY", "right"),
    Column("PORTS", drop=2),
    Column("DERIVED BOUND", "right"),
    Column("RESULT", drop=1, flex=True, least=9),
)


def short(digest: str) -> str:
    """The part of a plan's digest that a person compares: ``7f3a-c901``."""
    return f"{digest[:4]}-{digest[4:8]}"


def layers_of(layers: tuple[int, int] | None) -> str:
    """A half-open range of layers as people count it, or ``none``."""
    return "none" if layers is None else f"{layers[0]}-{layers[1] - 1}"


def _ports(ports: tuple[int, ...]) -> str:
    if not ports:
        return "none"
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def _free(shard: PlannedShard, state: FleetState | None) -> str:
    host = None if state is None else state.hosts.get(shard.host)
    facts = None if host is None else host.facts
    device = None if facts is None else next((d for d in facts.devices if d.name == shard.device), None)
    return "" if device is None else f" of {size(room_on(device))}"


def _result(shard: PlannedShard) -> Cell:
    bound = shard.bound
    if not bound.result:
        return cell("none", "quiet")
    if not bound.result_limit:
        return cell(size(bound.result))
    if bound.result > bound.result_limit:
        return cell(f"{size(bound.result)} over {size(bound.result_limit)}", "alarm")
    return cell(f"{size(bound.result)} fits")


def plan_table(plan: Plan, state: FleetState | None) -> Table:
    """The shards of a plan in rank order."""
    rows = tuple(
        Row(
            shard.node_id,
            (
                right(shard.rank),
                cell(shard.host, "name"),
                cell(" ".join(shard.all_devices)),
                right(layers_of(shard.layers), "plain" if shard.layers else "quiet"),
                right(f"{size(shard.bound.memory)}{_free(shard, state)}"),
                cell(_ports(shard.ports)),
                right(f"{'' if shard.bound.derived else 'estimate '}{number(shard.bound.compared)}"),
                _result(shard),
            ),
        )
        for shard in plan.shards
    )
    return Table(COLUMNS, rows)


def table_as_lines(table: Table, look: Look, width: int, indent: int = 1) -> list[Line]:
    """A table as styled lines, for pages that scroll as a whole."""
    fit = fit_columns(table.columns, natural_widths(table), width - indent)
    heads = tuple(cell(column.title, "head", column.align) for column in table.columns)
    out: list[Line] = []
    for cells in (heads, *(row.cells for row in table.rows)):
        pieces = [cell(" " * indent)]
        for piece, each in zip(cells, fit.widths, strict=True):
            if each:
                pieces += [cell(pad(piece, each, look.glyphs.ellipsis), piece.style), cell(" " * fit.gap)]
        out.append(tuple(pieces[:-1]))
    return out


def takes_up_to(plan: Plan) -> str:
    """The longest that the load may take, as the sum of its phases; of the longest one with its formula."""
    if not plan.phases:
        return "No time bound is planned."
    total = duration(sum(bound.seconds for bound in plan.phases))
    if len(plan.phases) == 1:
        return f"Takes up to {total} = {plan.phases[0].formula}."
    longest = max(plan.phases, key=lambda bound: bound.seconds)
    parts = [
        f"{bound.phase} {duration(bound.seconds)}{f' ({bound.formula})' if bound is longest else ''}"
        for bound in plan.phases
    ]
    return f"Takes up to {total} = {' + '.join(parts)}."


def formula_words(plan: Plan) -> str:
    """Where the largest derived number comes from, in one line, or nothing where it is an estimate."""
    derived = [shard for shard in plan.shards if shard.bound.derived and shard.bound.compared and shard.bound.terms]
    if not derived:
        return ""
    shard = max(derived, key=lambda each: each.bound.compared)
    bound = shard.bound
    of = f"rank {shard.rank}: {number(bound.compared)} = "
    whole = next((term for term in bound.terms if term.value == bound.compared), None)
    if whole is not None:
        return of + _innermost(whole).source
    for count in range(2, len(bound.terms) + 1):
        if sum(term.value for term in bound.terms[:count]) == bound.compared:
            return of + " + ".join(f"{term.name} {number(term.value)}" for term in bound.terms[:count])
    return ""


def _innermost(term: Term) -> Term:
    """The term that gives a number, below those that only pass it on."""
    inner = next((each for each in term.terms if each.value == term.value), None)
    return term if inner is None else _innermost(inner)


def finding_lines(plan: Plan, width: int) -> list[Line]:
    """What the guards saw: refusals first, each with both values and what to do."""
    out: list[Line] = []
    for finding in sorted(plan.findings, key=lambda each: each.severity != "refuse"):
        style = "alarm" if finding.is_refusal else "state.warn"
        out.append(
            line(cell(f" {finding.severity:<7}", style), cell(f"{finding.id}  ", "name"), cell(finding.subject, "name"))
        )
        out += wrapped(f"{finding.found}; expected {finding.expected}. {finding.remedy}", width, 9)
    return out


def _derivation_lines(plan: Plan, width: int) -> list[Line]:
    """The terms behind the bounds as trees, one block per different derivation."""
    out: list[Line] = []
    seen: dict[tuple[Term, ...], list[int]] = {}
    for shard in plan.shards:
        if shard.bound.terms:
            seen.setdefault(shard.bound.terms, []).append(shard.rank)
    for terms, ranks in seen.items():
        out.append(line(cell(f" {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}", "name")))
        out += term_lines(terms, width, 3)
    return out


def term_lines(terms: tuple[Term, ...], width: int, indent: int) -> list[Line]:
    """Terms one below the other, each with what it is made of further in."""
    out: list[Line] = []
    for term in terms:
        value = f"{number(term.value)} {term.unit}".rstrip()
        out += wrapped(f"{term.name} {value} ({term.source})", width, indent, "note")
        out += term_lines(term.terms, width, indent + 2)
    return out


def bound_lines(found: P4Bound, width: int) -> list[Line]:
    """A derived result bound: the number, whether it fits, where it comes from, and what would fit."""
    verdict = cell("fits", "state.ready") if found.fits else cell("does not fit", "alarm")
    most = f"{number(found.max_physical_result_bytes)} bytes"
    out: list[Line] = [line(cell(f" {most}  ", "name"), verdict, f" {size(found.store_bytes)}")]
    out += term_lines(found.terms, width, 3)
    if not found.fitting_pairs:
        return [*out, *wrapped("No n_batch fits this store.", width, 1, "alarm")]
    out.append(line(cell(" N_BATCH  N_UBATCH UP TO  RESULT", "head")))
    for pair in found.fitting_pairs:
        result = number(pair.max_physical_result_bytes)
        out.append(line(f" {pair.n_batch:>7}  {pair.n_ubatch:>14}  {result}"))
    return out


def reported_lines(found: ReportedBound, width: int) -> list[Line]:
    """The cut that a bound was derived with, which loads reported it, and what else would fit their numbers."""
    cut = found.cut
    words = f"cut_tensors = {cut.tensors}, cut_row_bytes = {cut.row_bytes}, from {'; '.join(found.sources)}"
    out = wrapped(words, width, 1)
    if found.other_cuts:
        others = " or ".join(f"{each.tensors} with {each.row_bytes}" for each in found.other_cuts)
        out += wrapped(f"As well possible: {others}. A load of another n_ubatch decides.", width, 1, "state.warn")
    return out


def guard_lines(guards: tuple[GuardOnPaper, ...], width: int) -> list[Line]:
    """The guards by the step at which each can first know."""
    out: list[Line] = []
    for step, title in _STEPS.items():
        of_step = [guard for guard in guards if guard.step == step]
        if of_step:
            out.append(line(cell(f" {title}", "head")))
        for guard in of_step:
            style = "alarm" if guard.severity == "refuse" else "state.warn"
            out.append(line(cell(f"  {guard.severity:<7}", style), cell(guard.id, "name")))
            drift = f" One of the seven drifts: {guard.drift}." if guard.drift else ""
            out += wrapped(f"Prevents {guard.prevents}. {guard.remedy} From {guard.source}.{drift}", width, 10)
    return out


def plan_lines(
    plan: Plan,
    state: FleetState | None,
    look: Look,
    width: int,
    *,
    derivation: bool = False,
    effect: str = "Replaces nothing. Cuts no stream.",
) -> list[Line]:
    """The whole plan as a person should read it before confirming it; ``effect`` is what it does to others."""
    refusals = sum(1 for finding in plan.findings if finding.is_refusal)
    out: list[Line] = [
        line(
            cell(f" {plan.replica}", "name"),
            f"  {plan.model}:{plan.profile_name}  {plan.engine}  generation {generation(plan.load_generation, look)}"
            f"  facts as of {clock(plan.made_unix_ms, look)}",
        )
    ]
    out += table_as_lines(plan_table(plan, state), look, width)
    if derivation:
        out += _derivation_lines(plan, width)
    elif words := formula_words(plan):
        out += wrapped(words, width, 3, "note")
    out += finding_lines(plan, width)
    if passed := {each.host: each.reason for each in plan.candidates if not each.chosen}:
        out += wrapped(f"not chosen  {said_by(passed)}", width, 1, "note")
    out += wrapped(f"{takes_up_to(plan)} {effect}".rstrip(), width, 1)
    if derivation:
        out += [each for bound in plan.phases for each in wrapped(f"{bound.phase}: {bound.formula}", width, 3, "note")]
    if refusals:
        out += wrapped(f"Load refused by {plural(refusals, 'finding')}. It cannot be confirmed.", width, 1, "alarm")
    return out
