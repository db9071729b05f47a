"""The steps of a recovery at the host itself: the p4 agent ends, everything of it is gone, it starts clean."""

from __future__ import annotations

from backend.contract.commands import BeginResident, EndResident, MoveResidentJournal
from backend.contract.durations import duration
from backend.contract.residents import FolderCount, ResidentLook, move_by_hand
from backend.contract.words import counted
from backend.control import recovery_document as document
from backend.control.exit_codes import FAILED, REFUSED
from backend.control.operations.recovery import APPROVED, WATCHED, Halted, Recovery
from backend.control.recovery_document import DeviceFloor
from backend.control.recovery_plan import FRESH_SOCKETS
from backend.failpoints import failpoint


async def end(recovery: Recovery) -> str:
    """TERM the p4 agent; it and every process under it must be gone."""
    plan, conduct = recovery.plan, recovery.conduct
    seen = await recovery.look()
    if seen.life and seen.life != plan.look.life:
        raise Halted(
            REFUSED,
            f"the p4 agent is {seen.life} and the plan was made for {plan.look.life or 'none that runs'}: somebody "
            "started it meanwhile. Make a new plan: ringtop p4 recover HOST --plan -o FILE. If this one is to go on, "
            "end that process by TERM.",
        )
    if seen.processes:
        lives = tuple(each.life for each in seen.processes)
        conduct.step(document.END, WATCHED, f"{counted(len(lives), 'process')} under it", lines=lives)
    if seen.life:
        await _end_it(recovery, seen)
    ours = {seen.life or plan.look.life}
    last, _ = await recovery.until(lambda look: not look.alive, recovery.patience)
    if ours.intersection(last.alive):
        raise Halted(
            FAILED,
            f"{', '.join(ours)} still runs {duration(recovery.patience)} after it was asked to end; expected: gone. "
            f"Look why on {recovery.host}. Do not KILL it: its stages may stay behind.",
        )
    if last.alive:
        pids = " ".join(each.partition(":")[0] for each in last.alive)
        raise Halted(
            FAILED,
            f"orphans are left of the p4 agent: {', '.join(last.alive)}; expected: none. They hold device memory and "
            f"ports. On {recovery.host}: kill -TERM {pids}",
        )
    under = [life for life in recovery.watched() if life not in ours]
    count = counted(len(under), "process") if under else "no process"
    return f"{plan.look.life or 'the p4 agent'} is gone, and {count} that ran under it; no orphan"


async def _end_it(recovery: Recovery, seen: ResidentLook) -> None:
    def is_gone(look: ResidentLook) -> bool:
        return seen.life not in look.alive

    commands = seen.commands
    if not commands.end_is_ours:
        await recovery.by_hand(document.END, "end the p4 agent by TERM, never by KILL", commands.end, is_gone)
        return
    life, why, by = seen.life, recovery.why, recovery.conduct.by
    await recovery.tend(
        document.END,
        lambda op_id, expect: EndResident(
            op_id=op_id, engine=recovery.plan.engine, by=by, why=why, life=life, expect=expect
        ),
    )


async def port(recovery: Recovery) -> str:
    """Nothing may listen where it did."""
    last, held = await recovery.until(lambda look: not look.is_listening, recovery.patience)
    if not held:
        who = f" by {last.life}" if last.life else ""
        raise Halted(
            FAILED,
            f"port {last.port} is taken{who} {duration(recovery.patience)} after the p4 agent ended; expected: free. "
            f"See who listens there, and whether a service manager started it again: ss -ltnp 'sport = :{last.port}'.",
        )
    return f"port {last.port} is free"


async def memory(recovery: Recovery) -> str:
    """Every GPU has back what its stages took."""
    floors = recovery.plan.floors
    last, held = await recovery.until(lambda look: not _short(look, floors), recovery.patience)
    if not held:
        raise Halted(
            FAILED,
            f"device memory is not back {duration(recovery.patience)} after the stages ended: "
            f"{'; '.join(_short(last, floors))}. See what holds it (nvidia-smi, rocm-smi); an orphan of a stage does.",
        )
    back = "; ".join(f"{device.name} {device.free} bytes free" for device in last.devices if device.name != "CPU")
    return back or "no GPU to wait for"


def _short(look: ResidentLook, floors: tuple[DeviceFloor, ...]) -> list[str]:
    """Each device that has less than it must, both values; one that nobody can read is not back."""
    free = {device.name: device.free for device in look.devices}
    return [
        f"{each.name} has {free.get(each.name, 'an unknown number of')} bytes free, expected {each.floor} or more "
        f"({each.free} before, {each.taken} taken by its stages)"
        for each in floors
        if each.name not in free or free[each.name] < each.floor
    ]


