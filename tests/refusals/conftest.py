"""Fleets for the rows that go through real agents: one of their own, or one that the rows of a file share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backend.api import Backend, load_context
from tests.e2e.conftest import fleet, make_fleet
from tests.e2e.fleet import Fleet
from tests.ports import claim_block

__all__ = ["fleet", "make_fleet"]


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    """Two running agents for every row of a file: each row leaves it as it was."""
    made = Fleet(claim_block())
    try:
        made.start()
        yield made
    finally:
        made.close()


def left_behind(fleet: Fleet) -> dict[str, list[str]]:
    """What the agents still hold or run, by host: reservations, holds, and shards that have not ended."""
    backend = Backend(load_context(home=fleet.home))
    backend.start()
    try:
        assert backend.wait_settled(30.0)
        hosts = backend.state().hosts
    finally:
        backend.stop()
    left = {
        host: [
            *(f"reservation of {each.replica}" for each in view.entities.reservations.values()),
            *(f"hold after {each.node_id}" for each in view.entities.holds.values()),
            *(
                f"{each.node_id} is {each.state}"
                for each in view.entities.shards.values()
                if each.state not in ("stopped", "failed")
            ),
        ]
        for host, view in hosts.items()
    }
    return {host: things for host, things in left.items() if things}


def processes_of_runs(fleet: Fleet) -> list[psutil.Process]:
    """Whatever runs for a shard of this fleet, stand-ins included: its working folder or its shim is a run's."""
    runs = [str(fleet.home / host / "runs") for host in ("host-a", "host-b")]
    found = []
    for process in psutil.process_iter():
        try:
            where = [process.cwd(), *process.cmdline()]
        except psutil.Error:
            continue
        if any(text.startswith(run) for run in runs for text in where):
            found.append(process)
    return found


def stand_in(folder: Path, name: str, body: str) -> None:
    """Put a program of Python in an engine's folder, under the engine's name."""
    program = folder / name
    program.write_text(f"#!{sys.executable} -I\n{body}")
    program.chmod(0o755)
    assert os.access(program, os.X_OK)
