"""Names and ranks in words: in the order in which people count, a few of many, which was meant, what several say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

SHOWN_NAMES = 8
"""So many names of a list are said; a fleet may have a thousand."""
_SHOWN_WORDS = 6
Name = TypeVar("Name", bound=str)
_NUMBER = re.compile("([0-9]+)")
_RANK = re.compile("rank ([0-9]{1,9})(?= on |: )")


@lru_cache(maxsize=8192)
def by_number(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """The sort key of names with numbers in them: ``tiny-2`` before ``tiny-10``."""
    parts = _NUMBER.split(name)
    digits = [each.lstrip("0") for each in parts]
    return tuple((len(digits[at]), digits[at]) if at % 2 else (0, each) for at, each in enumerate(parts)), name


def few_of(names: Collection[str], shown: int = SHOWN_NAMES) -> str:
    """The first names of a list, and how many there are besides: ``a, b and 7 more``; ``none`` of an empty one."""
    listed = ", ".join(list(names)[:shown]) or "none"
    return f"{listed} and {len(names) - shown} more" if len(names) > shown else listed


def nearest(asked: str, known: Iterable[str]) -> str:
    """The known name that was probably meant; empty when none is near."""
    import difflib  # 3 ms that only a wrong name needs

    return next(iter(difflib.get_close_matches(asked, list(known), n=1)), "")


def no_such(what: str, asked: str, known: Iterable[str]) -> str:
    """Why a name is refused: ``there is no host 'gpu-9'; known: gpu-1, gpu-2. Did you mean gpu-1?``."""
    names = sorted(known, key=by_number)
    near = nearest(asked, names)
    return f"there is no {what} {asked!r}; known: {few_of(names)}" + (f". Did you mean {near}?" if near else "")


def ranks_together(sentences: Iterable[str]) -> list[str]:
    """Sentences, those that say the same of one rank each as one: ``ranks 0-3, 7 on gpu-1: unreachable``."""
    ranks: dict[str, list[int]] = {}
    for each in sentences:
        found = _RANK.match(each)
        ranks.setdefault(each[found.end() :] if found else each, []).extend([int(found[1])] if found else [])
    return [f"{_ranks(numbers)}{rest}" for rest, numbers in ranks.items()]


def _ranks(numbers: Collection[int]) -> str:
    if not numbers:
        return ""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {listed}" if listed.isdigit() else f"ranks {listed}"


def said_by(words: Mapping[Name, str]) -> str:
    """What each of several says, the same words once: ``a, b and 7 more: no such file; c: cordoned by alice``."""
    speakers: dict[str, list[Name]] = {}
    for name, each in words.items():
        speakers.setdefault(each, []).append(name)
    said = [f"{few_of(names, 3)}: {each}" for each, names in list(speakers.items())[:_SHOWN_WORDS]]
    rest = sum(len(names) for names in list(speakers.values())[_SHOWN_WORDS:])
    return "; ".join([*said, f"and {rest} more say other things"] if rest else said)
