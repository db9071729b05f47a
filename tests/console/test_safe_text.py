"""Nothing that a host says can steer the terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from console.safe_text import LONGEST_BYTES, SafeText, ascii_only, cut, safe_text, width_of

_ANY = st.text(st.characters(codec=None), max_size=200)


def _is_hidden(character: str) -> bool:
    """The oracle: what Unicode itself calls control, format, surrogate or separator."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


@settings(max_examples=300, deadline=None)
@given(_ANY)
@example("\x1b]52;c;AAAA\x07")
@example("\x9b31m")
@example("\ud800")
@example("\u202e\u2066\u200b\ufeff")
def test_no_hidden_character_is_left_and_every_other_one_stays(text: str) -> None:
    safe = safe_text(text)
    assert isinstance(safe, SafeText)
    assert not [each for each in safe if _is_hidden(each)]
    safe.encode()
    visible = [each for each in text if not _is_hidden(each)]
    kept = iter(safe)
    plain = [each for each in visible if unicodedata.category(each) not in ("Mn", "Lo", "Cn")]
    assert all(each in kept for each in plain), "a visible character was lost, or the order changed"


@settings(max_examples=100, deadline=None)
@given(_ANY, st.integers(0, 60))
def test_a_cut_never_takes_more_cells_than_it_may(text: str, cells: int) -> None:
    safe = safe_text(text, cells=cells)
    assert width_of(safe) <= cells


@given(_ANY)
@settings(max_examples=100, deadline=None)
def test_making_safe_text_safe_again_changes_nothing(text: str) -> None:
    assert safe_text(safe_text(text)) == safe_text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "<1b>[2J"),
        ("a\nb\r", "a<0a>b<0d>"),
        ("a\tb", "a    b"),
        ("\x7f\x80\x9b", "<7f><80><9b>"),
        ("\u2028\u202e\u200d", "<2028><202e><200d>"),
        ("[bold]no[/x]", "[bold]no[/x]"),
        ("Grüße 模型", "Grüße 模型"),
    ],
)
def test_an_unsafe_character_is_shown_by_its_number(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_a_megabyte_is_cut_at_four_kibibytes_with_an_ellipsis() -> None:
    for text in ("x" * 1_000_000, "模" * 1_000_000, "\x1b" * 1_000_000):
        safe = safe_text(text)
        assert len(safe.encode()) <= LONGEST_BYTES
        assert safe.endswith("…")


def test_without_unicode_a_sign_has_its_twin_and_anything_else_a_question_mark_a_cell() -> None:
    assert ascii_only(safe_text("n_batch × 4…")) == "n_batch x 4~"
    assert ascii_only(safe_text("Grüße 模型")) == "Gr??e ????"


def test_wide_characters_count_twice_when_a_text_is_cut() -> None:
    assert cut("模型模型", 5) == "模型…"
    assert width_of("模型") == 4
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcdef", 0) == ""
