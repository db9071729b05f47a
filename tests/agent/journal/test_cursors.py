"""A console's cursor is honoured, or told which of two things is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.journal.worlds import append_each, closed_with, open_journal, record, segments


async def test_a_cursor_goes_on_with_the_record_after_it(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    await journal.append([record(1), record(2), record(3)]).durable
    for seq in range(4):
        outcome = journal.resolve(journal.cursor(seq))
        assert (outcome.outcome, outcome.from_seq) == ("ok", seq)
        assert [r.seq for r in journal.read(outcome.from_seq, 9)] == [n for n in (1, 2, 3) if n > seq]
    await journal.close()


async def test_a_cursor_outlives_the_agent(tmp_path: Path) -> None:
    await closed_with(tmp_path, 5)
    journal = open_journal(tmp_path)
    cursors = [journal.cursor(seq) for seq in range(6)]
    await journal.close()
    again = open_journal(tmp_path)
    await append_each(again, range(6, 9))
    assert [again.resolve(cursor).from_seq for cursor in cursors] == [0, 1, 2, 3, 4, 5]
    await again.close()


async def test_a_cursor_beyond_the_head_or_of_another_journal_diverged(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "one")
    other = open_journal(tmp_path / "two")
    await append_each(journal, [1, 2])
    await append_each(other, [1])
    ahead = journal.cursor(2).replace(":2:", ":3:")
    assert "went backwards" in journal.resolve(ahead).words
    assert journal.resolve(ahead).outcome == "diverged"
    assert journal.resolve(other.cursor(1)).outcome == "diverged"
    await journal.close()
    await other.close()


async def test_a_cursor_with_another_chain_or_epoch_diverged(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    await append_each(journal, [1, 2])
    name, epoch, seq, chain = journal.cursor(2).split(":")
    other_chain = f"{int(chain, 16) ^ 1:08x}"
    for cursor in (f"{name}:{epoch}:{seq}:{other_chain}", f"{name}:9:{seq}:{chain}"):
        outcome = journal.resolve(cursor)
        assert (outcome.outcome, outcome.journal_epoch) == ("diverged", 1)
    await journal.close()


async def test_cursors_of_the_old_epoch_hold_up_to_where_it_ended(tmp_path: Path) -> None:
    await closed_with(tmp_path, 3)
    (segment,) = segments(tmp_path)
    before = open_journal(tmp_path)
    kept = [before.cursor(seq) for seq in range(4)]
    await before.close()
    data = segment.read_bytes()
    end = len(data.rstrip(b"\0")) + 7 & ~7
    segment.write_bytes(data[:end] + b"torn")
    journal = open_journal(tmp_path)
    assert journal.journal_epoch == 2
    assert [journal.resolve(cursor).from_seq for cursor in kept] == [0, 1, 2, 3]
    old_four = f"{journal.journal_id}:1:4:{journal.cursor(4).split(':')[3]}"
    assert journal.resolve(old_four).outcome == "diverged"
    assert journal.resolve(journal.cursor(4)).outcome == "ok"
    await journal.close()


@pytest.mark.parametrize("text", ["", "a:b:c:d", "f" * 32 + ":1:99999999999999999999:00000000", "x" * 9999])
async def test_a_text_that_is_no_cursor_is_refused(tmp_path: Path, text: str) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(ValueError, match="cursor"):
        journal.resolve(text)
    await journal.close()


async def test_no_cursor_is_made_for_a_record_that_is_not_there(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(ValueError, match="holds"):
        journal.cursor(1)
    await journal.close()
