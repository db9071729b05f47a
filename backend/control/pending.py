"""The commands of one link that were sent and have no answer yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from backend.contract.entities import Result
from backend.contract.words import HostId, OpId
from backend.control.link_ends import ConnectionEnded, Refusal

End = Result | Refusal | ConnectionEnded
"""What a command comes to. Exceptions are values here: nobody may be left to await one."""


class Pending:
    """Which commands wait for an answer of one host."""

    def __init__(self, host: HostId) -> None:
        self._host = host
        self._waiting: dict[OpId, asyncio.Future[End]] = {}

    @contextlib.contextmanager
    def waiting(self, op_id: OpId) -> Iterator[asyncio.Future[End]]:
        """A future of the end of one command, for as long as somebody waits. ValueError for one that waits already."""
        if op_id in self._waiting:
            raise ValueError(f"{op_id} is already asked at {self._host} and has no answer yet")
        future: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._waiting[op_id] = future
        try:
            yield future
        finally:
            del self._waiting[op_id]

    def end(self, op_id: OpId, end: End) -> bool:
        """Whether somebody waited for this, and has it now."""
        future = self._waiting.get(op_id)
        if future is None or future.done():
            return False
        future.set_result(end)
        return True

    def break_off(self, words: str) -> None:
        """No answer comes any more on this connection."""
        for op_id in list(self._waiting):
            self.end(op_id, ConnectionEnded(words))
