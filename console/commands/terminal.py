"""``ringtop reset-terminal``: give a terminal back that a killed console left in its own modes."""

from __future__ import annotations

import os

import click

from console.commands.exits import DONE, refused
from console.commands.output import print_json
from console.commands.settings import Settings, fleet_command

RESET = "".join(
    (
        "\x1b[?1049l",  # the alternate screen
        "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l",  # mouse reports
        "\x1b[?2004l",  # bracketed paste
        "\x1b[?1004l",  # focus reports
        "\x1b[?2026l\x1b[?2048l",  # synchronised output, size reports
        "\x1b[<u",  # the kitty keyboard protocol
        "\x1b[?7h\x1b[?25h",  # wrapping and the cursor on
        "\x1b[0m\x1b(B\x1b[r",  # no style, ASCII, the whole screen scrolls
    )
)
"""Turns off every mode that Textual turns on (8.2, ``drivers/linux_driver.py``)."""


@click.command("reset-terminal", short_help="Give a terminal back after a console was killed.")
@fleet_command
def reset_terminal(settings: Settings) -> int:
    """Give the terminal back after a console was killed: leaves its screen, its mouse and its raw mode."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        raise refused(f"there is no terminal to reset: {error.strerror}") from error
    try:
        os.write(terminal, RESET.encode())
        _make_sane(terminal)
    finally:
        os.close(terminal)
    if settings.as_json:
        print_json({"reset": True})
    return DONE


def _make_sane(terminal: int) -> None:
    """Line editing, echo and signals on again, as ``stty sane`` does."""
    import termios

    modes = termios.tcgetattr(terminal)
    modes[0] = (modes[0] | termios.BRKINT | termios.ICRNL | termios.IXON) & ~(termios.INLCR | termios.IGNCR)
    modes[1] |= termios.OPOST | termios.ONLCR
    modes[3] |= termios.ICANON | termios.ECHO | termios.ECHOE | termios.ECHOK | termios.ISIG | termios.IEXTEN
    termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
    termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed blindly while it was raw is better forgotten
