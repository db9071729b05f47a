"""What the fleet says of an operation that nobody runs any more: how it ended, or why it is still open. Pure."""

from __future__ import annotations

import msgspec

from backend.contract.states import TERMINAL, HostState
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.operations.load import targets_of
from backend.control.views import FleetState, HostView, OperationView, Target

GONE = ("absent", "ended")


class Conclusion(msgspec.Struct, frozen=True):
    """How an operation ended by what the fleet says. ``is_open``: it cannot be closed, and ``code`` says why not.

    ``lines`` has what its host says of each target.
    """

    code: int
    words: str
    lines: tuple[str, ...]
    is_open: bool = False


class _Found(msgspec.Struct, frozen=True):
    """One target: absent, ended, ready, runs, moving or unknown; and that in words."""

    target: Target
    word: str
    words: str

    @property
    def line(self) -> str:
        return f"rank {self.target.rank} on {self.target.host}: {self.words}"


def conclude(operation: OperationView, state: FleetState, *, despite_silence: bool = False) -> Conclusion:
    """What became of an operation. Ranks that still move keep it open; so do silent hosts, unless told otherwise."""
    loaded = _loaded_by_reload(operation)
    if operation.kind == "recovery":
        return _recovery(operation)
    found = [_find(target, state) for target in sorted((*operation.targets, *loaded), key=lambda target: target.rank)]
    lines = tuple(each.line for each in found)
    if not found:
        return Conclusion(FAILED, "it has no target that the fleet could be asked about", lines)
    moving = [each for each in found if each.word == "moving"]
    if moving:
        words = f"{moving[0].line}: it still moves. Resume it, or roll it back"
        return Conclusion(REFUSED, words, lines, is_open=True)
    silent = [each for each in found if each.word == "unknown"]
    if silent and not despite_silence:
        words = f"{'; '.join(each.line for each in silent)}. Bring the host back, or settle it despite the silence"
        return Conclusion(UNREACHABLE, words, lines, is_open=True)
    if silent:
        unknown = f"unknown: {'; '.join(each.line for each in silent)}"
        return Conclusion(UNKNOWN, unknown, lines)
    by_kind = {"load": _load, "unload": _unload, "drain": _drain, "adopt": _unload, "reload": _reload}
    judge = by_kind.get(operation.kind)
    if judge is None:
        words = f"the kind {operation.kind!r} is unknown; known: {', '.join(sorted(by_kind))}"
        return Conclusion(REFUSED, words, lines, is_open=True)
    return judge(operation, state, found, lines)


def _find(target: Target, state: FleetState) -> _Found:
    host = state.hosts.get(target.host)
    if host is None:
        return _Found(target, "unknown", "this context has no such host")
    if host.state is not HostState.LIVE:
        return _Found(target, "unknown", f"{host.state.value}, {host.words}".rstrip(", "))
    asked = [op for op in host.entities.operations.values() if op.subject == target.node_id and op.result is None]
    if asked:
        return _Found(target, "moving", f"{asked[0].command} by {asked[0].by} is under way")
    shard = host.entities.shards.get(target.node_id)
    if shard is None or shard.node_generation != target.node_generation:
        return _Found(target, "absent", "not there")
    if shard.state in TERMINAL:
        kept = [hold.kind for hold in host.entities.holds.values() if hold.node_id == target.node_id]
        held = f", {' and '.join(sorted(kept))} still held" if kept else ""
        return _Found(target, "ended", f"{shard.state}{held}{': ' + shard.words if shard.words else ''}")
    word = {"ready": "ready", "draining": "runs"}.get(shard.state, "moving")
    if word == "ready" and target.rank == 0 and shard.canary is None:
        return _Found(target, "moving", "ready, and no canary has crossed every rank yet")
    return _Found(target, word, shard.state)


def _load(operation: OperationView, state: FleetState, found: list[_Found], lines: tuple[str, ...]) -> Conclusion:
    runs = [each for each in found if each.word not in GONE]
    if not runs:
        return Conclusion(FAILED, f"nothing of {operation.subject} runs", lines)
    if len(runs) == len(found):
        return Conclusion(DONE, f"{operation.subject} is ready at generation {operation.load_generation}", lines)
    ranks = ", ".join(str(each.target.rank) for each in runs)
    words = f"only rank {ranks} of {operation.subject} runs; unload {operation.subject} to end what is left"
    return Conclusion(FAILED, words, lines)


