"""What a guard saw: one thing, both values, and what to do about it."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One thing a guard saw. A ``refuse`` cannot be confirmed away; a ``warn`` can.

    ``severity`` is one of the two, or a word that only a newer agent knows: that counts as a refusal.
    ``expected`` and ``found`` are the two values, each with where it came from; ``remedy`` is what to do.
    """

    id: str
    severity: str
    subject: str
    expected: str
    found: str
    remedy: str

    @property
    def is_refusal(self) -> bool:
        """It stops the load."""
        return self.severity != "warn"

    @property
    def words(self) -> str:
        """The finding as one line for logs and one-shot output."""
        return f"{self.severity} {self.id} {self.subject}: {self.found}; expected {self.expected}. {self.remedy}"


def refuse(id: str, subject: str, *, expected: object, found: object, remedy: str) -> Finding:
    """A finding that stops the load."""
    return Finding(id, "refuse", subject, str(expected), str(found), remedy)


def warn(id: str, subject: str, *, expected: object, found: object, remedy: str) -> Finding:
    """A finding that a person may confirm away."""
    return Finding(id, "warn", subject, str(expected), str(found), remedy)


def has_refusal(findings: tuple[Finding, ...] | list[Finding]) -> bool:
    """Whether any of the findings stops the load."""
    return any(finding.is_refusal for finding in findings)
