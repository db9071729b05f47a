"""The keeper at work: holds the lease at a majority, looks, decides, and has decisions carried out as operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from backend.contract.words import HostId, OpId
from backend.control.cannot_answer import SubmitRefused
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.keeper import after_refusal, decide, has_majority
from backend.control.keeper_answers import highest_keeper_epoch, keeper_of
from backend.control.keeper_decisions import (
    AnyDecision,
    DismissReplica,
    DrainIdle,
    KeeperRules,
    LoadModel,
    Memory,
    Quarantine,
    ResumeOwn,
    StopStray,
    as_value,
)
from backend.control.requests import (
    ClaimKeeping,
    HoldSubject,
    MakePlan,
    Request,
    ResignKeeping,
    ResumeOperation,
    StartDrainRequest,
    StartLoad,
    StartUnload,
    StopShard,
)
from backend.control.views import Answer, FleetState, OperationView

Tell = Callable[[dict[str, Any]], None]
_PAUSE = 0.05
_ANSWER_SECONDS = 60.0
_STALL_SECONDS = 30.0
"""How long a backend that takes nothing is asked again before this keeper gives up."""
_RENEWALS = 3
"""Renewals within one lease, so that one or two may get lost."""


class NotKept(Exception):
    """This process is no keeper; the message names who is, or why nobody can be. ``code`` is the exit code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Door(Protocol):
    """What a keeper needs of a backend."""

    def state(self) -> FleetState:
        """The latest state."""
        ...

    def submit(self, request: Request) -> OpId:
        """Take a request; its answer appears in the state."""
        ...