def _unload(operation: OperationView, state: FleetState, found: list[_Found], lines: tuple[str, ...]) -> Conclusion:
    runs = [each for each in found if each.word not in GONE]
    if not runs:
        return Conclusion(DONE, f"{operation.subject} is gone", lines)
    ranks = ", ".join(str(each.target.rank) for each in runs)
    return Conclusion(FAILED, f"rank {ranks} of {operation.subject} still runs", lines)


def _drain(operation: OperationView, state: FleetState, found: list[_Found], lines: tuple[str, ...]) -> Conclusion:
    kept = [_drain_at(operation, state.hosts[each.target.host]) for each in found]
    still = [each.target.host for each, outcome in zip(found, kept, strict=True) if outcome == ""]
    runs = [each for each in found if each.word not in GONE]
    if not runs:
        return Conclusion(DONE, f"{operation.subject} is drained and gone", lines)
    if still:
        words = f"the drain of {operation.subject} is open at {still[0]}. Resume it to follow it, or roll it back"
        return Conclusion(REFUSED, words, lines, is_open=True)
    if any(each.target.rank == 0 for each in runs):
        outcome = next((each for each in kept if each), "never begun, or forgotten")
        code = UNKNOWN if outcome == "given up" else FAILED
        return Conclusion(code, f"{operation.subject} serves on: the drain was {outcome}", lines)
    ranks = ", ".join(str(each.target.rank) for each in runs)
    return Conclusion(FAILED, f"the leader of {operation.subject} is gone, and rank {ranks} still runs", lines)


def _recovery(operation: OperationView) -> Conclusion:
    """What of a recovery was proven: what is left of it is a person's to do."""
    proven = [step.target for step in operation.steps if step.what == "proven"]
    words = f"the recovery of {operation.subject} was left after {proven[-1] if proven else 'nothing'}"
    lines = tuple(f"{step.target}: {step.words}" for step in operation.steps if step.what == "proven")
    return Conclusion(FAILED, words, lines)


def _loaded_by_reload(operation: OperationView) -> tuple[Target, ...]:
    """The ranks that a reload was to bring up, beside its targets, which are those that were to go."""
    if operation.kind != "reload" or operation.plan is None:
        return ()
    return targets_of(operation.plan)


def _reload(operation: OperationView, state: FleetState, found: list[_Found], lines: tuple[str, ...]) -> Conclusion:
    loaded = set(_loaded_by_reload(operation))
    old = [each for each in found if each.target not in loaded and each.word not in GONE]
    new = [each for each in found if each.target in loaded and each.word not in GONE]
    name = operation.plan.replica if operation.plan is not None else operation.subject
    if old and _drain_at(operation, state.hosts[old[0].target.host]) == "":
        words = f"the drain of {operation.subject} is open at {old[0].target.host}. Resume it, or roll it back"
        return Conclusion(REFUSED, words, lines, is_open=True)
    if len(new) == len(loaded) and not old:
        return Conclusion(DONE, f"{operation.subject} is gone and {name} is ready", lines)
    if new and old:
        words = f"rank {_ranks(old)} of {operation.subject} and rank {_ranks(new)} of what was to replace it both run"
        return Conclusion(FAILED, words, lines)
    if old:
        return Conclusion(FAILED, f"{operation.subject} is as it was: nothing was loaded again", lines)
    words = f"only rank {_ranks(new)} of {name} runs" if new else f"{operation.subject} is DOWN: nothing of it runs"
    return Conclusion(FAILED, words, lines)


def _ranks(found: list[_Found]) -> str:
    return ", ".join(str(each.target.rank) for each in found)


def _drain_at(operation: OperationView, host: HostView) -> str | None:
    """The outcome of this operation's drain at a host: empty while it is open, None when there is none."""
    for drain in host.entities.drains.values():
        if drain.replica == operation.subject and drain.load_generation == operation.load_generation:
            return drain.outcome
    return None
