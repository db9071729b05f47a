"""How a command ends: the exit codes, and the one error that carries them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

DONE = 0
"""Done, or nothing to do."""
PENDING = 1
"""Changes are pending: the plan can be loaded."""
REFUSED = 2
"""Refused, or asked in a way that cannot be understood."""
UNKNOWN = 3
"""Timed out, or the outcome is unknown. Never to be read as failed."""
UNREACHABLE = 4
"""A host was not reached, so that the answer is incomplete or missing."""
FAILED = 5
"""It ran and failed."""
BUG = 70
"""A bug of ringtop."""
INTERRUPTED = 130
"""Interrupted by a person; what goes on all the same is said."""

KINDS = {
    PENDING: "pending",
    REFUSED: "refused",
    UNKNOWN: "unknown",
    UNREACHABLE: "unreachable",
    FAILED: "failed",
    BUG: "bug",
    INTERRUPTED: "interrupted",
}


class CommandFailed(Exception):
    """The command ends here with this exit code; ``words`` are for a person, ``more`` goes into ``--json``."""

    def __init__(self, exit_code: int, words: str, **more: Any) -> None:
        super().__init__(words)
        self.exit_code = exit_code
        self.words = words
        self.more = more

    @property
    def tree(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        kind = KINDS.get(self.exit_code, "failed")
        return {"error": {"kind": kind, "exit_code": self.exit_code, "words": self.words, **self.more}}


def refused(words: str, **more: Any) -> CommandFailed:
    """The error of a request that is refused or badly put."""
    return CommandFailed(REFUSED, words, **more)


def no_such(what: str, asked: str, known: Iterable[str]) -> CommandFailed:
    """The error of a name that is not there: what was asked, what exists, and the one that was probably meant."""
    from backend import api  # only a wrong name needs it

    names = list(known)
    return refused(api.no_such(what, asked, names), asked=asked, known=names)


def the_one(what: str, asked: str, known: Iterable[str]) -> str:
    """The one id that this is, or that begins with it. Raises with those that it may be, or with those that exist."""
    names = list(known)
    if asked in names:
        return asked
    found = [name for name in names if asked and name.startswith(asked)]
    if len(found) > 1:
        from backend.api import few_of

        raise refused(f"{what} {asked!r} may be {few_of(found)}; write more of it", asked=asked, known=found)
    if not found:
        raise no_such(what, asked, names)
    return found[0]
