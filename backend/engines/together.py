"""Several watches of one thing, as one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*watches: Coroutine[Any, Any, None]) -> None:
    """Run until one of them fails or all are done. What failed comes out itself, not a group that says how many."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for watch in watches:
                tasks.create_task(watch)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
