"""Counters become speed and age only where the engine said enough; everything else stays unknown."""

from __future__ import annotations

import msgspec

from backend.engines.llamacpp.census import GivenUpCanary, Reading, Track, follow, missed
from backend.engines.llamacpp.metrics import Census, SlotSeen, parse_metrics, read_census, read_slots
from tests.engines.llamacpp.lines import METRICS, SLOTS

IDLE = Census(0, 0, 0, 0)


def reading(
    at: float, processing: int, ended: int, *slots: tuple[int, int], decodes: int = 0, canaries: int = 0
) -> Reading:
    busy = tuple(SlotSeen(index, task, decoded) for index, (task, decoded) in enumerate(slots))
    return Reading(at, Census(processing, 0, ended, decodes), busy, canaries)


def test_real_metrics_are_read() -> None:
    assert read_census(METRICS) == Census(2, 3, 1500, 1500)
    assert parse_metrics(METRICS)["llamacpp:tokens_predicted_seconds_total"] == 2.65793


def test_what_is_missing_or_no_number_is_unknown() -> None:
    assert read_census("") == Census(None, None, None, None)
    assert not read_census("").is_idle
    assert parse_metrics('a{x="1"} 1\nb NaN\nc +Inf\nd words\ne\nf 3 1700000000') == {"f": 3.0}


def test_only_busy_slots_are_read_and_another_shape_is_unknown() -> None:
    assert read_slots(SLOTS) == (SlotSeen(2, 7, 254),)
    assert read_slots({"error": "no"}) is None
    assert read_slots([{"id": 0}]) is None
    assert read_slots([{"id": 0, "is_processing": True, "id_task": 1}]) is None
    older = [{"id": 0, "is_processing": True, "id_task": 1, "next_token": {"n_decoded": 5}}]
    assert read_slots(older) == (SlotSeen(0, 1, 5),)


def test_speed_counts_tokens_of_requests_that_still_run() -> None:
    track, _ = follow(Track(), reading(0.0, 0, 0))
    track, _ = follow(track, reading(1.0, 1, 0, (7, 10)))
    track, progress = follow(track, reading(2.0, 1, 0, (7, 60)))
    assert progress.tokens_per_second == 50.0
    _, progress = follow(track, reading(3.0, 0, 100))
    assert (progress.tokens_per_second, progress.tokens_generated) == (40.0, 100)


def test_canaries_are_no_tokens() -> None:
    track, _ = follow(Track(), reading(0.0, 0, 5, canaries=5))
    _, progress = follow(track, reading(1.0, 0, 6, canaries=6))
    assert (progress.tokens_per_second, progress.tokens_generated) == (0.0, 0)


def test_speed_is_unknown_after_a_cut_request_or_a_missed_reading() -> None:
    track, first = follow(Track(), reading(0.0, 1, 0, (7, 100)))
    assert first.tokens_per_second is None
    _, cut = follow(track, reading(1.0, 0, 0))
    assert cut.tokens_per_second is None
    _, after_gap = follow(missed(track), reading(9.0, 1, 0, (7, 200)))
    assert after_gap.tokens_per_second is None


def test_without_slots_tokens_in_flight_are_unknown() -> None:
    track, _ = follow(Track(), reading(0.0, 0, 0))
    blind = msgspec.structs.replace(reading(1.0, 1, 0), slots=None)
    _, progress = follow(track, blind)
    assert (progress.tokens_per_second, progress.tokens_generated, progress.oldest_seconds) == (None, None, None)


def test_the_oldest_request_is_known_only_when_its_start_was_watched() -> None:
    track, _ = follow(Track(), reading(0.0, 1, 0, (7, 1)))
    track, progress = follow(track, reading(5.0, 2, 0, (7, 9), (8, 1)))
    assert progress.oldest_seconds is None, "7 ran before the first look"
    track, progress = follow(track, reading(6.0, 1, 10, (8, 2)))
    assert progress.oldest_seconds == 1.0
    queued = Reading(7.0, Census(1, 1, 10, 0), (SlotSeen(0, 8, 3),), 0)
    track, _ = follow(track, queued)
    _, progress = follow(track, reading(8.0, 1, 20, (9, 1)))
    assert progress.oldest_seconds is None, "9 may have waited in the queue"


def test_requests_without_a_decode_are_a_stall_and_an_idle_engine_is_not() -> None:
    track, _ = follow(Track(), reading(0.0, 1, 0, (7, 1), decodes=3))
    track, progress = follow(track, reading(12.0, 1, 0, (7, 1), decodes=3))
    assert progress.stalled_seconds == 12.0
    track, progress = follow(track, reading(13.0, 1, 0, (7, 2), decodes=4))
    assert progress.stalled_seconds == 0.0
    _, progress = follow(track, reading(60.0, 0, 9, decodes=4))
    assert progress.stalled_seconds == 0.0


def test_a_canary_that_was_given_up_is_no_work_in_flight() -> None:
    canary = GivenUpCanary(slot=2)
    assert canary.found_in(None) == canary
    assert canary.found_in(()) is None
    found = canary.found_in((SlotSeen(0, 5, 1), SlotSeen(2, 9, 0)))
    assert found == GivenUpCanary(2, 9)
    census = msgspec.structs.replace(IDLE, processing=2)
    users, busy = found.taken_out(census, (SlotSeen(0, 5, 1), SlotSeen(2, 9, 0)))
    assert (users.processing, busy) == (1, (SlotSeen(0, 5, 1),))
    assert found.found_in((SlotSeen(2, 10, 0),)) is None, "the spare slot has another request now"
