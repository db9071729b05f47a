"""What a person must have confirmed, and how long they may let something take, checked before anything is done."""

from __future__ import annotations

from backend.contract.commands import LONGEST_HOLD_SECONDS
from backend.contract.numbers import BadValue, check_seconds
from backend.control.cannot_answer import CannotAnswer
from backend.control.exit_codes import REFUSED


def check_confirmed(confirmed: str, says: str, gives: str, *, what: str, again: str) -> None:
    """Raise CannotAnswer unless what was confirmed is the digest that ``what`` says and that its content gives.

    ``again`` says how it is made anew.
    """
    if not confirmed == says == gives:
        raise CannotAnswer(
            REFUSED,
            f"confirmed was {confirmed[:8] or 'nothing'}, the {what} says {says[:8] or 'nothing'} and its content "
            f"gives {gives[:8]}. {again} and confirm what it shows.",
        )


def check_deadline(seconds: float, name: str = "the deadline") -> None:
    """Raise CannotAnswer for a length of time that nobody can wait for."""
    try:
        check_seconds(name, seconds, most=LONGEST_HOLD_SECONDS)
    except BadValue as error:
        raise CannotAnswer(REFUSED, str(error)) from error
