"""Operations as their ledgers tell them: a table of all, and the steps of one."""

from __future__ import annotations

from collections.abc import Iterable

from backend.api import FleetState, OperationView, OpId, ReplicaId
from console.render.cells import Column, Line, Look, Row, Table, cell, line, wrapped
from console.render.values import clock, duration, plural
from console.render.words import ENDED, state_cell
from console.safe_text import safe_text, width_of

COLUMNS = (
    Column("STARTED"),
    Column("KIND"),
    Column("SUBJECT", least=7),
    Column("STATE"),
    Column("TOOK", "right", drop=2),
    Column("BY", drop=1),
    Column("LAST", flex=True, least=10),
)
OFFERS = (
    "Any operator may go on: ringtop op resume {id}; take it back: ringtop op rollback {id}; or close it by what the "
    "fleet says: ringtop op settle {id}"
)


def _took(view: OperationView) -> str:
    if view.ended_unix_ms is None:
        return "-"
    return duration((view.ended_unix_ms - view.started_unix_ms) / 1000)


def operation_words(view: OperationView) -> str:
    """What it says of itself, or its last step."""
    if view.words:
        return view.words
    return f"{view.steps[-1].target} {view.steps[-1].what} {view.steps[-1].words}".strip() if view.steps else ""


def operation_table(state: FleetState, look: Look) -> Table:
    """All operations, the newest first."""
    newest = sorted(state.operations.values(), key=lambda each: (each.started_unix_ms, each.id), reverse=True)
    rows = tuple(Row(view.id, _row(view, look)) for view in newest)
    return Table(COLUMNS, rows, "No operation has run. L loads a model.")


def _row(view: OperationView, look: Look) -> Line:
    return (
        cell(clock(view.started_unix_ms, look), "note"),
        cell(view.kind),
        cell(view.subject, "name"),
        state_cell(view.state),
        cell(_took(view), "plain", "right"),
        cell(view.by),
        cell(operation_words(view), "note"),
    )


def ledger_table(operations: Iterable[OperationView], look: Look) -> Table:
    """All operations of a home, oldest first, each with the id by which it is found."""
    columns = (Column("OPERATION"), Column("CONTEXT", drop=3), *COLUMNS)
    rows = tuple(
        Row(view.id, (cell(view.id, "name"), cell(view.context or "?"), *_row(view, look))) for view in operations
    )
    return Table(columns, rows, "No operation was recorded here.")


def needing_words(operations: Iterable[OperationView]) -> list[str]:
    """What waits for a person: operations without an owner, and files that are damaged."""
    words = []
    for view in operations:
        if view.state == "ownerless":
            words.append(f"{view.kind} {view.subject} has no owner. {OFFERS.format(id=view.id)}")
        elif view.state == "damaged":
            words.append(f"{view.id} is {view.words}")
    return words


def operation_lines(state: FleetState, op_id: str, look: Look, width: int) -> list[Line]:
    """One operation with every step, in the order of its ledger."""
    view = find_operation(state, op_id)
    if view is None:
        return _answer_lines(state, op_id, width)
    return [*head_lines(view, look, width), line(""), *step_lines(view, look, width)]


def is_open(operation: OperationView) -> bool:
    """It has not ended."""
    return operation.state in ("running", "ownerless")


def find_operation(state: FleetState, op_id: str) -> OperationView | None:
    """The operation with this id, if there is one."""
    return state.operations.get(OpId(op_id))


def head_lines(view: OperationView, look: Look, width: int, *, offer: str = OFFERS) -> list[Line]:
    """What it is, how it stands, and what can be done when nobody runs it: by command, or as ``offer`` says."""
    out = [
        line(
            cell(f" {view.kind} {view.subject}  ", "name"),
            state_cell(view.state),
            f"  by {view.by}"
            f"  since {clock(view.started_unix_ms, look)}"
            + (f"  took {_took(view)}" if view.ended_unix_ms is not None else ""),
        ),
        line(cell(f" {view.id}", "note"), cell(f"  generation {view.load_generation}" if view.load_generation else "")),
    ]
    if view.words:
        style = "alarm" if view.state in ("failed", "refused", "damaged") else "plain"
        out += wrapped(view.words, width, 1, style)
    if view.state == "ownerless":
        out += wrapped(f"Its process is gone. {offer.format(id=view.id)}", width, 1, "state.warn")
    return out


