"""How a request ends that cannot be done."""

from __future__ import annotations


class CannotAnswer(Exception):
    """A request ends here: its exit code, and words for a person."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class SubmitRefused(Exception):
    """A request was not taken; the message says why and what to do."""
