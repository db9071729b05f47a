"""How a one-shot command reaches the backend, waits for it, and follows what it asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from console.commands.exits import BUG, INTERRUPTED, UNKNOWN, UNREACHABLE, CommandFailed, no_such, refused
from console.commands.settings import Settings

if TYPE_CHECKING:
    from backend.api import Answer, AnyRequest, Backend, Context, FleetState, OperationStep, ReplicaView

SETTLE_SECONDS = 15.0
"""How long the hosts may take to report before the command goes on without the silent ones."""
ANSWER_SECONDS = 120.0
"""How long a request that changes nothing may stay unanswered."""
_PAUSE = 0.02


def chosen_context(settings: Settings) -> Context:
    """The context that the options name, else the default one; read-only when either side says so."""
    from backend.api import ContextError, load_context
    from msgspec.structs import replace

    try:
        context = load_context(settings.context, settings.home)
    except ContextError as error:
        raise refused(str(error)) from error
    return replace(context, read_only=context.read_only or settings.read_only)


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Backend]:
    """The backend of the chosen context, once every host has reported or is known to be silent."""
    from backend.api import Backend

    backend = Backend(chosen_context(settings))
    backend.start()
    try:
        backend.wait_settled(SETTLE_SECONDS)
        state_of(backend)
        yield backend
    finally:
        backend.stop()


def state_of(backend: Backend) -> FleetState:
    """The fleet state, or the error of a backend that has none left to give."""
    state = backend.state()
    if state.fault is not None:
        raise CommandFailed(BUG, f"the backend stopped: {state.fault}")
    return state


def silent_hosts(state: FleetState) -> dict[str, str]:
    """The hosts that are not live, with the reason."""
    return {
        host: f"{view.state.value}: {view.words}" if view.words else view.state.value
        for host, view in sorted(state.hosts.items())
        if view.state.value != "live"
    }


def require_a_host(state: FleetState) -> None:
    """Raise when nothing can be asked of anybody."""
    silent = silent_hosts(state)
    if state.hosts and len(silent) == len(state.hosts):
        lines = "; ".join(f"{host} is {words}" for host, words in silent.items())
        raise CommandFailed(UNREACHABLE, f"no host of context {state.context} answers: {lines}", hosts=silent)


def replica_of(backend: Backend, name: str) -> ReplicaView:
    """The replica with this id. Raises the error that names those that exist."""
    state = state_of(backend)
    for replica in state.replicas.values():
        if replica.id == name:
            return replica
    require_a_host(state)
    raise no_such("replica", name, (str(each) for each in state.replicas))


def ask(backend: Backend, request: AnyRequest, seconds: float = ANSWER_SECONDS) -> Answer:
    """The answer of a request that is over at once; its own exit code is checked by ``settle``."""
    op_id = backend.submit(request)
    deadline = time.monotonic() + seconds
    while True:
        answer = state_of(backend).answers.get(op_id)
        if answer is not None and answer.done:
            return answer
        if time.monotonic() > deadline:
            raise CommandFailed(UNKNOWN, f"no answer to {op_id} within {seconds:.0f} s; its outcome is unknown")
        time.sleep(_PAUSE)


def settle(answer: Answer) -> Answer:
    """The answer, or the error that it is."""
    if answer.exit_code != 0:
        raise CommandFailed(answer.exit_code, answer.words, operation=answer.op_id, value=answer.value)
    return answer


def follow(backend: Backend, request: AnyRequest, show: Callable[[OperationStep], None], goes_on: str) -> Answer:
    """Submit a request that becomes an operation, show its steps as they come, and return how it ended.

    Ctrl-C ends the following and never the operation; ``goes_on`` says what goes on, with ``{op}`` for its id.
    """
    op_id = backend.submit(request)
    shown = 0
    try:
        while True:
            state = state_of(backend)
            operation = state.operations.get(op_id)
            if operation is not None:
                for step in operation.steps[shown:]:
                    show(step)
                shown = max(shown, len(operation.steps))
            answer = state.answers.get(op_id)
            if answer is not None and answer.done:
                return answer
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        raise CommandFailed(INTERRUPTED, goes_on.format(op=op_id), operation=op_id) from None
