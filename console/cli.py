"""The entry point ``ringtop``: without a command it opens the console, with one it runs that and ends.

Commands are imported when they are named; the backend and Textual when they are used.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from console.commands.exits import BUG, DONE, INTERRUPTED, REFUSED, UNKNOWN, CommandFailed
from console.commands.settings import Settings, choose_home
from console.version import VERSION

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_COMMANDS = {
    "adopt": "console.commands.adopt:adopt",
    "bound": "console.commands.bound:bound",
    "catalog": "console.commands.catalog:catalog",
    "cordon": "console.commands.cordon:cordon",
    "doctor": "console.commands.doctor:doctor",
    "down": "console.commands.local:down",
    "drain": "console.commands.drain:drain",
    "drift": "console.commands.drift:drift",
    "guards": "console.commands.guards:guards",
    "journal": "console.commands.journal:journal",
    "keep": "console.commands.keep:keep",
    "ledger": "console.commands.ledger:ledger",
    "load": "console.commands.load:load",
    "logs": "console.commands.logs:logs",
    "ls": "console.commands.ls:ls",
    "op": "console.commands.op:op",
    "p4": "console.commands.p4:p4",
    "pause": "console.commands.holds:pause",
    "plan": "console.commands.plan:plan",
    "record": "console.commands.record:record",
    "rehearse": "console.commands.rehearse:rehearse",
    "reload": "console.commands.reload:reload",
    "reset-terminal": "console.commands.terminal:reset_terminal",
    "resume": "console.commands.holds:resume",
    "snapshot": "console.commands.snapshot:snapshot",
    "test": "console.commands.trial:trial",
    "uncordon": "console.commands.cordon:uncordon",
    "unload": "console.commands.unload:unload",
    "up": "console.commands.local:up",
}
_FEW_COLLECTIONS = 100_000
"""New objects between two collections of a one-shot command, which seldom lives for longer than a tenth of a second."""


class LazyGroup(click.Group):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, without importing any."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, and an unknown name is answered with the names that exist."""
        if not ctx.resilient_parsing and args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            from console.commands.exits import no_such

            raise no_such("command", args[0], _COMMANDS)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="ringtop", message="%(prog)s %(version)s")
