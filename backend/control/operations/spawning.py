"""How an operation's process is started: in a session of its own, what it says in a log beside its ledger file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from backend.contract.words import OpId
from backend.control.contexts import Context
from backend.control.ledger import ledger_path


def log_path(folder: Path, op_id: OpId) -> Path:
    """Where the process of an operation says what went wrong, beside its ledger file."""
    return ledger_path(folder, op_id).with_suffix(".log")


def command_line(context: Context, op_id: OpId, lock_fd: int | None = None) -> list[str]:
    """How an operation's process is started."""
    argv = [sys.executable, "-I", "-m", "backend.control.operations", op_id]
    argv += ["--home", str(context.home), "--context", context.name]
    return argv if lock_fd is None else [*argv, "--lock-fd", str(lock_fd)]


def spawn_operation(context: Context, op_id: OpId, lock_fd: int | None = None) -> subprocess.Popen[bytes]:
    """Start an operation's process in a session of its own; what it says goes to a log beside its ledger file."""
    log = log_path(context.ledger_folder, op_id)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command_line(context, op_id, lock_fd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=fd,
            start_new_session=True,
            cwd="/",
            pass_fds=() if lock_fd is None else (lock_fd,),
        )
    finally:
        os.close(fd)
