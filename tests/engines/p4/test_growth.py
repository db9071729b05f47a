"""How a journal's growth is told: per hour, per 1000 tokens of ours, and not again while nothing grows."""

from __future__ import annotations

from backend.engines.p4.growth import Growth


def test_growth_is_a_rate_once_a_minute_was_seen() -> None:
    growth = Growth()
    growth.see(0.0, 100, 1000)
    assert growth.figure is None, "one look says nothing of growth"
    growth.see(10.0, 110, 2000)
    first = growth.figure
    assert first is not None
    assert (first.files, first.bytes, first.seconds, first.files_per_hour) == (10, 1000, 10, None)
    growth.see(60.0, 110, 2000)
    assert growth.figure is not None
    assert growth.figure.files_per_hour == 600, "told once a minute was seen, though it rests"
    growth.see(120.0, 200, 7000)
    later = growth.figure
    assert later is not None
    assert (later.files_per_hour, later.bytes_per_hour, later.tokens) == (3000, 180_000, 0)
    assert later.files_per_1000_tokens is None, "unknown, not 0"


def test_only_the_last_hour_counts_and_a_resting_journal_is_seldom_told_anew() -> None:
    growth = Growth()
    growth.see(0.0, 0, 0)
    growth.see(60.0, 600, 6000)
    told = [growth.figure]
    for at in range(70, 7200, 10):
        growth.see(float(at), 600, 6000)
        if growth.figure != told[-1]:
            told.append(growth.figure)
    assert told[-1] is not None
    assert (told[-1].files, told[-1].files_per_hour) == (0, 0)
    assert len(told) < 14, "every ten minutes at the most"
    growth.see(7200.0, 601, 6010)
    assert growth.figure is not None
    assert growth.figure.files == 1, "what grows is told at once"


def test_our_own_tokens_give_the_growth_per_thousand() -> None:
    growth = Growth()
    growth.see(0.0, 0, 0)
    growth.see(100.0, 40, 4000)
    growth.count(2, 30, 3000)
    growth.count(8, 10, 1000)
    growth.count(0, 10, 1000)
    assert growth.figure is not None
    assert (growth.figure.tokens, growth.figure.files_per_1000_tokens) == (10, 4000)
    assert growth.figure.bytes_per_1000_tokens == 400_000


def test_a_journal_that_was_moved_aside_begins_anew() -> None:
    growth = Growth()
    growth.see(0.0, 0, 0)
    growth.see(100.0, 4000, 4000)
    growth.see(110.0, 3, 30)
    assert growth.figure is None
    growth.see(120.0, None, None)
    growth.see(130.0, 5, 50)
    assert growth.figure is not None
    assert growth.figure.files == 2
