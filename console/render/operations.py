"""Operations as their ledgers tell them: a table of all, and the steps of one."""

from __future__ import annotations

from backend.api import FleetState, OperationView
from console.render.cells import Column, Line, Look, Row, Table, cell, line, wrapped
from console.render.values import clock, duration
from console.render.words import state_cell
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
    rows = tuple(
        Row(
            view.id,
            (
                cell(clock(view.started_unix_ms, look), "note"),
                cell(view.kind),
                cell(view.subject, "name"),
                state_cell(view.state),
                cell(_took(view), "plain", "right"),
                cell(view.by),
                cell(operation_words(view), "note"),
            ),
        )
        for view in newest
    )
    return Table(COLUMNS, rows, "No operation has run. L loads a model.")


def operation_lines(state: FleetState, op_id: str, look: Look, width: int) -> list[Line]:
    """One operation with every step, in the order of its ledger."""
    view = next((each for each in state.operations.values() if each.id == op_id), None)
    if view is None:
        return _answer_lines(state, op_id, width)
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
        style = "alarm" if view.state in ("failed", "refused") else "plain"
        out += wrapped(view.words, width, 1, style)
    if view.state == "ownerless":
        out += wrapped(
            f"Its process is gone. Any operator may go on: ringtop op resume {view.id}", width, 1, "state.warn"
        )
    out.append(line(""))
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
    return out


def _answer_lines(state: FleetState, op_id: str, width: int) -> list[Line]:
    """What is known of a request before its ledger is, or when it never had one."""
    answer = next((each for each in state.answers.values() if each.op_id == op_id), None)
    if answer is None or not answer.done:
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
