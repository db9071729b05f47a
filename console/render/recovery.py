"""A recovery plan for people: baselines, every step with its condition, value now and proof, what is lost and kept.

The command and the screen show the same parts: the command what is lost and what speaks against it last, where its
question stands; the screen first, where reading begins.
"""

from __future__ import annotations

from backend.api import FleetState, PlannedStep, RecoveryPlan, ResidentLook
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.values import clock, duration, size


def recovery_lines(plan: RecoveryPlan, look: Look, width: int, *, stakes_first: bool = False) -> list[Line]:
    """The whole plan; ``stakes_first`` as a screen wants it."""
    head = line(
        cell(f" recovery of {plan.host}", "name"),
        cell(f"   measured {clock(plan.look.looked_unix_ms, look)}"),
        cell(f"   plan {plan.digest[:8]}", "note"),
    )
    stakes = [*_stake_lines(plan, width), *_finding_lines(plan, width)]
    doing = [*_baseline_lines(plan, width), line(""), *_steps_lines(plan, width)]
    parts = (stakes, doing) if stakes_first else (doing, stakes)
    return [head, line(""), *parts[0], line(""), *parts[1]]


def _baseline_lines(plan: RecoveryPlan, width: int) -> list[Line]:
    out: list[Line] = [line(cell(" baselines", "note"))]
    for words in baseline_words(plan.look):
        out += wrapped(words, width, 3)
    for each in plan.replicas:
        flying = "unknown" if each.in_flight is None else str(each.in_flight)
        words = f"{each.replica} is {each.state}, generation {each.load_generation}, in flight {flying}: {plan.leave}"
        out += wrapped(words, width, 3)
    for words in mismatch_words(plan):
        out += wrapped(words, width, 3, "alarm")
    return out


def _steps_lines(plan: RecoveryPlan, width: int) -> list[Line]:
    out: list[Line] = [line(cell(" steps", "note"))]
    for number, step in enumerate(plan.steps, start=1):
        out += _step_lines(number, step, width)
    return out


def _finding_lines(plan: RecoveryPlan, width: int) -> list[Line]:
    out: list[Line] = []
    for finding in plan.findings:
        out += wrapped(finding.words, width, 1, "alarm" if finding.is_refusal else "state.warn")
    return out


def _stake_lines(plan: RecoveryPlan, width: int) -> list[Line]:
    out: list[Line] = []
    for title, texts in (("lost", lost_words(plan)), ("kept", kept_words(plan))):
        out.append(line(cell(f" {title}", "note")))
        for words in texts:
            out += wrapped(words, width, 3)
    return out


def lost_words(plan: RecoveryPlan) -> list[str]:
    """What is gone afterwards, one thing a line: stages, what is in flight, what nobody here can load again."""
    words, seen = [], plan.look
    nodes = ", ".join(f"{each.name} at generation {each.generation}" for each in seen.nodes)
    words.append(f"every stage on {plan.host} ends: {nodes or 'none is there'}")
    for each in plan.replicas:
        elsewhere = [host for host in each.hosts if host != plan.host]
        rest = f", and its stages on {', '.join(elsewhere)} are unloaded" if elsewhere else ""
        words.append(f"{each.replica}: {_flight(plan, each.in_flight)}; then it serves nobody{rest}")
        if each.plan is None:
            words.append(f"{each.replica} was loaded by somebody else, who has to load it again")
    theirs = [each.name for each in seen.nodes if not each.is_ours]
    if theirs:
        words.append(f"of others, who have to load them again: {', '.join(theirs)}")
    if plan.moves_journal:
        words.append("requests that were admitted and had not ended are not replayed: they are in the moved folder")
    return words


def _flight(plan: RecoveryPlan, in_flight: int | None) -> str:
    count = "an unknown number" if in_flight is None else str(in_flight)
    if not plan.look.is_running:
        return "its stages there have ended with the p4 agent"
    if plan.leave == "cut":
        return f"what is in flight is cut ({count} now)"
    longest = duration(plan.deadline_seconds)
    return f"it is drained first ({count} in flight now), and nothing is ended if that takes over {longest}"


def kept_words(plan: RecoveryPlan) -> list[str]:
    """What is there afterwards, one thing a line: every file of the journal, and the rings that are loaded again."""
    journal = plan.look.journal
    where = f"moved to {plan.aside}; nothing is deleted" if plan.moves_journal else "stays where it is"
    words = [f"the journal {journal.folder or 'of it'}, {journal.said}: {where}"]
    words += [
        f"{each.replica}: loaded again as {each.model}:{each.profile_name} by the plan of its load, under a generation "
        f"greater than {each.load_generation}"
        for each in plan.replicas
        if each.plan is not None
    ]
    return words


def mismatch_words(plan: RecoveryPlan) -> list[str]:
    """Stages that are registered under another number than that of their replica's load, both values."""
    wanted = {str(each.replica): int(each.load_generation) for each in plan.replicas}
    return [
        f"node {node.name} is at generation {node.generation}, and the load of {replica} is {wanted[replica]}"
        for node in plan.look.nodes
        if (replica := node.name.rpartition("/")[0]) in wanted and node.generation != wanted[replica]
    ]


def moved_words(plan: RecoveryPlan, state: FleetState) -> list[str]:
    """What of the plan is no longer so as far as the console hears, both values; the backend measures it again."""
    words = []
    host = next((each for each in state.hosts.values() if each.host == plan.host), None)
    if host is None or host.state.value != "live":
        is_now = "no longer in this context" if host is None else f"{host.state.value}: {host.words}".rstrip(": ")
        words.append(f"{plan.host} was live, and is {is_now}")
    views = {str(view.id): view for view in state.replicas.values()}
    for each in plan.replicas:
        view = views.get(str(each.replica))
        if view is None or view.load_generation != each.load_generation:
            is_now = "not there now" if view is None else f"generation {view.load_generation}"
            words.append(f"{each.replica} was generation {each.load_generation}, and is {is_now}")
    return words


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
