"""An engine's allowlist of options: what a profile may set, what it may not, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from backend.contract.findings import Finding, refuse
from backend.contract.naming import nearest
from backend.contract.plans import Profile


class Option(msgspec.Struct, frozen=True):
    """One allowed option: its flag, its default, and its choices, its pattern, or its inclusive range of integers.

    An empty default means that the option is left out unless it is set. ``flag`` is empty for what becomes no flag.
    """

    flag: str
    default: str | int
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    pattern: str = ""
    shape: str = ""

    @property
    def allowed(self) -> str:
        """The legal values in words."""
        if self.pattern:
            return self.shape
        return ", ".join(self.choices) if self.choices else f"an integer of {self.least}..{self.most}"

    def takes(self, value: Any) -> bool:
        """Whether a value is legal. ``True`` is no integer here."""
        if self.pattern:
            return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None
        if self.choices:
            return isinstance(value, str) and value in self.choices
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most


def check_allowlist(
    engine: str, options: Mapping[str, Option], refused: Mapping[str, str], profile: Profile
) -> tuple[Finding, ...]:
    """One finding per option of a profile that is not allowed, not known, or has a value outside its range."""
    found: list[Finding] = []
    for name, value in sorted(profile.options.items()):
        subject = f"options.{name}"
        option = options.get(name)
        if name in refused:
            found.append(
                refuse(
                    "options.refused",
                    subject,
                    expected="an option that a profile may set",
                    found=f"{name} = {value!r} in the profile",
                    remedy=f"Remove it: {refused[name]}.",
                )
            )
        elif option is None:
            near = nearest(name, options)
            hint = f"Did you mean {near}? " if near else ""
            found.append(
                refuse(
                    "options.unknown",
                    subject,
                    expected=f"one of {', '.join(options)}",
                    found=f"{name} = {value!r} in the profile",
                    remedy=f"{hint}Remove it, or name one that {engine} knows.",
                )
            )
        elif not option.takes(value):
            found.append(
                refuse(
                    "options.value",
                    subject,
                    expected=option.allowed,
                    found=f"{value!r} in the profile",
                    remedy=f"Give {name} a legal value, or leave it out for {option.default or 'none'}.",
                )
            )
    return tuple(found)


def value_of(options: Mapping[str, Option], profile: Profile, name: str) -> str | int:
    """The value of an allowed option, or its default. Raises ValueError for a value outside its range."""
    option = options[name]
    value = profile.options.get(name, option.default)
    if name in profile.options and not option.takes(value):
        raise ValueError(f"option {name} is {value!r}; legal is {option.allowed}")
    return value  # type: ignore[no-any-return]  # takes() has proven it


def flags_of(options: Mapping[str, Option], profile: Profile) -> tuple[str, ...]:
    """Every allowed option that has a flag and a value, as flags: defaults differ between builds, so they are set.

    Raises ValueError for an option that is not on the allowlist, whoever sent the plan.
    """
    for name in profile.options:
        if name not in options:
            raise ValueError(f"option {name!r} is not one of {', '.join(options)}")
    values = ((option.flag, str(value_of(options, profile, name))) for name, option in options.items())
    return tuple(word for flag, value in values if flag and value for word in (flag, value))
