"""What ``ringtop up`` does with the embedded fleet: load the tiny model, let it answer, and take it all down again."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from console.commands.door import ask, opened, settle, state_of, submit
from console.commands.drain import follow_drain
from console.commands.exits import DONE, FAILED, INTERRUPTED, REFUSED, UNKNOWN, CommandFailed, refused
from console.commands.load import confirm_plan, loaded_replica, start_load
from console.commands.output import look_for, note, print_json, print_table, say
from console.commands.plan import make_plan
from console.commands.settings import Settings

if TYPE_CHECKING:
    from types import FrameType

    from backend.api import Backend, FleetState, LocalFleet, OpId, ReplicaId, ReplicaView

START_SECONDS = 60.0
"""How long both agents may take to answer; slow machines share their cores."""
STOP_SECONDS = 120.0
"""How long unloading everything may take."""
_DRAIN_SECONDS = 30.0
_ENDED = ("stopped", "failed")
_TRIES = 3


def local_settings(settings: Settings, fleet: LocalFleet) -> Settings:
    """The same settings for the context of the embedded fleet."""
    return replace(settings, context=fleet.context)


def start_fleet(fleet: LocalFleet) -> None:
    """Start the embedded fleet. Raises the error that says why it cannot be."""
    from backend.api import FleetError

    try:
        fleet.start(START_SECONDS)
    except FleetError as error:
        raise CommandFailed(REFUSED if error.is_refusal else FAILED, str(error)) from error


def load_tiny(settings: Settings, fleet: LocalFleet) -> None:
    """Load the tiny model unless a replica of it is there already."""
    with opened(local_settings(settings, fleet)) as backend:
        for view in state_of(backend).replicas.values():
            if view.model == fleet.model and view.state.value not in _ENDED:
                say(f"{view.id} is {view.state.value} already")
                return
        _load(backend, settings, fleet)


def run_once(settings: Settings, fleet: LocalFleet) -> int:
    """Everything once, start to end; nothing of it runs afterwards, however it went."""
    with _only_once(fleet), _signals_interrupt():
        if fleet.is_left:
            raise refused("a local fleet is up already, or was not stopped in good order; stop it with: ringtop down")
        try:
            result = _run_once(settings, fleet)
        except (KeyboardInterrupt, CommandFailed) as error:
            if isinstance(error, CommandFailed) and error.exit_code != INTERRUPTED:
                raise
            raise CommandFailed(INTERRUPTED, "interrupted; what was started is stopped again") from None
        finally:
            with _signals_wait():
                if fleet.is_left:
                    stop_everything(settings, fleet)
    if settings.as_json:
        print_json(result)
    else:
        say("Everything is stopped again.")
    return DONE


def stop_everything(settings: Settings, fleet: LocalFleet) -> list[str]:
    """Unload every replica, then end agents and caretaker; says what was stopped, one line each.

    Raises, with agents and caretaker left running, when a replica cannot be unloaded. A fleet of which an agent cannot
    start is ended without that: nobody could unload anything there.
    """
    from backend.api import FleetError

    try:
        start_fleet(fleet)
    except CommandFailed as error:
        if error.exit_code == REFUSED:
            raise  # nothing was tried: agents that run can still unload once the file is put right
        raise _ended_without_unload(fleet, error) from error
    with opened(replace(local_settings(settings, fleet), read_only=False)) as backend:
        stopped = [f"replica {replica}" for replica in _unload_all(backend)]
    try:
        return stopped + list(fleet.stop())
    except FleetError as error:
        raise CommandFailed(FAILED, str(error)) from error


def _ended_without_unload(fleet: LocalFleet, why: CommandFailed) -> CommandFailed:
    """The same error, after agents and caretaker were ended, with what may be left."""
    from backend.api import FleetError

    try:
        stopped = ", ".join(fleet.stop()) or "nothing was running"
    except FleetError as error:
        stopped = str(error)
    words = f"{why.words}\nNothing could be unloaded. Stopped: {stopped}. Engines of a fleet that was up before go on."
    return CommandFailed(why.exit_code, words)


@contextlib.contextmanager
def _only_once(fleet: LocalFleet) -> Iterator[None]:
    """Two that stop everything at their ends would stop each other's."""
    from backend.api import FleetError

    with contextlib.ExitStack() as held:
        try:
            held.enter_context(fleet.only_once())
        except FleetError as error:
            raise CommandFailed(REFUSED if error.is_refusal else FAILED, str(error)) from error
        yield


