"""The leader's sockets to its workers: which rank is lost, which does not answer. Nothing is sent."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from backend.contract.durations import duration
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import LinkSeen
from backend.engines.llamacpp.placement import endpoint_of, workers_of
from backend.engines.llamacpp.sockets import CLOSE_WAIT, ESTABLISHED, FourTuple, SocketDiag, SocketSeen, socket_inodes
from backend.engines.names import looked_up

CUT_RETRANSMITS = 3
"""From here on retransmissions are called a network fault: about 2 s of them."""


class Peer(msgspec.Struct, frozen=True):
    """One socket of the leader to the worker of a rank. ``inode`` keeps a reused tuple from being believed."""

    shard: PlannedShard
    ends: FourTuple
    inode: int

    @property
    def words(self) -> str:
        """The rank with its host and address."""
        return f"rank {self.shard.rank} on {self.shard.host} at {endpoint_of(self.shard)}"


async def worker_addresses(plan: Plan) -> dict[tuple[str, int], PlannedShard]:
    """Every worker by the numeric addresses and the port at which the leader finds it."""
    loop = asyncio.get_running_loop()
    found: dict[tuple[str, int], PlannedShard] = {}
    for shard in workers_of(plan):
        port = shard.ports[0]
        try:
            with looked_up(shard.advertise):
                answers = await loop.getaddrinfo(shard.advertise, port, type=socket.SOCK_STREAM)
        except OSError:  # an unresolvable name is the leader's own error; its socket cannot be found either
            continue
        for *_, ends in answers:
            found[str(ends[0]), port] = shard
    return found


def find_peers(diag: SocketDiag, pid: int, addresses: dict[tuple[str, int], PlannedShard]) -> tuple[Peer, ...]:
    """The leader's open sockets to its workers. Raises OSError."""
    inodes = socket_inodes(pid) or frozenset()
    found = []
    for port in {port for _, port in addresses}:
        for seen in diag.dump(ESTABLISHED, CLOSE_WAIT, remote_port=port):
            shard = addresses.get((seen.ends.remote, port))
            if shard is not None and seen.inode in inodes:
                found.append(Peer(shard, seen.ends, seen.inode))
    return tuple(sorted(found, key=lambda peer: peer.shard.rank))


def look_at(diag: SocketDiag, peer: Peer) -> SocketSeen | None:
    """The socket of a peer now, None when it is gone. Raises OSError."""
    seen = diag.look(peer.ends)
    return seen if seen is not None and seen.inode in (peer.inode, 0) else None


def lost_words(peer: Peer, seen: SocketSeen | None) -> str | None:
    """Why a peer counts as lost, or None while it does not."""
    if seen is None or seen.inode == 0:
        return f"{peer.words}: the leader's socket to it is gone"
    if seen.state == CLOSE_WAIT:
        return f"{peer.words}: it closed its connection to the leader, as a process does that ends"
    return None


def busy_words(peers: tuple[Peer, ...], looks: tuple[SocketSeen | None, ...], *, waited_ms: int) -> str:
    """What the sockets say while a request is under way: a cut network, or the rank that does not answer.

    Neither is proof of death. ``waited_ms`` is how long a rank may owe an answer before it is named.
    """
    said = []
    for peer, seen in zip(peers, looks, strict=True):
        if seen is None:
            continue
        if seen.retransmits >= CUT_RETRANSMITS:
            said.append(f"network to {peer.words}: {seen.retransmits} retransmissions without an answer")
        elif seen.waits_for_other_end and seen.sent_ms is not None and seen.sent_ms >= waited_ms:
            said.append(f"{peer.words} has not answered for {duration(seen.sent_ms / 1000)}")
    return "; ".join(said)


def links_of(peers: tuple[Peer, ...], looks: tuple[SocketSeen | None, ...], *, is_busy: bool) -> tuple[LinkSeen, ...]:
    """What the sockets say of the way to every rank. A rank owes an answer only while something is under way:

    llama.cpp also sends what needs none, after which an idle socket looks as if it waited.
    """
    found: dict[int, LinkSeen] = {}
    for peer, seen in zip(peers, looks, strict=True):
        if seen is None:
            continue
        owes = is_busy and seen.waits_for_other_end and seen.sent_ms is not None
        link = LinkSeen(
            rank=peer.shard.rank,
            local=peer.ends.local,
            remote=peer.ends.remote,
            round_trip_us=seen.round_trip_us,
            owed_seconds=seen.sent_ms / 1000 if owes and seen.sent_ms is not None else None,
        )
        before = found.get(link.rank)
        if before is None or (link.owed_seconds or 0.0) > (before.owed_seconds or 0.0):
            found[link.rank] = link
    return tuple(found.values())
