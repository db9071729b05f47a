"""A spare process: it runs the operation that it is given as its own, and is gone when nobody needs it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.contract.words import OpId, UnixMs
from backend.control.contexts import Context, load_context
from backend.control.exit_codes import REFUSED
from backend.control.ledger import Operation, create, has_owner, ledger_path
from backend.control.ledger_views import read_operation
from backend.control.operations.spare import Spare

OP = OpId("load-1-abcd")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "contexts.toml").write_text(
        f'default = "c"\n[contexts.c]\nlabel = "C"\n[contexts.c.hosts]\nhost-a = "unix:{tmp_path}/a.sock"\n'
    )
    return load_context("c", tmp_path)


@pytest.fixture
def spare(context: Context) -> Iterator[Spare]:
    spare = Spare(context)
    yield spare
    spare.close()


def unknown_operation(context: Context) -> Operation:
    """An operation that any process ends at once: no ringtop knows its kind."""
    return Operation(
        op_id=OP,
        kind="juggle",
        subject="tiny-1",
        by="tester",
        context=context.name,
        load_generation=None,
        targets=(),
        options={},
        started_unix_ms=UnixMs(1),
    )


def run_to_its_end(context: Context, spare: Spare) -> subprocess.Popen[bytes]:
    writer = create(context.ledger_folder, unknown_operation(context))
    process = spare.start(OP, writer.fd)
    writer.close()
    assert process.wait(30) == REFUSED
    view = read_operation(ledger_path(context.ledger_folder, OP))
    assert (view.state, "'juggle' is unknown" in view.words) == ("refused", True)
    assert not has_owner(ledger_path(context.ledger_folder, OP))
    return process


def waiting(spare: Spare) -> subprocess.Popen[bytes]:
    assert spare._waiting is not None
    return spare._waiting[0]


def test_a_spare_runs_the_operation_that_it_is_given(context: Context, spare: Spare) -> None:
    spare.prepare()
    expected = waiting(spare)
    assert run_to_its_end(context, spare) is expected


def test_without_a_spare_a_new_process_runs_it(context: Context, spare: Spare) -> None:
    run_to_its_end(context, spare)


def test_a_spare_that_died_is_replaced_by_a_new_process(context: Context, spare: Spare) -> None:
    spare.prepare()
    dead = waiting(spare)
    dead.kill()
    dead.wait()
    assert run_to_its_end(context, spare) is not dead


def test_a_spare_waits_once_and_never_twice(spare: Spare) -> None:
    spare.prepare()
    first = waiting(spare)
    spare.prepare()
    assert waiting(spare) is first


def test_a_spare_that_is_not_needed_is_gone_and_none_follows(spare: Spare) -> None:
    spare.prepare()
    process = waiting(spare)
    spare.close()
    assert process.returncode is not None
    spare.prepare()
    assert spare._waiting is None


def test_the_end_of_its_console_ends_a_spare(context: Context) -> None:
    script = (
        "import sys, pathlib, os\n"
        "from backend.control.contexts import load_context\n"
        "from backend.control.operations.spare import Spare\n"
        "spare = Spare(load_context('c', pathlib.Path(sys.argv[1])))\n"
        "spare.prepare()\n"
        "print(spare._waiting[0].pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(context.home)], capture_output=True, text=True, timeout=30, check=True
    )
    pid, deadline = int(done.stdout), time.monotonic() + 20
    while _runs(pid):
        assert time.monotonic() < deadline, f"the spare {pid} outlived its console"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
