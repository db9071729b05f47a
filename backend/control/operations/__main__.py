"""The entry point of an operation's process."""

from __future__ import annotations

import argparse
import contextlib
import sys
import traceback
from pathlib import Path

from backend.contract.words import OpId
from backend.control.contexts import ContextError, ledger_folder, load_context
from backend.control.exit_codes import BUG, DONE, REFUSED
from backend.control.ledger import LedgerError, ledger_path, reopen
from backend.control.ledger_views import read_operation
from backend.control.operations.run import outlive_the_terminal, run_operation
from backend.control.operations.spare import speak_to_log, wait_for_operation
from backend.control.operations.spawning import log_path


def main() -> int:
    """Run the operation that the command line names, or that a spare is given; returns its exit code."""
    parser = argparse.ArgumentParser(prog="ringtop op run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("op_id", nargs="?")
    which.add_argument("--spare-fd", type=int, default=None)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--context", required=True)
    parser.add_argument("--lock-fd", type=int, default=None)
    asked = parser.parse_args()
    outlive_the_terminal()
    folder, op_id, lock_fd = ledger_folder(asked.home), asked.op_id, asked.lock_fd
    if asked.spare_fd is not None:
        given = wait_for_operation(asked.spare_fd)
        if given is None:
            return DONE
        op_id, lock_fd = given
        speak_to_log(folder, op_id)
    try:
        code = _run(asked.context, asked.home, op_id, lock_fd)
    except LedgerError as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    except Exception:  # noqa: BLE001  # the last line of defence of a process: the bug is written down, 70 says it
        traceback.print_exc()
        return BUG
    _drop_empty_log(folder, op_id)
    return code


def _drop_empty_log(folder: Path, op_id: OpId) -> None:
    """An operation that has ended gets no further process: what said nothing is not kept beside its ledger."""
    log = log_path(folder, op_id)
    has_ended = read_operation(ledger_path(folder, op_id)).ended_unix_ms is not None
    with contextlib.suppress(OSError):  # nothing depends on it
        if has_ended and not log.stat().st_size:
            log.unlink()


def _run(context: str, home: Path, op_id: OpId, lock_fd: int | None) -> int:
    """Run it. A context that cannot be used is written down in its ledger, where everybody looks."""
    try:
        chosen = load_context(context, home)
    except ContextError as error:
        words = f"its process could do nothing: {error} Then go on: ringtop op resume {op_id}"
        with contextlib.closing(reopen(ledger_folder(home), op_id, lock_fd)) as writer:
            writer.halt(words, REFUSED)
        return REFUSED
    return run_operation(chosen, op_id, lock_fd=lock_fd)


if __name__ == "__main__":
    sys.exit(main())
