"""What a llama-server answers at ``/metrics`` and ``/slots``, as typed values. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

PREFIX = "llamacpp:"
MOST_COUNTED = 2**53
"""A float counts in ones up to here; what an engine says beyond it is no count, and could be no number on the wire."""


class Census(msgspec.Struct, frozen=True):
    """The engine's own count of open work and of tokens. None is unknown: the engine did not say it.

    ``tokens_predicted`` counts a request's tokens only when the request ends; ``decodes`` counts every step.
    """

    processing: int | None
    deferred: int | None
    tokens_predicted: int | None
    decodes: int | None

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight and nothing waits, by the engine's own word."""
        return self.processing == 0 and self.deferred == 0


class SlotSeen(msgspec.Struct, frozen=True):
    """One busy slot: its number, the engine's number of the request in it, and the tokens that it has generated."""

    slot: int
    task: int
    decoded: int


def parse_metrics(text: str) -> dict[str, float]:
    """Samples without labels of the Prometheus text format. Comments, labelled samples and other lines are skipped."""
    samples: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" ")
        if not name or name.startswith("#") or "{" in name or not rest:
            continue
        try:
            value = float(rest.split()[0])
        except ValueError:  # a value that is no number says nothing: the sample stays unknown
            continue
        if math.isfinite(value):
            samples[name] = value
    return samples


def read_census(text: str) -> Census:
    """The census in the text of ``/metrics``."""
    samples = parse_metrics(text)

    def count(name: str) -> int | None:
        value = samples.get(PREFIX + name)
        return int(value) if value is not None and 0 <= value <= MOST_COUNTED else None

    return Census(
        processing=count("requests_processing"),
        deferred=count("requests_deferred"),
        tokens_predicted=count("tokens_predicted_total"),
        decodes=count("n_decode_total"),
    )


def read_slots(slots: Any) -> tuple[SlotSeen, ...] | None:
    """The busy slots in the JSON of ``/slots``, or None when it has another shape than the one known here."""
    if not isinstance(slots, list):
        return None
    busy = []
    for slot in slots:
        if not isinstance(slot, dict) or not isinstance(slot.get("is_processing"), bool):
            return None
        if not slot["is_processing"]:
            continue
        number, task, steps = slot.get("id"), slot.get("id_task"), slot.get("next_token")
        # Older builds give one object, newer ones a list with one object per sequence.
        step = steps[0] if isinstance(steps, list) and steps else steps
        decoded = step.get("n_decoded") if isinstance(step, dict) else None
        if not isinstance(number, int) or not isinstance(task, int) or not isinstance(decoded, int):
            return None
        busy.append(SlotSeen(number, task, decoded))
    return tuple(busy)
