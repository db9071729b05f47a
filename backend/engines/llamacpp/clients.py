"""Who is connected to a leader, by the kernel of its host. Nothing is sent."""

from __future__ import annotations

import ipaddress
import os
from collections import Counter

from backend.contract.reports import ClientSeen
from backend.engines.llamacpp.sockets import ESTABLISHED, SocketDiag, SocketSeen, socket_inodes

MOST_NAMED = 6
"""Addresses that are named; the others are counted."""


def connected_clients(diag: SocketDiag, pid: int, port: int) -> tuple[tuple[ClientSeen, ...], int] | None:
    """Addresses with open connections to the leader's port, most first, and how many more addresses there are.

    This agent's own connections are left out. None when the kernel does not show whose sockets are whose; raises
    OSError when it shows none at all.
    """
    leader, own = socket_inodes(pid), socket_inodes(os.getpid())
    if leader is None or own is None:
        return None
    # A socket that waits to be accepted belongs to no process yet: its inode is 0.
    arrived = [seen for seen in diag.dump(ESTABLISHED, local_port=port) if seen.inode in leader or seen.inode == 0]
    ours = {_far_end(seen) for seen in diag.dump(ESTABLISHED, remote_port=port) if seen.inode in own} if arrived else ()
    count = Counter(_plain(seen.ends.remote) for seen in arrived if _near_end(seen) not in ours)
    named = sorted(count.items(), key=lambda each: (-each[1], each[0]))
    return tuple(ClientSeen(*each) for each in named[:MOST_NAMED]), max(0, len(named) - MOST_NAMED)


def _near_end(seen: SocketSeen) -> tuple[str, int]:
    """A client by the leader's socket: its address and port."""
    return _plain(seen.ends.remote), seen.ends.remote_port


def _far_end(seen: SocketSeen) -> tuple[str, int]:
    """The same client by its own socket on this host."""
    return _plain(seen.ends.local), seen.ends.local_port


def _plain(address: str) -> str:
    """An IPv4 address as such, also where an IPv6 socket has it."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
