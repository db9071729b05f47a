"""States and their legal transitions. A state is a word; an unknown word from a newer agent stays readable."""

from __future__ import annotations

from enum import Enum


class ShardState(Enum):
    """What its agent says of one shard, in the order of a life."""

    RESERVED = "reserved"
    SPAWNING = "spawning"
    CONNECTING = "connecting"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """No process is left, or none ever was."""
        return self in (ShardState.STOPPED, ShardState.FAILED)

    @property
    def is_live(self) -> bool:
        """An agent has proven a process. Reserved is not live."""
        return not self.is_terminal and self is not ShardState.RESERVED


TERMINAL = (ShardState.STOPPED.value, ShardState.FAILED.value)
"""The words of the terminal states."""


class ReplicaState(Enum):
    """Derived from the shards and open operations; never set."""

    PLACED = "placed"
    LOADING = "loading"
    READY = "ready"
    RECOVERING = "recovering"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    ROLLING_BACK = "rolling back"


class HostState(Enum):
    """What a link knows of its host. Never mixed: silent, over its lease, and said-so are three things."""

    CONNECTING = "connecting"
    LIVE = "live"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    REFUSED = "refused"


_STARTING = (ShardState.CONNECTING, ShardState.LOADING, ShardState.WARMING, ShardState.READY)
_LEAVING = (ShardState.STOPPING, ShardState.FAILED)

_NEXT: dict[ShardState, frozenset[ShardState]] = {
    ShardState.RESERVED: frozenset({ShardState.SPAWNING, ShardState.STOPPED, ShardState.FAILED}),
    ShardState.SPAWNING: frozenset({*_STARTING, *_LEAVING}),
    ShardState.CONNECTING: frozenset({*_STARTING, *_LEAVING}),
    # A leader may go while a worker loads: the worker then waits for one again.
    ShardState.LOADING: frozenset({*_STARTING, *_LEAVING}),
    ShardState.WARMING: frozenset({ShardState.READY, *_LEAVING}),
    ShardState.READY: frozenset({ShardState.CONNECTING, ShardState.DRAINING, *_LEAVING}),
    ShardState.DRAINING: frozenset({ShardState.READY, *_LEAVING}),
    ShardState.STOPPING: frozenset({ShardState.STOPPED, ShardState.FAILED}),
    ShardState.STOPPED: frozenset(),
    ShardState.FAILED: frozenset(),
}


class IllegalTransition(ValueError):
    """A shard was asked to take a step that no shard can take; the message names both states."""


def check_transition(subject: str, old: ShardState, new: ShardState) -> None:
    """Raise IllegalTransition unless ``new`` may follow ``old``. Staying in place is always legal."""
    if new is not old and new not in _NEXT[old]:
        allowed = ", ".join(sorted(state.value for state in _NEXT[old])) or "nothing"
        raise IllegalTransition(f"{subject} is {old.value} and cannot become {new.value}; from there: {allowed}")


def shard_state(text: str) -> ShardState | None:
    """The state with this name, or None for a word that only a newer agent knows (shown as ``unknown(word)``)."""
    try:
        return ShardState(text)
    except ValueError:
        return None
