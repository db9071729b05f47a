"""How a one-shot command reaches the backend, waits for it, and follows what it asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from console.commands.exits import BUG, DONE, INTERRUPTED, UNKNOWN, UNREACHABLE, CommandFailed, no_such, refused
from console.commands.output import note
from console.commands.settings import Settings

if TYPE_CHECKING:
    from backend.api import (
        Answer,
        AnyRequest,
        Backend,
        Context,
        FleetState,
        HostId,
        HostView,
        OperationStep,
        OperationView,
        OpId,
        ReplicaView,
    )

T = TypeVar("T")

SETTLE_SECONDS = 15.0
"""How long the hosts may take to report before the command goes on without the silent ones."""
ANSWER_SECONDS = 120.0
"""How long a request that starts no operation may stay unanswered."""
_FILES_SECONDS = 2.0
_PAUSE = 0.02
_SILENT_LINES = 6


class Interrupted(CommandFailed):
    """A person stopped following an operation, which goes on."""

    def __init__(self, op_id: OpId) -> None:
        words = f"no longer following; it goes on in its own process, see it with: ringtop op show {op_id}"
        super().__init__(INTERRUPTED, words, operation=op_id)
        self.op_id = op_id


def chosen_context(settings: Settings) -> Context:
    """The context that the options name, else the default one; read-only when either side says so."""
    from msgspec.structs import replace

    from backend.api import ContextError, load_context

    try:
        context = load_context(settings.context, settings.home)
    except ContextError as error:
        raise refused(str(error)) from error
    return replace(context, read_only=context.read_only or settings.read_only)


@contextlib.contextmanager
def opened(settings: Settings, who: str | None = None) -> Iterator[Backend]:
    """The backend of the chosen context, once every host has reported or is known to be silent.

    ``who`` asks there; a person is known by their name anyway.
    """
    from backend.api import Backend

    backend = Backend(chosen_context(settings), who=who)
    backend.start()
    try:
        backend.wait_settled(SETTLE_SECONDS)
        # ledger and catalog are read in this order, beside the links
        wait_for(backend, lambda state: state.models or state.catalog_words or None, _FILES_SECONDS)
        yield backend
    finally:
        backend.stop()


def state_of(backend: Backend) -> FleetState:
    """The fleet state, or the error of a backend that has none left to give."""
    state = backend.state()
    if state.fault is not None:
        raise CommandFailed(BUG, f"the backend stopped: {state.fault}")
    return state


def silent_hosts(state: FleetState) -> dict[HostId, str]:
    """The hosts that are not live, with the reason."""
    return {
        host: f"{view.state.value}: {view.words}" if view.words else view.state.value
        for host, view in state.hosts.items()
        if view.state.value != "live"
    }


def note_silent(silent: Mapping[HostId, str], what: str) -> None:
    """Say beside the answer which hosts are silent, and ``what`` follows: a line each, or one for many."""
    from backend.api import said_by

    if len(silent) > _SILENT_LINES:
        note(f"ringtop: {said_by(silent)}; {what}")
        return
    for host, words in silent.items():
        note(f"ringtop: {host} is {words}; {what}")


def require_a_host(state: FleetState) -> None:
    """Raise when nothing can be asked of anybody."""
    from backend.api import said_by

    silent = silent_hosts(state)
    if state.hosts and len(silent) == len(state.hosts):
        raise CommandFailed(UNREACHABLE, f"no host of context {state.context} answers: {said_by(silent)}", hosts=silent)


def replica_of(backend: Backend, name: str) -> ReplicaView:
    """The replica with this id. Raises the error that names those that exist."""
    from backend.api import ReplicaId

    state = state_of(backend)
    found = state.replicas.get(ReplicaId(name))
    if found is not None:
        return found
    require_a_host(state)
    raise no_such("replica", name, state.replicas)


def host_of(backend: Backend, name: str) -> HostView:
    """The host with this id. Raises the error that names those that exist."""
    from backend.api import HostId

    hosts = state_of(backend).hosts
    if HostId(name) not in hosts:
        raise no_such("host", name, hosts)
    return hosts[HostId(name)]


def submit(backend: Backend, request: AnyRequest) -> OpId:
    """Hand a request to the backend. Raises when it is not taken."""
    from backend.api import SubmitRefused

    try:
        return backend.submit(request)
    except SubmitRefused as error:
        raise refused(str(error)) from error


def ask(backend: Backend, request: AnyRequest, seconds: float = ANSWER_SECONDS) -> Answer:
    """The answer of a request that starts no operation; its own exit code is checked by ``settle``."""
    op_id = submit(backend, request)
    answer = wait_for(backend, lambda state: _answer_in(state, op_id), seconds)
    if answer is None:
        from backend.api import duration

        raise CommandFailed(UNKNOWN, f"no answer to {op_id} within {duration(seconds)}; its outcome is unknown")
    return answer


def settle(answer: Answer) -> Answer:
    """The answer, or the error that it is."""
    if answer.exit_code != DONE:
        raise CommandFailed(answer.exit_code, answer.words, operation=answer.op_id, value=answer.value)
    return answer


def wait_for(backend: Backend, look: Callable[[FleetState], T | None], seconds: float) -> T | None:
    """What ``look`` finds in the first state in which it finds anything; None at the deadline."""
    deadline = time.monotonic() + seconds
    seen = None
    while True:
        state = state_of(backend)
        if state is not seen:
            seen = state
            if (found := look(state)) is not None:
                return found
        if time.monotonic() > deadline:
            return None
        time.sleep(_PAUSE)


@dataclass(frozen=True)
class Outcome:
    """How a request that becomes an operation ended; ``operation`` is None when there was nothing to do."""

    op_id: OpId
    words: str
    operation: OperationView | None


def follow(
    backend: Backend, request: AnyRequest, *, show: Callable[[OperationStep], None], look: Callable[[FleetState], None]
) -> Outcome:
    """Submit a request that becomes an operation and follow that to its end.

    ``show`` gets its steps as they come, ``look`` every state on the way. Raises the error of one that did not
    succeed. Ctrl-C ends the following and never the operation: Interrupted says which one goes on.
    """
    return watch(backend, submit(backend, request), show=show, look=look)


def watch(
    backend: Backend, op_id: OpId, *, show: Callable[[OperationStep], None], look: Callable[[FleetState], None]
) -> Outcome:
    """Follow a request that was submitted, as ``follow`` does."""
    shown = 0
    seen = None
    try:
        while True:
            state = state_of(backend)
            if state is not seen:
                seen = state
                look(state)
                operation = state.operations.get(op_id)
                for step in operation.steps[shown:] if operation is not None else ():
                    show(step)
                    shown += 1
                if (outcome := _outcome(state, op_id)) is not None:
                    return outcome
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        raise Interrupted(op_id) from None


def _outcome(state: FleetState, op_id: OpId) -> Outcome | None:
    answer = _answer_in(state, op_id)
    if answer is None:
        return None
    settle(answer)
    operation = state.operations.get(op_id)
    if operation is None:
        # an answer that names no operation found nothing to do; one that names it is ahead of its ledger file
        return Outcome(op_id, answer.words, None) if answer.words != op_id else None
    if operation.state == "running":
        return None
    code = operation.exit_code if operation.exit_code is not None else UNKNOWN
    if code != DONE:
        from console.commands.facts import operation_facts

        raise CommandFailed(code, _end_words(operation), operation=operation_facts(operation))
    return Outcome(op_id, operation.words, operation)


def _end_words(operation: OperationView) -> str:
    """Why an operation is no success. Of one whose process is gone it is said that it is, and what can be done."""
    words = operation.words or f"{operation.id} is {operation.state}"
    has_halted = operation.exit_code is not None  # then its last words say why, and how to go on
    if operation.state != "ownerless" or has_halted:
        return words
    from console.render.operations import OFFERS

    return f"the process of {operation.id} is gone, its last step: {words}. {OFFERS.format(id=operation.id)}"


def _answer_in(state: FleetState, op_id: OpId) -> Answer | None:
    answer = state.answers.get(op_id)
    return answer if answer is not None and answer.done else None
