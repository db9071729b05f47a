"""One formatter per kind of value."""

from __future__ import annotations

from datetime import UTC

import pytest

from console.render.cells import Column, Look, Row, Table, cell, fit_columns, natural_widths, right, text_lines
from console.render.journal import matcher
from console.render.values import (
    age_note,
    ago,
    agreement,
    clock,
    coarse,
    countdown,
    duration,
    generation,
    number,
    rate,
    size,
)
from console.spans import span_within

LOOK = Look(zone=UTC, now=1000.0, now_ms=1_764_417_871_000)


def test_unknown_is_a_question_mark_and_never_zero() -> None:
    assert {number(None), rate(None), size(None), duration(None), countdown(None), generation(None, LOOK)} == {"?"}
    assert agreement("unknown", "5", LOOK).text == "?"
    assert number(0) == "0"


def test_numbers_are_grouped_and_bytes_have_one_decimal() -> None:
    assert number(137_935_244) == "137 935 244"
    assert size(int(9.8 * 2**30)) == "9.8G"
    assert size(12) == "12B"


def test_a_generation_is_short_where_width_is_short() -> None:
    assert generation(1_764_412_800_123, LOOK) == "…0123"
    assert generation(1_764_412_800_123, Look(wide=True)) == "1764412800123"
    assert generation(7, LOOK) == "7"


@pytest.mark.parametrize(("left", "words"), [(102_900, "1:42"), (-5, "0:00"), (7_200_000, "2:00:00")])
def test_what_is_left_is_counted_down_in_hours_too(left: int, words: str) -> None:
    assert countdown(left) == words


def test_an_age_is_said_only_when_it_is_overdue_and_then_in_coarse_steps() -> None:
    assert age_note(990.0, LOOK) == ""
    assert age_note(0.0, LOOK) == ""
    assert age_note(980.0, LOOK) == "15 s old"
    assert age_note(981.5, LOOK) == "15 s old"
    assert coarse(59) == "30 s"
    assert coarse(200_000) == "2 d"
    assert ago(1_764_417_870_000, LOOK) == "just now"


def test_a_wall_clock_time_of_any_number_is_shown_and_never_raises() -> None:
    assert clock(1_764_417_871_000, LOOK) == "12:04:31"
    assert clock(2**63, LOOK) == "??:??:??"
    assert clock(None, LOOK) == "--:--:--"


def test_a_time_that_is_not_of_today_has_its_day_and_one_of_another_year_its_year() -> None:
    day = 86_400_000
    assert clock(LOOK.now_ms - day, LOOK) == "28 Nov 12:04:31"
    assert clock(LOOK.now_ms + 3 * day, LOOK, seconds=False) == "2 Dec 12:04"
    assert clock(LOOK.now_ms - 400 * day, LOOK, seconds=False) == "25 Oct 2024 12:04"
    assert clock(LOOK.now_ms - day, Look(zone=UTC)) == "12:04:31", "nobody said what day it is"


def test_equal_is_quiet_and_different_is_loud() -> None:
    assert agreement("equal", "1", LOOK) == cell("=", "quiet")
    assert agreement("differs", "1", LOOK) == cell("≠ 1", "alarm")


def test_columns_give_up_blanks_before_they_are_dropped_and_the_highest_number_goes_first() -> None:
    columns = (Column("AAAA"), Column("BBBB", drop=2), Column("CCCC", drop=1), Column("", flex=True, least=4))
    row = Row("k", (cell("aaaa"), cell("bbbb"), right("cccc"), cell("some words")))
    natural = natural_widths(Table(columns, (row,)))
    assert fit_columns(columns, natural, 40).widths == (4, 4, 4, 10)
    tight = fit_columns(columns, natural, 19)
    assert (tight.widths, tight.gap) == ((4, 4, 4, 4), 1)
    assert fit_columns(columns, natural, 15).widths[1] == 0


def test_a_table_as_text_aligns_and_says_when_it_is_empty() -> None:
    table = Table((Column("NAME"), Column("N", "right")), (Row("a", (cell("a"), right("10"))),))
    assert text_lines(table, 80) == ["NAME   N", "a     10"]
    assert text_lines(Table(table.columns, (), "Nothing."), 80)[-1] == "Nothing."


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2:00", 120), ("90", 90), ("1:00:00", 3600), ("30m", 1800), ("30d", 2_592_000), ("0", None), ("x", None),
     ("31d", None), ("999999:00:00", None), ("", None)],
)  # fmt: skip
def test_every_field_for_a_time_takes_the_same_words_and_no_more_than_thirty_days(
    text: str, seconds: float | None
) -> None:
    assert span_within(text) == seconds


def test_a_filter_wants_every_word_and_leaves_out_those_behind_a_mark() -> None:
    test = matcher("GPU-b !ready")
    assert test is not None
    assert test("gpu-b exited")
    assert not test("gpu-b ready")
    assert not test("gpu-a exited")
    assert matcher("  ! ") is None
