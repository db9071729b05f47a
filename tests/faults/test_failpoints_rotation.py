"""The two failpoints of a journal's rotation, in a process whose journal rotates every few records."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.journal.worlds import open_journal

ROOT = Path(__file__).parents[2]
WRITER = """
import asyncio, sys
from pathlib import Path
from backend.agent.journal import Journal, JournalWriteFailed, Limits, SystemClock
from tests.agent.journal.worlds import record

async def main():
    limits = Limits(segment_bytes=2048, allocate_bytes=512)
    journal = Journal.open(Path(sys.argv[1]), host="host-a", clock=SystemClock(), limits=limits)
    for n in range(1, 31):
        try:
            await journal.append([record(n)]).durable
        except JournalWriteFailed as failed:
            print("failed", failed, flush=True)
            break
        print("kept", n, flush=True)
    await journal.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("act", ["kill", "raise", "delay:0.2"])
@pytest.mark.parametrize("point", ["journal.before_rotation", "journal.after_rotation"])
@pytest.mark.faults("a new segment begins, and this goes wrong: all that was acknowledged is there, and it goes on")
def test_rotation(tmp_path: Path, point: str, act: str) -> None:
    hits = tmp_path / "hits"
    env = {"RINGTOP_TEST": "1", "RINGTOP_FAILPOINTS": f"{point}={act}", "RINGTOP_FAILPOINT_HITS": str(hits)}
    folder = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder)],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line for line in hits.read_text().splitlines() if f"{point} {act.partition(':')[0]}" in line], "never hit"
    kept = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("kept")]
    if act == "kill":
        assert done.returncode == -signal.SIGKILL
    elif act.startswith("delay") or point == "journal.before_rotation":
        assert kept == list(range(1, 31)), done.stdout + done.stderr
    else:
        assert "fenced" in done.stdout, done.stdout + done.stderr
    asyncio.run(_all_there(folder, kept))


async def _all_there(folder: Path, kept: list[int]) -> None:
    journal = open_journal(folder)
    found = [record.words for record in journal.replay() if record.kind == "test.step"]
    assert found[: len(kept)] == [f"step {n}" for n in kept]
    assert journal.health == "ok"
    await journal.close()
    again = open_journal(folder)
    assert again.head_seq == journal.head_seq, "a journal that nobody writes to moved"
    await again.close()
