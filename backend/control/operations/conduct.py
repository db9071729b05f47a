"""What every operation works with: its ledger, its links, and answers that are known, refused or unknown."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.commands import Command, Expect
from backend.contract.entities import Result
from backend.contract.plans import Fact
from backend.contract.states import HostState
from backend.contract.words import HostId, OpId
from backend.control.ledger import ENDED, LedgerWriter, Operation, Step
from backend.control.link_ends import AnswerUnknown, Refusal
from backend.control.reach import Reach
from backend.control.recalling import ask_until_known
from backend.control.wall_clock import now_unix_ms
from backend.failpoints import failpoint

CONNECT_SECONDS = 10.0


class Outcome(msgspec.Struct, frozen=True):
    """What came of one command. ``result`` None: no answer was heard, and ``sent`` says whether it left at all."""

    result: Result | None
    words: str
    sent: bool = True

    @property
    def succeeded(self) -> bool:
        """The agent did it."""
        return self.result is not None and self.result.status == "succeeded"

    @property
    def was_rejected(self) -> bool:
        """The agent refused it before touching anything."""
        return self.result is not None and self.result.status == "rejected"

    @property
    def is_absent(self) -> bool:
        """Nothing of it exists: the agent said so, or the command never left."""
        return (self.result is not None and self.result.resource_state == "absent") or not self.sent

    @property
    def value(self) -> dict[str, Any]:
        """The result's value, empty when there is none."""
        return self.result.value if self.result is not None else {}


class Conduct:
    """One operation under way."""

    def __init__(self, writer: LedgerWriter, reach: Reach) -> None:
        self._writer = writer
        self.reach = reach

    @property
    def operation(self) -> Operation:
        """The operation as it was decided."""
        return self._writer.operation

    @property
    def by(self) -> str:
        """Who asked for it."""
        return self._writer.operation.by

    def op_id(self, what: str) -> OpId:
        """The id of one of its commands: the same after a restart, so that an agent acts on it once."""
        return OpId(f"{self._writer.operation.op_id}-{what}")

    def expect(self, fact: Fact) -> Expect:
        """What must hold at a host when its reservation arrives: all that the plan relied on."""
        return Expect(agent_epoch=fact.agent_epoch, revision=fact.revision)

    def has_step(self, what: str, target: str | None = None) -> bool:
        """Whether the ledger has such a step, from this process or an earlier owner."""
        return any(step.what == what and target in (None, step.target) for step in self._writer.steps)

    def words_of(self, what: str) -> str:
        """The words of the first such step, empty when there is none."""
        return next((step.words for step in self._writer.steps if step.what == what), "")

    def step(
        self,
        target: str,
        what: str,
        words: str,
        *,
        lines: tuple[str, ...] = (),
        phase: str | None = None,
        unknown: int | None = None,
    ) -> None:
        """Write one step down, synced before anything that follows it."""
        self._append(target, what, words, lines=lines, phase=phase, unknown=unknown)

    def end(self, code: int, words: str, lines: tuple[str, ...] = ()) -> int:
        """Write the end down and return its exit code."""
        failpoint("operation.before_end")
        return self._close(ENDED, code, words, lines)

    def halt(self, code: int, words: str, lines: tuple[str, ...] = ()) -> int:
        """Write down why it stops here, for somebody to resume, and return its exit code."""
        self._writer.halt(words, code, lines)
        return code

    def _close(self, what: str, code: int, words: str, lines: tuple[str, ...]) -> int:
        self._append(self.operation.subject, what, words, lines=lines, exit_code=code)
        return code

    def _append(self, target: str, what: str, words: str, **fields: Any) -> None:
        self._writer.append(Step(at_unix_ms=now_unix_ms(), target=target, what=what, words=words, **fields))

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that was written down, by this process or an earlier owner."""
        return tuple(self._writer.steps)

    async def connect(self, hosts: set[HostId]) -> dict[HostId, str]:
        """Wait for these hosts; returns those that are not live, with the reason."""
        self.step(self.operation.subject, "connect", f"connecting to {', '.join(sorted(hosts))}", phase="connecting")
        await self.reach.until(
            lambda state: all(state.hosts[h].state is HostState.LIVE for h in hosts), CONNECT_SECONDS
        )
        views = self.reach.state.hosts
        return {host: views[host].words for host in sorted(hosts) if views[host].state is not HostState.LIVE}

    def is_live(self, host: HostId) -> bool:
        """Whether the host's link is up now."""
        return self.reach.state.hosts[host].state is HostState.LIVE

    async def ask(self, host: HostId, command: Command, seconds: float) -> Outcome:
        """Ask one host and hear it out, over lost connections too, for at most ``seconds``."""
        try:
            result = await ask_until_known(self.reach.links[host], command, seconds)
        except AnswerUnknown as error:
            return Outcome(None, str(error), error.sent)
        except Refusal as error:
            rejected = Result(status="rejected", resource_state="absent", first_error=f"{error.code}: {error}")
            return Outcome(rejected, rejected.first_error)
        words = result.first_error or result.status
        if result.cleanup_error:
            words += f"; cleaning up: {result.cleanup_error}"
        return Outcome(result, words)
