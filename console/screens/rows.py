"""Rows that are written again only when the view behind them is another object, or when time alone changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from console.render.cells import Line, Look, Row

View = TypeVar("View")


class RowMemory(Generic[View]):
    """Remembers the cells of every view by its key. Equal views of an unchanged fleet cost one look each."""

    def __init__(self, write: Callable[[View, Look], Line]) -> None:
        self._write = write
        self._known: dict[str, tuple[View, Row]] = {}

    def forget(self) -> None:
        """Write everything again next time."""
        self._known = {}

    def rows(
        self, views: Iterable[tuple[str, View]], look: Look, moves_by_itself: Callable[[View, Look], bool]
    ) -> tuple[Row, ...]:
        """The rows of these views, in their order."""
        known: dict[str, tuple[View, Row]] = {}
        for key, view in views:
            held = self._known.get(key)
            if held is None or held[0] is not view or moves_by_itself(view, look):
                cells = self._write(view, look)
                held = (view, held[1] if held is not None and held[1].cells == cells else Row(key, cells))
            known[key] = held
        self._known = known
        return tuple(row for _, row in known.values())
