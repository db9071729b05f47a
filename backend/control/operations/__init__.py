"""Operations of more than one command, each in a process of its own that follows one ledger file."""

from backend.control.operations.run import run_operation
from backend.control.operations.spawning import command_line, spawn_operation

__all__ = ["command_line", "run_operation", "spawn_operation"]
