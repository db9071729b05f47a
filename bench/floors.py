"""The programs that an agent is measured beside; run by path, they import nothing of ringtop.

``server SOCKET``          asyncio, msgspec, psutil and a websockets server on a unix socket; echoes; a 1 s timer
``watcher SOCKET PID…``    the same, and psutil reads these processes each second
``batches SOCKET FILE N``  the same, and whoever connects is sent the text of FILE N times
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import psutil
from websockets.asyncio.server import ServerConnection, unix_serve


async def main(kind: str, path: str, *rest: str) -> None:
    """Serve until killed."""
    pids = [psutil.Process(int(pid)) for pid in rest] if kind == "watcher" else []
    frame, times = (_text(rest[0]), int(rest[1])) if kind == "batches" else ("", 0)

    async def answer(ws: ServerConnection) -> None:
        for _ in range(times):
            await ws.send(frame)
        async for text in ws:
            await ws.send(text)

    async with unix_serve(answer, path, compression=None):
        while True:
            await asyncio.sleep(1.0)
            msgspec.json.encode([process.memory_info().rss for process in pids])


def _text(path: str) -> str:
    return Path(path).read_text()


asyncio.run(main(*sys.argv[1:]))