class Keeping:
    """One keeper. ``tell`` gets a tree for each thing that happens, with ``event`` and ``words``."""

    def __init__(self, door: Door, *, who: str, console: str, rules: KeeperRules, tell: Tell) -> None:
        self._door = door
        self._who = who
        self._console = console
        self._rules = rules
        self._tell = tell
        self._memory = Memory()
        self._epoch = 0
        self._lease_ends: dict[HostId, float] = {}
        self._renewal: tuple[OpId, float] | None = None
        self._renew_at = 0.0
        self._kept = False
        self._stop = threading.Event()

    def stop(self) -> None:
        """Let ``keep`` end soon; may be called from a signal handler."""
        self._stop.set()

    def keep(self, *, once: bool = False, standby: bool = False) -> None:
        """Keep the fleet until ``stop``. ``once``: one look, and until its operations have ended.

        ``standby`` waits while somebody else keeps. Raises NotKept.
        """
        try:
            while not self._stop.is_set():
                if standby:
                    self._wait_for_room()
                try:
                    self._claim()
                    self._rounds(once=once)
                    return
                except NotKept as error:
                    if not standby or once:
                        raise
                    self._resign()
                    self._say("waiting", str(error))
                    self._stop.wait(self._rules.lease_seconds)
        finally:
            self._resign()

    # --- the lease ------------------------------------------------------------------------------------------------

    def _wait_for_room(self) -> None:
        said = ""
        while not self._stop.is_set() and (other := self._other()):
            if other != said:
                self._say("waiting", f"kept by {other}; this one takes over when that lease ends")
                said = other
            self._stop.wait(_PAUSE)

    def _other(self) -> str:
        """Who else keeps the fleet, or an empty text."""
        lease = keeper_of(self._door.state())
        return lease.who if lease is not None and lease.console != self._console else ""

    def _claim(self) -> None:
        """Take the lease at a majority of the known agents. Raises NotKept."""
        if other := self._other():
            raise NotKept(REFUSED, f"{other} keeps this fleet. Add --standby to take over when that lease ends.")
        self._epoch = highest_keeper_epoch(self._door.state()) + 1
        sent = time.monotonic()
        answer = self._answer(self._submit(self._request()))
        self._take_lease(answer, sent)
        if answer.exit_code != DONE:
            raise NotKept(answer.exit_code, answer.words)
        self._renew_at = sent + self._rules.lease_seconds / _RENEWALS
        self._kept = True
        self._say("keeping", f"{self._who} keeps the fleet with keeper_epoch {self._epoch}: {answer.words}")

    def _request(self) -> ClaimKeeping:
        return ClaimKeeping(
            keeper_epoch=self._epoch, console=self._console, who=self._who, seconds=self._rules.lease_seconds
        )

    def _pump(self) -> None:
        """Renew the lease in time, without waiting for it."""
        now = time.monotonic()
        if self._renewal is not None:
            op_id, sent = self._renewal
            answer = self._door.state().answers.get(op_id)
            if answer is not None and answer.done:
                self._renewal = None
                self._take_lease(answer, sent)
            elif now - sent > self._rules.lease_seconds:
                self._renewal = None  # its answer comes too late to be worth anything
        elif now >= self._renew_at and not self._stop.is_set():
            self._renew_at = now + self._rules.lease_seconds / _RENEWALS
            self._renewal = (self._submit(self._request()), now)

    def _take_lease(self, answer: Answer, sent: float) -> None:
        """Each agent's lease counts from before the claim was sent. A fenced one needs a higher epoch everywhere."""
        for host in answer.value.get("held", ()):
            self._lease_ends[host] = sent + self._rules.lease_seconds
        refused: dict[HostId, str] = answer.value.get("refused", {})
        if any("E_FENCED" in words for words in refused.values()):
            self._epoch = max(self._epoch, highest_keeper_epoch(self._door.state())) + 1

    def _has_lease(self) -> bool:
        return has_majority(self._door.state(), self._lease_ends, time.monotonic())

    def _resign(self) -> None:
        if not self._lease_ends:
            return
        self._kept, self._renewal, self._lease_ends = False, None, {}
        try:
            op_id = self._submit(ResignKeeping(keeper_epoch=self._epoch, console=self._console))
            self._say("resigned", self._answer(op_id).words)
        except NotKept as error:
            self._say("unresigned", f"the lease ends by itself: {error}")

    # --- the rounds -----------------------------------------------------------------------------------------------

    def _rounds(self, *, once: bool) -> None:
        while not self._stop.is_set():
            self._pump()
            self._check_lease()
            now = time.monotonic()
            self._memory, decisions = decide(self._door.state(), self._lease_ends, self._memory, now, self._rules)
            started = [self._carry_out(decision) for decision in decisions]
            if once:
                self._wait_for_ends([op_id for op_id in started if op_id is not None])
                return
            self._rest(self._rules.every_seconds)

    def _check_lease(self) -> None:
        """Say once that the majority is gone or back. Raises NotKept when somebody else has it."""
        if not self._has_lease() and (other := self._other()):
            raise NotKept(REFUSED, f"{other} has taken over the keeping of this fleet")
        if self._has_lease() == self._kept:
            return
        self._kept = not self._kept
        if self._kept:
            self._say("keeping", "the lease holds at a majority again")
        else:
            self._say("minority", "the lease holds at no majority of the agents: nothing is done until it does")

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stop.is_set() and (left := deadline - time.monotonic()) > 0:
            self._pump()
            self._stop.wait(min(left, _PAUSE))

    def _carry_out(self, decision: AnyDecision) -> OpId | None:
        """Have a decision done; the operation that it became, if it became one."""
        request = self._request_for(decision)
        if request is None:
            return None
        if not self._has_lease():
            self._say("dropped", "the lease ended before it was begun", decision)
            return None
        op_id = self._submit(request)
        answer = self._answer(op_id)
        if answer.exit_code != DONE:
            self._say("refused", answer.words, decision)
            if isinstance(decision, LoadModel):
                self._memory = after_refusal(self._memory, decision, time.monotonic(), self._rules)
            return None
        self._say("decided", decision.why, decision, op_id)
        return op_id if op_id in self._door.state().operations else None

    def _request_for(self, decision: AnyDecision) -> Request | None:
        """What to ask the backend for; None when the plan of a load was refused."""
        match decision:
            case ResumeOwn():
                return ResumeOperation(operation=decision.operation)
            case LoadModel():
                return self._plan(decision)
            case DismissReplica():
                return StartUnload(replica=decision.replica, why=decision.why)
            case DrainIdle():
                return StartDrainRequest(
                    replica=decision.replica, deadline_seconds=decision.seconds, at_deadline="give-up", why=decision.why
                )
            case Quarantine():
                return HoldSubject(subject=decision.replica, scope="replica", kind="quarantined", why=decision.why)
            case StopStray():
                return StopShard(
                    host=decision.host,
                    node_id=decision.node_id,
                    generation=decision.generation,
                    identity=decision.identity,
                    why=decision.why,
                )

    def _plan(self, decision: LoadModel) -> StartLoad | None:
        answer = self._answer(self._submit(MakePlan(target=decision.target)))
        if answer.plan is None or answer.exit_code != DONE:
            self._memory = after_refusal(self._memory, decision, time.monotonic(), self._rules)
            self._say("refused", answer.words, decision)
            return None
        return StartLoad(plan=answer.plan, confirmed=answer.plan.digest)

    def _wait_for_ends(self, operations: list[OpId]) -> None:
        """Until these operations have ended, or this keeper is stopped. Raises NotKept for one that did not succeed."""
        left, trouble = dict.fromkeys(operations), []
        while left and not self._stop.is_set():
            self._pump()
            for view in [self._door.state().operations[op_id] for op_id in left]:
                if view.state != "running":
                    del left[view.id]
                    trouble += self._ended(view)
            self._stop.wait(_PAUSE)
        if trouble:
            raise trouble[0]

    def _ended(self, view: OperationView) -> list[NotKept]:
        """Say how an operation ended, and what of that is no success."""
        if view.state == "ownerless":
            words = f"the process of {view.id} is gone, its last step: {view.words}"
            return [NotKept(UNKNOWN, f"{words}. Go on with: ringtop op resume {view.id}")]
        self._say("ended", f"{view.id}: {view.words}")
        if view.exit_code == DONE:
            return []
        code = "none" if view.exit_code is None else view.exit_code
        return [NotKept(FAILED, f"{view.id} ended with exit code {code}: {view.words}")]

    # --- words ----------------------------------------------------------------------------------------------------

    def _submit(self, request: Request) -> OpId:
        """Hand a request over; a backend that stalls is asked again for a while. Raises NotKept."""
        deadline = time.monotonic() + _STALL_SECONDS
        while True:
            try:
                return self._door.submit(request)
            except SubmitRefused as error:
                if self._door.state().fault is not None or time.monotonic() > deadline:
                    raise NotKept(UNKNOWN, str(error)) from error
                time.sleep(_PAUSE)

    def _answer(self, op_id: OpId) -> Answer:
        """The answer to a request; the lease is renewed while waiting."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            state = self._door.state()
            if state.fault is not None:
                raise NotKept(UNREACHABLE, f"the backend stopped: {state.fault}")
            answer = state.answers.get(op_id)
            if answer is not None and answer.done:
                return answer
            if time.monotonic() > deadline:
                words = f"no answer to {op_id} within {_ANSWER_SECONDS:.0f} s; its outcome is unknown"
                return Answer(op_id=op_id, request="", done=True, exit_code=UNKNOWN, words=words)
            if self._kept:
                self._pump()
            time.sleep(_PAUSE)

    def _say(self, event: str, words: str, decision: AnyDecision | None = None, op_id: OpId | None = None) -> None:
        about = {} if decision is None else as_value(decision)
        operation = {} if op_id is None else {"operation": op_id}
        self._tell({"event": event, "words": words, **about, **operation})
