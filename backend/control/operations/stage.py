"""One stage of an operation that is made of others: it keeps its own steps apart in the one ledger file."""

from __future__ import annotations

from backend.contract.commands import Expect
from backend.contract.plans import Fact
from backend.contract.words import OpId
from backend.control.ledger import Operation, Step
from backend.control.operations.conduct import Conduct

BEGINS = "stage "
"""How the step is called with which a stage begins, in front of its name; its last step is ``NAME ended``."""


class Stage(Conduct):
    """A conduct for one part of a longer operation, which sees ``operation`` and only the steps of its own stage.

    ``prefix`` keeps the ids of its commands apart from those of the other stages. With ``expects_revision`` False the
    hosts may have decided something since the plan was made: what the stages before this one did to them.
    """

    def __init__(
        self, whole: Conduct, name: str, operation: Operation, *, prefix: str = "", expects_revision: bool = True
    ) -> None:
        super().__init__(whole._writer, whole.reach)
        self.name = name
        self._operation = operation
        self._prefix = prefix
        self._expects_revision = expects_revision

    @property
    def operation(self) -> Operation:
        """The operation as this stage is to see it."""
        return self._operation

    def op_id(self, what: str) -> OpId:
        """The id of one of its commands, with this stage's prefix."""
        return super().op_id(f"{self._prefix}{what}")

    def expect(self, fact: Fact) -> Expect:
        """What must hold at a host; the revision only where nothing of ours has moved it."""
        whole = super().expect(fact)
        return whole if self._expects_revision else Expect(agent_epoch=whole.agent_epoch)

    @property
    def has_begun(self) -> bool:
        """The ledger has its first step."""
        return any(step.what == f"{BEGINS}{self.name}" for step in self._writer.steps)

    @property
    def ended(self) -> tuple[int, str] | None:
        """Its exit code and words, once it has ended."""
        last = next((step for step in self._own_steps() if step.what == f"{self.name} ended"), None)
        return (last.exit_code or 0, last.words) if last is not None else None

    def begin(self, words: str) -> None:
        """Write its first step down."""
        self.step(self._operation.subject, f"{BEGINS}{self.name}", words, unknown=0)

    def has_step(self, what: str, target: str | None = None) -> bool:
        """Whether this stage has such a step, from this process or an earlier owner."""
        return any(step.what == what and target in (None, step.target) for step in self._own_steps())

    def words_of(self, what: str) -> str:
        """The words of the first such step of this stage, empty when there is none."""
        return next((step.words for step in self._own_steps() if step.what == what), "")

    def end(self, code: int, words: str, lines: tuple[str, ...] = ()) -> int:
        """Write the end of this stage down and return its code; the operation goes on."""
        return self._close(f"{self.name} ended", code, words, lines)

    def _own_steps(self) -> list[Step]:
        """The steps from its beginning to the beginning of another stage."""
        own: list[Step] = []
        inside = False
        for step in self._writer.steps:
            if step.what.startswith(BEGINS):
                inside = step.what == f"{BEGINS}{self.name}"
            if inside:
                own.append(step)
        return own