def step_lines(view: OperationView, look: Look, width: int, *, whole: bool = False) -> list[Line]:
    """Every step; ``whole`` with the further text that it has, such as the end of a rank's log."""
    out: list[Line] = []
    targets = max([6, *(width_of(safe_text(step.target)) for step in view.steps)])
    for step in view.steps:
        lead = line(
            cell(f" {clock(step.at_unix_ms, look)} ", "note"),
            cell(step.target + " " * (targets - width_of(safe_text(step.target)) + 1), "name"),
            cell(f"{step.what} "),
        )
        used = sum(width_of(piece.text) for piece in lead)
        if used + width_of(safe_text(step.words)) < width:
            out.append((*lead, cell(step.words, "note")))
        else:
            out += [lead, *wrapped(step.words, width, 12, "note")]
        for text in step.lines if whole else ():
            out += wrapped(text, width, 14, "quiet")
    return out


def ledger_lines(view: OperationView, look: Look, width: int) -> list[Line]:
    """The whole entry of one operation: what was decided, for which ranks, and every step with all its text."""
    out = head_lines(view, look, width)
    if view.context:
        digest = f"   plan {view.plan.digest[:8]}" if view.plan is not None else ""
        out.append(line(f" context {view.context}{digest}"))
    options = "  ".join(
        f"{name}: {value}"
        for name, value in sorted(view.options.items())
        if value not in ("", None, []) and name != "recovery"  # a whole plan; its digest is among the options
    )
    if options:
        out += wrapped(f"options  {options}", width, 1)
    for target in view.targets:
        words = f"   rank {target.rank} on {target.host}  {target.node_id}  node generation {target.node_generation}"
        out.append(line(words))
    return [*out, line(""), *step_lines(view, look, width, whole=True)]


def roll_back_words(view: OperationView, state: FleetState) -> str:
    """What taking an operation back would do, in numbers."""
    if view.kind == "drain":
        hosts = len({each.host for each in view.targets})
        return f"Cancels the drain of {view.subject} at {plural(hosts, 'host')}; it serves on."
    if view.kind == "reload":
        return (
            f"Takes back the stage that is under way: stops what was being loaded, or cancels the drain of "
            f"{view.subject}. What is ready stays, and what is gone stays gone."
        )
    replica = state.replicas.get(ReplicaId(view.subject))
    shards = replica.shards if replica is not None else ()
    live = [s for s in shards if s.state not in ENDED and s.shard.load_generation == view.load_generation]
    cuts = "" if replica is None or not replica.in_flight else f" This cuts {plural(replica.in_flight, 'request')}."
    return (
        f"Stops every rank of {view.subject} that this {view.kind} started: {len(live)} of {len(view.targets)} are "
        f"live now.{cuts}"
    )


def _answer_lines(state: FleetState, op_id: str, width: int) -> list[Line]:
    """What is known of a request before its ledger is, or when it never had one."""
    answer = state.answers.get(OpId(op_id))
    if answer is None or not answer.done or answer.words == op_id:  # it began, and is ahead of its ledger file
        return [line(cell(f" {op_id}", "note")), line(cell(" Waiting for its first step.", "unknown"))]
    style = "plain" if answer.exit_code == 0 else "alarm"
    return [line(cell(f" {op_id}", "note")), *wrapped(answer.words or "done", width, 1, style)]


def quit_lines(state: FleetState | None, width: int) -> list[Line]:
    """What goes on without the console."""
    running = [] if state is None else [each for each in state.operations.values() if each.state == "running"]
    out: list[Line] = []
    if running:
        out.append(line(" These operations go on in processes of their own:"))
        out += [
            line(cell(f"   {each.kind} {each.subject}", "name"), cell(f"  {operation_words(each)}", "note"))
            for each in running
        ]
    drains = (
        []
        if state is None
        else [each for each in state.replicas.values() if each.drain is not None and not each.drain.outcome]
    )
    out += [line(cell(f"   the drain of {each.id}", "name"), " goes on at its agents") for each in drains]
    if not out:
        out.append(line(" Nothing is under way."))
    return out + wrapped("Engines and agents go on as they are. Nothing is stopped by leaving.", width, 1, "note")
