"""Ports for fleets: blocks that no other fleet of this machine has, whatever test runs are at work."""

from __future__ import annotations

import itertools
import os
import socket

FIRST_PORT = 9_000
PORTS_PER_BLOCK = 80
BLOCKS = 112
"""Up to port 17,959: below what ``ringtop up`` uses, and below what the kernel gives to outgoing connections."""

_claims: dict[int, socket.socket] = {}
_turns = itertools.count(os.getpid())
"""The next block is another one than the last, so that what just ended cannot be met again."""


def claim_block() -> int:
    """The first port of a block that is this process's until ``give_back``, or until it ends.

    The claim is an abstract unix socket: it holds against every process of this machine, and dies with its owner.
    Raises RuntimeError when every block is taken.
    """
    for _ in range(BLOCKS):
        first = FIRST_PORT + PORTS_PER_BLOCK * (next(_turns) % BLOCKS)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0ringtop-test-ports-{first}")
        except OSError:
            claim.close()
            continue
        _claims[first] = claim
        return first
    raise RuntimeError(f"all {BLOCKS} blocks of test ports are taken; are test runs left over?")


def give_back(first: int) -> None:
    """Another fleet may have this block. A block that was never claimed is nobody's loss."""
    if claim := _claims.pop(first, None):
        claim.close()
