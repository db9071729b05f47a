"""A recovery plan for people: the baselines, then every step with its stop condition, its value now and its proof."""

from __future__ import annotations

from backend.api import PlannedStep, RecoveryPlan, ResidentLook
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.values import clock, size


def recovery_lines(plan: RecoveryPlan, look: Look, width: int) -> list[Line]:
    """The whole plan."""
    out: list[Line] = [
        line(
            cell(f" recovery of {plan.host}", "name"),
            cell(f"   measured {clock(plan.look.looked_unix_ms, look)}"),
            cell(f"   plan {plan.digest[:8]}", "note"),
        ),
        line(""),
        line(cell(" baselines", "note")),
    ]
    for words in baseline_words(plan.look):
        out += wrapped(words, width, 3)
    for each in plan.replicas:
        flying = "unknown" if each.in_flight is None else str(each.in_flight)
        words = f"{each.replica} is {each.state}, generation {each.load_generation}, in flight {flying}: {plan.leave}"
        out += wrapped(words, width, 3)
    out += [line(""), line(cell(" steps", "note"))]
    for number, step in enumerate(plan.steps, start=1):
        out += _step_lines(number, step, width)
    for finding in plan.findings:
        out += wrapped(finding.words, width, 1, "alarm" if finding.is_refusal else "state.warn")
    return out


def baseline_words(seen: ResidentLook) -> list[str]:
    """What was measured before anything is touched, one thing a line."""
    slots = "unknown" if seen.sockets is None else f"{seen.sockets}, {seen.unique} sockets, {seen.hidden} hidden"
    journal = seen.journal
    admitted = "unknown" if journal.admissions is None else str(journal.admissions)
    words = [
        f"p4 agent {seen.life or 'does not run'}{f' of {seen.user}' if seen.user else ''}, advertised {seen.address}, "
        f"port {seen.port} {'taken' if seen.is_listening else 'free'}",
        f"socket descriptors {slots}",
        f"journal {journal.folder or 'not known'}: {journal.said}, {admitted} admitted requests",
        "stages " + (", ".join(f"{node.name} at generation {node.generation}" for node in seen.nodes) or "none"),
        "processes under it " + (", ".join(f"{each.life} {each.program}" for each in seen.processes) or "none"),
        "device memory free "
        + (", ".join(f"{each.name} {size(each.free)}" for each in seen.devices if each.name != "CPU") or "no GPU"),
        f"host memory available {size(seen.memory_available)}",
    ]
    if seen.silence:
        words.insert(1, f"it does not answer: {seen.silence}")
    if seen.restart:
        words.append(f"would it start again? No: {seen.restart}")
    return words


def _step_lines(number: int, step: PlannedStep, width: int) -> list[Line]:
    out = [line(cell(f" {number:>2} {step.name}", "name"), cell(f"  by {step.by}", "note"))]
    out += wrapped(step.what, width, 5)
    if step.command:
        out += wrapped(f"{'runs' if step.by == 'ringtop' else 'types'}  {step.command}", width, 5)
    out += wrapped(f"must hold  {step.condition}", width, 5, "note")
    if step.value:
        out += wrapped(f"is now  {step.value}", width, 5, "note")
    out += wrapped(f"proof  {step.proof}", width, 5, "note")
    return out
