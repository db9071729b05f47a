"""Who may speak to the agent: checked in the handshake, before a byte of a frame is read."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping

from backend.contract.envelopes import SUBPROTOCOL

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def why_not_admit(headers: Mapping[str, str], *, tcp_port: int | None) -> str | None:
    """The reason to refuse a handshake, or None.

    A browser always sends an Origin: none is accepted. ``Host`` must be loopback (with the listening port on TCP), as
    a web page can point a name of its own at this address. The subprotocol must be offered.
    """
    origin = headers.get("Origin")
    if origin is not None:
        return f"Origin {origin[:80]!r} is not accepted: consoles send none, browsers do"
    host = headers.get("Host", "")
    allowed = [name if tcp_port is None else f"{name}:{tcp_port}" for name in _LOOPBACK_NAMES]
    if host not in allowed:
        return f"Host {host[:80]!r} is not accepted; expected one of {', '.join(allowed)}"
    offered = [part.strip() for part in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if SUBPROTOCOL not in offered:
        return f"the subprotocol {SUBPROTOCOL} was not offered (offered: {', '.join(offered)[:80] or 'none'})"
    return None


def peer_uid(sock: socket.socket) -> int | None:
    """The user id on the other side of a unix socket, from the kernel; None for TCP."""
    if sock.family != socket.AF_UNIX:
        return None
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)


def why_not_peer(sock: socket.socket) -> str | None:
    """The reason to refuse a peer by its user, or None: root and the agent's own user are let in."""
    uid = peer_uid(sock)
    if uid is None or uid in (0, os.geteuid()):
        return None
    return f"user id {uid} may not speak to the agent of user id {os.geteuid()}"
