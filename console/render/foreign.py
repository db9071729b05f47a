"""Engines that no agent started, in words: who they are, what they serve, and what adopting one would make of it."""

from __future__ import annotations

from backend.api import ForeignFound, ForeignProcess, Plan
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.plan import finding_lines
from console.render.values import clock, size

_ANSWERS = {
    "": "its port was not asked",
    "ready": "it answers that it is ready",
    "loading": "it answers that it loads",
    "closed": "it wants a key, which proves nothing",
    "silent": "its port is silent",
    "other": "its answers are not those of its engine",
}


def foreign_words(each: ForeignFound | ForeignProcess, look: Look) -> str:
    """Pid, start time, port, model, devices and bytes held: what a person confirms before an adoption."""
    held = each.memory if isinstance(each, ForeignFound) else each.holds
    started = clock(each.started_unix_ms, look) if each.started_unix_ms else "?"
    ticks = f" (ticks {each.start_ticks})" if each.start_ticks else ""
    served = f", served as {', '.join(each.served)}" if each.served else ""
    return (
        f"pid {each.pid} of {each.user or '?'}, started {started}{ticks}, port {_listed(each.ports)}, "
        f"model {each.model or '?'}{served}, holds {size(held)} on {', '.join(each.devices) or '?'}"
    )


def foreign_lines(each: ForeignFound, look: Look, width: int, *, is_chosen: bool = False) -> list[Line]:
    """One foreign engine of the adoption document."""
    mark = look.glyphs.cursor if is_chosen else " "
    role = f" {each.role}" if each.role else ""
    head = line(
        cell(f"{mark}foreign ", "state.warn"),
        cell(each.program, "name"),
        cell(f" on {each.host}  {each.engine or 'engine ?'}{role}"),
    )
    told = each.words or _ANSWERS.get(each.answers, each.answers)
    note = f"{told}; no agent started it, and nothing here touches it until it is adopted"
    return [head, *wrapped(foreign_words(each, look), width, 5, "value"), *wrapped(note, width, 5), line("")]


def adoption_plan_lines(process: ForeignProcess, plan: Plan, host: str, look: Look, width: int) -> list[Line]:
    """What adopting one process would make of it, and what speaks against that."""
    target = f"{plan.model}:{plan.profile_name}"
    out: list[Line] = [
        line(cell(f" {process.program} on {host}", "name"), f"  becomes {plan.replica}, one replica of {target}")
    ]
    out += wrapped(foreign_words(process, look), width, 1, "value")
    out += finding_lines(plan, width)
    if not plan.is_refused:
        words = (
            "It is counted, drained and stopped from then on. Unknown stay: its bound, a generation of its own, and "
            "whether a token crosses it; none of these is ever shown as equal."
        )
        out += wrapped(words, width, 1, "note")
    return out


def _listed(ports: tuple[int, ...]) -> str:
    return ", ".join(str(port) for port in ports) or "?"
