"""One way to say a length of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.durations import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.000_008, "under 0.1 ms"),
        (0.000_3, "0.3 ms"),
        (0.041, "41 ms"),
        (0.099_6, "0.1 s"),
        (0.41, "0.4 s"),
        (2, "2 s"),
        (9.96, "10 s"),
        (41.4, "41 s"),
        (59.7, "1 min"),
        (370, "6 min 10 s"),
        (7200, "2 h"),
        (11_100, "3 h 05 min"),
        (86_400, "1 d"),
        (108_000, "1 d 6 h"),
        (30 * 86_400, "30 d"),
        (-18, "-18 s"),
    ],
)
def test_a_length_of_time_is_said_as_people_say_it(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@given(st.floats(1e-12, 1e9))
def test_what_is_not_nothing_never_reads_as_nothing(seconds: float) -> None:
    words = duration(seconds)
    assert not words.startswith("0 ")
    assert not words.startswith("0.0 ")
    assert len(words) <= 14