def _run_once(settings: Settings, fleet: LocalFleet) -> dict[str, Any]:
    from backend.api import StartDrainRequest, TestRequest
    from console.commands.facts import host_facts, replica_facts

    start_fleet(fleet)
    with opened(local_settings(settings, fleet)) as backend:
        view, seconds = _load(backend, settings, fleet)
        _show_ring(settings, view, seconds)
        trial = TestRequest(replica=view.id, prompt=fleet.prompt, max_tokens=fleet.max_tokens)
        completion = str(settle(ask(backend, trial)).value["text"])
        if not settings.as_json:
            say(f"{view.id} completes {fleet.prompt!r} with {completion!r}")
        state = state_of(backend)
        result = {
            "replicas": [replica_facts(each) for each in state.replicas.values()],
            "completion": completion,
            "seconds": round(seconds, 3),
            "hosts": [host_facts(each) for each in state.hosts.values()],
        }
        if completion != fleet.completion:
            words = f"{view.id} completes {fleet.prompt!r} with {completion!r}; expected {fleet.completion!r}"
            raise CommandFailed(FAILED, words, **result)
        drain = StartDrainRequest(
            replica=view.id,
            deadline_seconds=_DRAIN_SECONDS,
            at_deadline="stop",
            admission_closed_by="ringtop up --once",
            why="ringtop up --once",
        )
        follow_drain(backend, settings, view.id, drain)
    return result


def _load(backend: Backend, settings: Settings, fleet: LocalFleet) -> tuple[ReplicaView, float]:
    """Plan and load the tiny model; the replica once it is ready, and the seconds from command to ready."""
    plan = make_plan(backend, fleet.target)
    confirm_plan(settings, plan, yes=True)
    begun = time.monotonic()
    operation = start_load(backend, settings, plan).operation
    seconds = time.monotonic() - begun
    if operation is not None and operation.ended_unix_ms is not None:
        seconds = (operation.ended_unix_ms - operation.started_unix_ms) / 1000
    return loaded_replica(backend, plan), seconds


def _show_ring(settings: Settings, view: ReplicaView, seconds: float) -> None:
    if settings.as_json:
        return
    from console.render.shards import shard_table
    from console.render.values import duration

    say(f"{view.id} is {view.state.value} after {duration(seconds)}, at {view.endpoint}")
    look = look_for(settings)
    print_table(shard_table(view, look), look)


def _unload_all(backend: Backend) -> list[ReplicaId]:
    """Unload until no shard lives and no operation runs; those that ended are dismissed. Raises after STOP_SECONDS."""
    from backend.api import StartUnload, duration

    asked: dict[ReplicaId, list[OpId]] = {}
    deadline = time.monotonic() + STOP_SECONDS
    while True:
        state = state_of(backend)
        waiting = _running(state, asked)
        for view in state.replicas.values():
            tries = asked.setdefault(view.id, [])
            if _has_ended(state, tries) and len(tries) < (_TRIES if _is_live(view) else 1):
                tries.append(submit(backend, StartUnload(replica=view.id, why="ringtop down")))
                waiting.append(f"the unload of {view.id}")
            elif _is_live(view):
                waiting.append(f"{view.id} ({view.state.value})")
        if not waiting:
            return sorted(asked)
        if time.monotonic() > deadline:
            answers = [state.answers[op].words for tries in asked.values() for op in tries if op in state.answers]
            words = "; ".join((*waiting, *filter(None, answers)))
            raise CommandFailed(UNKNOWN, f"not everything stopped within {duration(STOP_SECONDS)}: {words}")
        time.sleep(0.05)


def _running(state: FleetState, asked: dict[ReplicaId, list[OpId]]) -> list[str]:
    running = [f"operation {view.id} ({view.kind})" for view in state.operations.values() if view.state == "running"]
    return running + [f"the unload of {name}" for name, tries in asked.items() if not _has_ended(state, tries)]


def _has_ended(state: FleetState, tries: list[OpId]) -> bool:
    """The last try was refused, or found nothing to do, or its operation is over: another one may be made."""
    if not tries:
        return True
    op_id = tries[-1]
    answer, operation = state.answers.get(op_id), state.operations.get(op_id)
    if answer is None or not answer.done:
        return False
    if answer.exit_code != DONE or answer.words != op_id:
        return True
    return operation is not None and operation.state != "running"  # an answer may be ahead of its ledger file


def _is_live(view: ReplicaView) -> bool:
    return any(shard.state not in _ENDED for shard in view.shards)


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """TERM and HUP do what Ctrl-C does, so that whoever ends this command ends what it started."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling({signal.SIGTERM: interrupt, signal.SIGHUP: interrupt}):
        yield


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """While things are being stopped, say so to whoever is impatient, and go on stopping them."""

    def wait(number: int, frame: FrameType | None) -> None:
        note("ringtop: stopping what was started; this ends by itself")

    with _handling({signal.SIGINT: wait, signal.SIGTERM: wait, signal.SIGHUP: wait}):
        yield


@contextlib.contextmanager
def _handling(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
