"""The entry point of an operation's process."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from backend.contract.words import OpId
from backend.control.contexts import ContextError, load_context
from backend.control.exit_codes import BUG, DONE, REFUSED
from backend.control.ledger import LedgerError
from backend.control.operations.run import outlive_the_terminal, run_operation
from backend.control.operations.spare import speak_to_log, wait_for_operation


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
    op_id, lock_fd = asked.op_id, asked.lock_fd
    if asked.spare_fd is not None:
        given = wait_for_operation(asked.spare_fd)
        if given is None:
            return DONE
        op_id, lock_fd = given
    try:
        context = load_context(asked.context, asked.home)
        if asked.spare_fd is not None:
            speak_to_log(context, op_id)
        return run_operation(context, OpId(op_id), lock_fd=lock_fd)
    except (ContextError, LedgerError) as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    except Exception:  # noqa: BLE001  # the last line of defence of a process: the bug is written down, 70 says it
        traceback.print_exc()
        return BUG


if __name__ == "__main__":
    sys.exit(main())