@click.option("--context", metavar="NAME", help="The fleet to reach, from contexts.toml.")
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), help="The folder of ringtop's own files.")
@click.option("--read-only", is_flag=True, help="Refuse every action that changes a fleet.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
@click.option("--mono", is_flag=True, help="Draw without colour.")
@click.option("--slow", is_flag=True, help="Refresh data less often, for slow links.")
@click.option("--theme", metavar="NAME", help="The theme of the console: night or plain.")
@click.option("--mouse", is_flag=True, help="Take mouse input (the terminal's own selection then needs shift).")
@click.pass_context
def cli(
    ctx: click.Context,
    *,
    context: str | None,
    home: Path | None,
    read_only: bool,
    ascii_only: bool,
    mono: bool,
    slow: bool,
    theme: str | None,
    mouse: bool,
) -> None:
    """The terminal operations console for model rings.

    Without a command it opens the console of the default context.

    \b
    Exit codes: 0 done, 1 changes pending, 2 refused or bad usage,
    3 timed out or unknown, 4 unreachable, 5 ran and failed,
    130 interrupted, 70 a bug of ringtop.
    """
    ctx.obj = Settings(
        context=context,
        home=choose_home(home),
        read_only=read_only,
        ascii=ascii_only,
        mono=mono,
        slow=slow,
        theme=theme,
        mouse=mouse,
    )
    if ctx.invoked_subcommand is not None:
        gc.set_threshold(_FEW_COLLECTIONS)
    else:
        from console.commands.screen import open_console

        ctx.exit(open_console(ctx.obj))


def main() -> None:
    """Run the command line and exit with its code."""
    _open_closed_streams()
    _watch_output()
    code = run(sys.argv[1:])
    if "textual" in sys.modules:
        sys.exit(code)
    # everything was printed and flushed, and the backend's thread has ended: taking the interpreter apart would only
    # add a fifth to the time of a short command
    sys.stderr.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line; errors are told on standard error, or as JSON where that was asked for."""
    as_json = "--json" in arguments
    try:
        _require_utf8(arguments)
        code = cli.main(list(arguments), prog_name="ringtop", standalone_mode=False)
        sys.stdout.flush()
    except CommandFailed as error:
        return _tell(as_json, error)
    except click.UsageError as error:
        return _tell(as_json, CommandFailed(REFUSED, _usage(error, as_json)))
    except click.ClickException as error:
        return _tell(as_json, CommandFailed(REFUSED, error.format_message()))
    except (click.Abort, KeyboardInterrupt):
        return _tell(as_json, CommandFailed(INTERRUPTED, "interrupted"))
    except SystemExit as end:
        if "_RINGTOP_COMPLETE" in os.environ:
            return end.code if isinstance(end.code, int) else DONE
        # click exits with 1 when nobody reads any more, which here would mean that changes are pending
        _discard_output()
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()  # whoever read this output has seen enough
        return INTERRUPTED
    except _OutputLost as error:
        _discard_output(sys.stdout)
        return _tell(False, _unwritable(error))
    except Exception as error:  # noqa: BLE001  # the last resort: a bug is reported, never shown as a traceback
        return _tell(as_json, _bug(error))
    return code if isinstance(code, int) else DONE


def _require_utf8(arguments: Sequence[str]) -> None:
    """Raise for an argument whose bytes are no UTF-8: it could be neither sent to an agent nor printed."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise CommandFailed(REFUSED, f"{argument!r} is not UTF-8; write it in UTF-8") from None


def _tell(as_json: bool, error: CommandFailed) -> int:
    try:
        if as_json:
            click.echo(json.dumps(error.tree, default=_plain))
        else:
            from console.commands.output import note

            note(f"ringtop: {error.words}")
        sys.stdout.flush()
    except OSError:
        _discard_output()  # nobody can be told; the exit code still says it
    return error.exit_code


def _discard_output(*streams: TextIO) -> None:
    """Send these streams, or both, nowhere: what is left unflushed must not raise again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams or (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def _unwritable(error: OSError) -> CommandFailed:
    return CommandFailed(
        UNKNOWN,
        f"standard output cannot be written: {error.strerror}. What was asked for may have been done; look with: "
        "ringtop ls operations",
    )


def _open_closed_streams() -> None:
    """Standard streams that the caller closed lead nowhere: a link or a ledger would get their numbers otherwise."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  they last as long as the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


class _OutputLost(OSError):
    """Standard output cannot be written, as on a full disk."""


class _Output(io.FileIO):
    """Standard output, its failures told apart from those of every other file."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _OutputLost(error.errno, error.strerror) from error


def _watch_output() -> None:
    """From here on a write to standard output that fails raises _OutputLost, whoever asked for it."""
    out = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(out.fileno(), "w", closefd=False)),
        encoding=out.encoding,
        errors=out.errors,
        line_buffering=out.isatty(),
    )


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


def _usage(error: click.UsageError, as_json: bool) -> str:
    """What was wrong, and how the command is used."""
    words = error.format_message()
    if as_json or error.ctx is None:
        return words
    return f"{words}\n{error.ctx.get_usage()}\nTry: {error.ctx.command_path} --help"


def _bug(error: Exception) -> CommandFailed:
    """One line for the person; the traceback goes into a file of the home."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in ("console", "backend"):
        from console.commands.shadows import shadows

        if found := shadows():
            return CommandFailed(REFUSED, " ".join(found))
    told = f"this is a bug of ringtop {VERSION}: {type(error).__name__}: {error}"
    text = "".join(traceback.format_exception(error))
    try:
        path = _crash_folder() / f"crash-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"ringtop {VERSION} {' '.join(sys.argv[1:])}\n{text}", encoding="utf-8")
    except (OSError, RuntimeError) as unwritable:  # RuntimeError: the home of a user who does not exist
        return CommandFailed(BUG, f"{told}. Its traceback could not be kept ({unwritable}):\n{text}")
    return CommandFailed(BUG, f"{told}. The traceback is in {path}.", traceback=str(path))


def _crash_folder() -> Path:
    named = os.environ.get("RINGTOP_HOME")
    if named:
        return Path(named).expanduser() / "crashes"
    import platformdirs

    return Path(platformdirs.user_state_path("ringtop")) / "crashes"


if __name__ == "__main__":
    main()
