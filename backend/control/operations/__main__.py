"""The entry point of an operation's process."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from backend.contract.words import OpId
from backend.control.contexts import ContextError, load_context
from backend.control.exit_codes import BUG, REFUSED
from backend.control.ledger import LedgerError
from backend.control.operations.run import outlive_the_terminal, run_operation


def main() -> int:
    """Run the operation that the command line names; returns its exit code."""
    parser = argparse.ArgumentParser(prog="ringtop op run")
    parser.add_argument("op_id")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--context", required=True)
    parser.add_argument("--lock-fd", type=int, default=None)
    asked = parser.parse_args()
    outlive_the_terminal()
    try:
        return run_operation(load_context(asked.context, asked.home), OpId(asked.op_id), lock_fd=asked.lock_fd)
    except (ContextError, LedgerError) as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    except Exception:  # noqa: BLE001  # the last line of defence of a process: the bug is written down, 70 says it
        traceback.print_exc()
        return BUG


if __name__ == "__main__":
    sys.exit(main())
