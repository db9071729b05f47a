"""What a guard saw: one thing, both values, and what to do about it."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["refuse", "warn"]


class Finding(msgspec.Struct, frozen=True):
    """One thing a guard saw. A ``refuse`` cannot be confirmed away; a ``warn`` can.

    ``expected`` and ``found`` are the two values, each with where it came from; ``remedy`` is what to do.
    """

    id: str
    severity: Severity
    subject: str
    expected: str
    found: str
    remedy: str

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
    return any(finding.severity == "refuse" for finding in findings)
