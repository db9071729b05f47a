"""p4 addresses, ``tcp://host:port``. The text is the identity: another spelling of the same host is another agent."""

from __future__ import annotations

from typing import NewType

from backend.contract.numbers import check_port
from backend.contract.p4.errors import P4CodecError

P4Address = NewType("P4Address", str)
"""An address as p4 writes it: scheme ``tcp``, the host as it was given, the port without ``+`` or leading zeros."""

_SCHEME = "tcp"


def parse_address(text: str) -> P4Address:
    """Read an address as a p4 agent does: the host is any text, the port is what follows the last colon.

    Raises P4CodecError for another scheme, a missing host, and a port that is no number of 1..65535.
    """
    scheme, slashes, rest = text.partition("://")
    if not slashes:
        raise P4CodecError(f"the address {text!r} is not tcp://host:port")
    if scheme != _SCHEME:
        raise P4CodecError(f"the address {text!r} has the scheme {scheme!r}; p4 knows tcp only")
    host, colon, digits = rest.rpartition(":")
    if not colon:
        raise P4CodecError(f"the address {text!r} has no port; write tcp://host:port")
    if not host:
        raise P4CodecError(f"the address {text!r} has no host; write tcp://host:port")
    return P4Address(f"{_SCHEME}://{host}:{_port(digits, text)}")


def p4_address(host: str, port: int) -> P4Address:
    """The address of this host (an IPv6 literal in brackets) and port; raises P4CodecError for one that cannot be."""
    return parse_address(f"{_SCHEME}://{host}:{port}")


def host_and_port(address: P4Address) -> tuple[str, int]:
    """What to dial: the host without the brackets of an IPv6 literal, and the port."""
    host, _, digits = parse_address(address).removeprefix(f"{_SCHEME}://").rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(digits)


def _port(digits: str, text: str) -> int:
    bare = digits.removeprefix("+")
    if not bare.isascii() or not bare.isdigit():
        raise P4CodecError(f"the address {text!r} has the port {digits!r}, which is no number")
    significant = bare.lstrip("0")
    if len(significant) > 5:
        raise P4CodecError(f"the address {text!r} has a port above 65535")
    try:
        return check_port("the port", int(significant or "0"))
    except ValueError as error:
        raise P4CodecError(f"the address {text!r}: {error}") from error
