"""Every panel of the main screen keeps rows to be useful with."""

from __future__ import annotations

import pytest

from console.render.fitting import lower_height, upper_height


@pytest.mark.parametrize(
    ("lines", "screen", "height"), [(0, 24, 5), (3, 24, 5), (6, 24, 7), (40, 24, 10), (40, 50, 21)]
)
def test_replicas_take_what_they_need_up_to_their_share(lines: int, screen: int, height: int) -> None:
    assert upper_height(lines, screen) == height


@pytest.mark.parametrize(
    ("lines", "room", "height"), [(3, 17, 0), (5, 17, 0), (6, 17, 8), (8, 17, 10), (40, 17, 11), (40, 4, 0)]
)
def test_the_panel_below_takes_more_than_its_share_only_for_words_and_leaves_the_journal_its_rows(
    lines: int, room: int, height: int
) -> None:
    assert lower_height(lines, room) == height
