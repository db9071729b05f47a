"""What a table cuts stands whole below it, the worst first."""

from __future__ import annotations

from console.render.cells import Fit, Row, cell, line_text
from console.render.unfold import MOST_LINES, unfolded
from console.safe_text import width_of

LONG = "signal 9 (killed) after 41 s: alloc failed: 61 GiB were asked for and 15 GiB are free"
FIT = Fit((8, 10), 2)


def row(key: str, words: str, style: str = "note") -> Row:
    return Row(key, (cell(key), cell(words, style)))


def whole(*rows: Row, cursor: str | None = None, width: int = 40) -> list[str]:
    return [line_text(each) for each in unfolded(rows, FIT, cursor, width).lines]


def test_what_fits_is_not_said_twice() -> None:
    assert whole(row("tiny-1/0", "ready", "alarm"), cursor="tiny-1/0") == []


def test_cut_words_of_what_is_wrong_stand_whole_behind_their_key_and_no_line_is_too_wide() -> None:
    for width in (30, 41, 80, 200):
        lines = whole(row("tiny-1/2", LONG, "alarm"), width=width)
        assert lines[0].startswith(" tiny-1/2  signal 9")
        assert " ".join(" ".join(lines).split()) == f"tiny-1/2 {LONG}"
        assert max(map(width_of, lines)) <= width


def test_the_worst_comes_first_then_what_warns_then_the_row_under_the_cursor_and_the_rest_stays_cut() -> None:
    rows = (
        row("a", "quiet words of the cursor"),
        row("b", "warning words", "state.warn"),
        row("c", "other quiet words"),
        row("d", "the words of an alarm", "state.alarm"),
    )
    assert [text.split()[0] for text in whole(*rows, cursor="a", width=60)] == ["d", "b", "a"]


def test_of_two_alarms_the_one_under_the_cursor_comes_first() -> None:
    rows = (row("a", LONG, "alarm"), row("b", LONG, "alarm"))
    assert whole(*rows, cursor="b", width=200)[0].startswith(" b ")
    assert whole(*rows, cursor="c", width=200)[0].startswith(" a ")


def test_the_lines_of_what_is_wrong_are_counted_and_those_of_a_quiet_cursor_are_not() -> None:
    rows = (row("a", LONG), row("b", "warning words", "state.warn"))
    found = unfolded(rows, FIT, "a", 40)
    assert (found.loud, len(found.lines) > 1) == (1, True)


def test_however_much_is_wrong_no_more_is_written_than_a_panel_can_show() -> None:
    rows = tuple(row(f"r{number}", LONG, "alarm") for number in range(1000))
    assert MOST_LINES <= len(unfolded(rows, FIT, None, 40).lines) < MOST_LINES + 5
