"""What every step of a recovery works with: looks at the host, commands with their fence, waits, a person's part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from backend.contract.commands import Command, Expect, LookAtResident
from backend.contract.durations import duration
from backend.contract.entities import Result
from backend.contract.frames import FrameError, convert
from backend.contract.residents import ResidentLook
from backend.contract.words import HostId, OpId
from backend.control.exit_codes import FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.operations.conduct import Conduct, Outcome
from backend.control.recovery_document import RecoveryPlan
from backend.control.wall_clock import now_unix_ms

LOOK_SECONDS = 30.0
"""A look counts tens of thousands of files and hears INSPECT out."""
TEND_SECONDS = 150.0
"""For a command of agent.toml, which may itself take 90 s."""
PATIENCE_SECONDS = 90.0
_PAUSE_SECONDS = 0.5
WATCHED, SENT, ANSWERED, APPROVED, BY_HAND = "watched", "sent", "answered", "approved", "by hand"


class Halted(Exception):
    """A stop condition does not hold: what was expected, what is, and what to do; with the exit code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


class Recovery:
    """One recovery under way."""

    def __init__(self, conduct: Conduct, plan: RecoveryPlan) -> None:
        self.conduct = conduct
        self.plan = plan
        self.host = plan.host
        self._looks = 0
        self._life = f"{now_unix_ms()}"

    @property
    def why(self) -> str:
        """The reason that a person gave."""
        return str(self.conduct.operation.options.get("why", ""))

    @property
    def person_seconds(self) -> float:
        """How long a person's step is waited for before the recovery stops there."""
        return float(self.conduct.operation.options.get("person_seconds", 0.0))

    @property
    def patience(self) -> float:
        """How long a condition may take to hold, in seconds."""
        return float(self.conduct.operation.options.get("patience_seconds", PATIENCE_SECONDS))

    def watched(self) -> tuple[str, ...]:
        """The lives of the p4 agent and of every process that was seen under it."""
        lines = [line for step in self.conduct.steps if step.what == WATCHED for line in step.lines]
        known = [self.plan.look.life, *(each.life for each in self.plan.look.processes), *lines]
        return tuple(life for life in dict.fromkeys(known) if life)

    async def look(self) -> ResidentLook:
        """Measure the host now. Raises Halted when nobody answers."""
        self._looks += 1
        command = LookAtResident(
            op_id=OpId(f"{self.conduct.operation.op_id}-look-{self._life}-{self._looks}"),
            engine=self.plan.engine,
            processes=self.watched(),
            aside=self.plan.aside,
        )
        return await self._looked(self.host, command, "how it stands")

    async def look_at(self, host: HostId) -> ResidentLook:
        """Measure another host of its rings. Raises Halted when nobody answers."""
        if host == self.host:
            return await self.look()
        self._looks += 1
        op_id = OpId(f"{self.conduct.operation.op_id}-look-{host}-{self._life}-{self._looks}")
        return await self._looked(host, LookAtResident(op_id=op_id, engine=self.plan.engine), "whether it has a bridge")

    async def _looked(self, host: HostId, command: LookAtResident, what: str) -> ResidentLook:
        outcome = await self.conduct.ask(host, command, LOOK_SECONDS)
        if not outcome.succeeded:
            raise Halted(_code(outcome), f"{host} does not say {what}: {outcome.words}.")
        try:
            return convert(outcome.value, ResidentLook, f"what {host} says of its p4 agent")
        except FrameError as error:
            raise Halted(UNKNOWN, f"{error}. Install one release of ringtop on both sides.") from error

    async def until(self, holds: Callable[[ResidentLook], bool], seconds: float) -> tuple[ResidentLook, bool]:
        """Look again and again until it holds, at most so long; the last look, and whether it held."""
        deadline = time.monotonic() + seconds
        while True:
            seen = await self.look()
            if holds(seen):
                return seen, True
            if time.monotonic() > deadline:
                return seen, False
            await asyncio.sleep(_PAUSE_SECONDS)

    async def tend(self, name: str, make: Callable[[OpId, Expect], Command]) -> Result:
        """Send one deed and hear it out. Its id is new only once the one before was answered. Raises Halted."""
        tries = sum(step.what == ANSWERED and step.target == name for step in self.conduct.steps)
        op_id = self.conduct.op_id(name if not tries else f"{name}-{tries + 1}")
        command = make(op_id, Expect(agent_epoch=self._epoch(op_id, name)))
        outcome = await self.conduct.ask(self.host, command, TEND_SECONDS)
        if outcome.result is not None:
            self.conduct.step(name, ANSWERED, str(outcome.value.get("words", "")) or outcome.words)
        if not outcome.succeeded or outcome.result is None:
            raise Halted(_code(outcome), f"{outcome.words}.")
        return outcome.result

    def _epoch(self, op_id: OpId, name: str) -> str:
        """The agent's life as it is now; of a command that may have been sent before, the one that it was sent with."""
        sent = (step for step in self.conduct.steps if step.what == SENT and step.target == name)
        known = next((step.lines[0] for step in sent if step.words == op_id), None)
        if known is not None:
            return known
        epoch = self.conduct.reach.state.hosts[self.host].agent_epoch
        self.conduct.step(name, SENT, op_id, lines=(epoch,))
        return epoch

    async def by_hand(
        self, name: str, what: str, command: str, holds: Callable[[ResidentLook], bool], seconds: float = 0.0
    ) -> ResidentLook:
        """A person's part: said with the exact command, and waited for. Raises Halted when it does not come."""
        words = f"a person's part on {self.host}: {what}: {command or 'as it is done there'}"
        self.conduct.step(name, BY_HAND, words)
        seen, held = await self.until(holds, max(seconds, self.person_seconds))
        if not held:
            raise Halted(REFUSED, f"{words}. It was not done within {duration(max(seconds, self.person_seconds))}.")
        return seen


def _code(outcome: Outcome) -> int:
    if outcome.result is None:
        return UNKNOWN if outcome.sent else UNREACHABLE
    return REFUSED if outcome.was_rejected else FAILED
