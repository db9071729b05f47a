"""Operations of more than one command, each in a process of its own that follows one ledger file."""

from backend.control.operations.run import command_line, run_operation, spawn_operation

__all__ = ["command_line", "run_operation", "spawn_operation"]
