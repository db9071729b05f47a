"""``ringtop p4``: the recovery of a p4 agent, and the bytes of p4's own contract, read and written by hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from console.commands.exits import DONE, refused
from console.commands.output import print_json, say
from console.commands.p4_recover import recover
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import P4Kind

_LONGEST_INPUT = 160 * 1024 * 1024
_kind = click.option(
    "--kind", required=True, type=click.Choice(["event", "hop", "load", "unload", "result"]), help="What the bytes are."
)


@click.group(short_help="Recover a p4 agent; read and write the bytes of p4.")
def p4() -> None:
    """Recover the p4 agent of a host; and read and write the bytes of p4, where nothing is sent."""


p4.add_command(recover)


@p4.command(short_help="Bytes to JSON.")
@_kind
@click.option("--raw", is_flag=True, help="Standard input is the bytes themselves, not hex.")
@fleet_command
def decode(settings: Settings, kind: P4Kind, *, raw: bool) -> int:
    """Print what the bytes on standard input mean, as JSON, or the rule that they break (exit code 2).

    An event or hop frame is given without the u32 length that stands in front of it on a socket.
    """
    from backend.api import P4CodecError, p4_read

    given = _standard_input()
    try:
        print_json(p4_read(kind, given if raw else _from_hex(given)))
    except P4CodecError as error:
        raise refused(str(error)) from error
    return DONE


@p4.command(short_help="JSON to bytes.")
@_kind
@click.option("--raw", is_flag=True, help="Write the bytes themselves, into a file or a pipe.")
@fleet_command
def encode(settings: Settings, kind: P4Kind, *, raw: bool) -> int:
    """Print the bytes of the JSON on standard input in hex: the form that decode prints.

    What a p4 agent would refuse is not written: exit code 2 and the reason.
    """
    from backend.api import P4CodecError, p4_parse, p4_write

    if raw and settings.as_json:
        raise refused("--raw writes bytes and --json one JSON value; give one of them")
    if raw and sys.stdout.isatty():
        raise refused("raw bytes are not written to a terminal; send them into a file or a pipe, or leave --raw out")
    try:
        data = p4_write(kind, p4_parse(_standard_input().decode("utf-8")))
    except UnicodeDecodeError as error:
        raise refused(f"the document is not UTF-8: {error.reason} at byte {error.start}") from error
    except P4CodecError as error:
        raise refused(str(error)) from error
    if raw:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    elif settings.as_json:
        print_json({"hex": data.hex(), "length": len(data)})
    else:
        say(data.hex())
    return DONE


def _standard_input() -> bytes:
    given = sys.stdin.buffer.read(_LONGEST_INPUT + 1)
    if len(given) > _LONGEST_INPUT:
        raise refused(f"standard input holds more than {_LONGEST_INPUT} bytes, and no body of p4 is as long")
    return given


def _from_hex(given: bytes) -> bytes:
    try:
        return bytes.fromhex(given.decode("ascii"))
    except ValueError as error:
        raise refused(f"standard input is not hex: {error}. For the bytes themselves give --raw.") from error
