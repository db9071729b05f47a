"""The few signs that are not ASCII, and what stands for each where a terminal has only ASCII."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. Equal is ``=`` in both."""

    differs: str
    rule: str
    ellipsis: str
    arrow: str
    down: str
    broken: str
    back: str
    cursor: str


UNICODE = Glyphs(
    differs="≠",
    rule="─",
    ellipsis="…",
    arrow="─▶",
    down="│",
    broken="╳",
    back="└─▶",
    cursor=">",
)
ASCII = Glyphs(
    differs="!=",
    rule="-",
    ellipsis="~",
    arrow="->",
    down="|",
    broken="X",
    back="`->",
    cursor=">",
)
