"""``python -m tests.p4.client_process HOST PORT ADDRESS HOME``: holds a connection on every lane until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from backend.contract.p4.addresses import P4Address
from backend.contract.p4.content_types import INSPECT, SNAPSHOT
from backend.contract.p4.events import P4Agent
from backend.engines.p4.asked import Asked
from backend.engines.p4.client import LaneName, P4Client
from backend.engines.p4.outcomes import Replied
from backend.engines.p4.slots import SlotCount

_LANES: tuple[LaneName, ...] = ("inspection", "control", "submission")
_SECONDS = 30.0


async def _hold(dial: tuple[str, int], address: P4Address, home: Path) -> None:
    client = P4Client(dial, address, SlotCount(home / "slots.json", "first"))
    for lane in _LANES:
        asked = await client.ask(
            lane,
            target=P4Agent(address),
            content_type=INSPECT,
            payload=b"{}",
            expects={SNAPSHOT},
            seconds=_SECONDS,
        )
        assert isinstance(asked, Asked), asked
        assert isinstance(await asked.outcome(_SECONDS), Replied)
    print("holding", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_hold((sys.argv[1], int(sys.argv[2])), P4Address(sys.argv[3]), Path(sys.argv[4])))