async def census(recovery: Recovery) -> str:
    """Its journal must let it start again: empty of admitted requests, or moved aside with an approval."""
    plan = recovery.plan
    seen = await recovery.look()
    if moved := _moved_whole(recovery, seen):
        return moved
    if seen.journal.files is None:
        raise Halted(FAILED, f"the journal {plan.look.journal.folder} cannot be counted: {seen.journal.words}.")
    if not seen.restart:
        return f"{seen.journal.folder} holds {seen.journal.said}, no admitted request: it stays where it is"
    approval = _approval(recovery)
    if approval is None:
        raise Halted(
            REFUSED,
            f"{seen.journal.folder} holds {seen.journal.said}: {seen.restart}. Nobody approved that. It is moved to "
            f"{plan.aside}, and nothing is deleted: ringtop op resume {recovery.conduct.operation.op_id} "
            "--move-journal --why TEXT.",
        )
    await _move(recovery, seen.journal, *approval)
    after = await recovery.look()
    if moved := _moved_whole(recovery, after):
        return moved
    there = after.aside.said if after.aside is not None else "not looked at"
    raise Halted(
        FAILED,
        f"after the move {plan.aside} holds {there} and {after.journal.folder} {after.journal.said}; expected "
        f"{seen.journal.said} and none.",
    )


def _approval(recovery: Recovery) -> tuple[str, str] | None:
    """Who approved the move, and why: with the plan, or when it was resumed."""
    options = recovery.conduct.operation.options
    later = [step for step in recovery.conduct.steps if step.what == APPROVED and step.target == document.CENSUS]
    if later:
        return later[-1].lines[0], later[-1].lines[1]
    return (recovery.conduct.by, recovery.why) if options.get("move_journal") else None


async def _move(recovery: Recovery, journal: FolderCount, by: str, why: str) -> None:
    aside = recovery.plan.aside
    files, size = journal.files or 0, journal.bytes or 0
    words = f"{by} approved it: {files} files, {size} bytes, from {journal.folder} to {aside}: {why}"
    recovery.conduct.step(document.CENSUS, "moving", words, lines=(str(files), str(size)))
    failpoint("recovery.before_move")
    try:
        await recovery.tend(
            document.CENSUS,
            lambda op_id, expect: MoveResidentJournal(
                op_id=op_id,
                engine=recovery.plan.engine,
                by=by,
                why=why,
                folder=journal.folder,
                aside=aside,
                files=files,
                bytes=size,
                expect=expect,
            ),
        )
    except Halted as halted:
        by_hand = f"By hand on {recovery.host}: {move_by_hand(journal.folder, aside)}"
        raise Halted(halted.code, f"{halted.words} {by_hand}") from halted


def _moved_whole(recovery: Recovery, seen: ResidentLook) -> str:
    """The move is done: all that was to be moved is there, and nothing of it here. Empty while it is not."""
    wanted = [step.lines for step in recovery.conduct.steps if step.what == "moving"]
    aside = seen.aside
    if not wanted or aside is None or aside.files is None or seen.journal.files != 0:
        return ""
    if (str(aside.files), str(aside.bytes)) != wanted[-1]:
        return ""
    return f"{seen.journal.folder} was moved to {aside.folder}: {aside.said}; an empty one is in its place"


async def begin(recovery: Recovery) -> str:
    """Start the p4 agent; another life of it must answer, with few sockets."""
    plan = recovery.plan
    seen = await recovery.look()
    if not seen.is_running and seen.restart:
        raise Halted(REFUSED, f"{seen.journal.folder}: {seen.restart}. It was not started.")
    if not seen.is_running:
        await _begin_it(recovery, seen)
    last, held = await recovery.until(lambda look: _is_fresh(look, plan.look.life), recovery.patience)
    if not held:
        raise Halted(
            FAILED,
            f"{_not_up(last, plan.look.life, recovery.patience)} Its own words are in its log on {recovery.host}.",
        )
    sockets = f"{last.sockets} socket descriptors, {last.hidden} hidden" if last.sockets is not None else "sockets ?"
    return f"{last.life} answers as {last.address}, {sockets}"


async def _begin_it(recovery: Recovery, seen: ResidentLook) -> None:
    before, known = seen.commands, recovery.plan.look.commands
    if not before.begin_is_ours:
        command = known.begin or before.begin
        await recovery.by_hand(document.BEGIN, "start the p4 agent", command, lambda look: look.is_running)
        return
    by, why = recovery.conduct.by, recovery.why
    await recovery.tend(
        document.BEGIN,
        lambda op_id, expect: BeginResident(op_id=op_id, engine=recovery.plan.engine, by=by, why=why, expect=expect),
    )


def _is_fresh(look: ResidentLook, old: str) -> bool:
    few = look.sockets is None or look.sockets <= FRESH_SOCKETS
    return bool(look.life) and look.life != old and not look.silence and few and not look.hidden


def _not_up(look: ResidentLook, old: str, patience: float) -> str:
    if not look.life:
        return f"the p4 agent does not come up within {duration(patience)}: {look.silence or 'no process of it runs'}."
    if look.life == old:
        return f"the p4 agent is still {old}; expected another life of it."
    if look.silence:
        return f"{look.life} runs and does not answer within {duration(patience)}: {look.silence}."
    return (
        f"{look.life} holds {look.sockets} socket descriptors, {look.hidden} hidden, right after its start; expected "
        f"at most {FRESH_SOCKETS} and none hidden."
    )
