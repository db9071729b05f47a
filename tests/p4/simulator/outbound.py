"""Connections that an agent opens to another: always hop mode, one per address, receipts only on the way back."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from tests.p4.simulator import hops
from tests.p4.simulator.hops import Data, Hello, HelloAck, Receipt, ReceiptAck, Status
from tests.p4.simulator.sockets import Wire
from tests.p4.simulator.wire import Address, Event, Refused

if TYPE_CHECKING:
    from tests.p4.simulator.agent import SimulatedAgent


class Peer:
    """The events under way to one address. What cannot be delivered is preserved, and its sender hears nothing."""

    def __init__(self, agent: SimulatedAgent, target: Address) -> None:
        self.agent = agent
        self.target = target
        self.queue: asyncio.Queue[tuple[Event, bytes]] = asyncio.Queue()
        self.writes = 0
        self.bytes = 0
        self._wire: Wire | None = None
        self._generation = 0
        self._attempt = 0
        agent.spawn(self._run())

    async def _run(self) -> None:
        while True:
            event, raw = await self.queue.get()
            if self._wire is None:
                try:
                    self._wire = await self._connect()
                except (OSError, Refused) as error:
                    self.agent.log(f"P4_EVENT_PEER_DELIVERY_FAILED target={self.target} retained=1 error={error}")
                    self.agent.fail("not_started", event, str(error))
                    continue
            await self._send(event, raw)

    async def _connect(self) -> Wire:
        await self.agent.slots.room()
        self.agent.slots.take()
        try:
            wire = Wire(await self._dial())
            self._generation = self.agent.next_generation()
            limits = self.agent.switches.outstanding, self.agent.switches.receipt_bytes
            await wire.send(hops.encode_hop(Hello(str(self.agent.address), self._generation, *limits)))
            body = await wire.receive()
            ack = hops.decode_hop(body) if body else None
            if not isinstance(ack, HelloAck) or ack.accepted_generation != self._generation:
                wire.close()
                raise Refused("peer did not acknowledge the hop hello")
        except BaseException:
            self.agent.slots.give()
            raise
        return wire

    async def _dial(self) -> socket.socket:
        """Connect by the routes that stand for the network; a host's own loopback is whatever its routes say."""
        host, port = self.target.host, self.target.port
        if self.agent.switches.routes is not None:
            where = self.agent.switches.routes.get(f"{host}:{port}")
            if where is None:
                raise ConnectionRefusedError(f"no route to {host}:{port}")
            host, _, text = where.rpartition(":")
            port = int(text)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        sock = socket.socket(found[0][0], socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, found[0][4])
        except OSError:
            sock.close()
            raise
        return sock

    async def _send(self, event: Event, raw: bytes) -> None:
        assert self._wire is not None
        self._attempt += 1
        data = Data(self._attempt, raw)
        self.agent.record("outbound", event, raw)
        sent = await self._wire.send(hops.encode_hop(data))
        self.writes, self.bytes = self.writes + 1, self.bytes + len(raw)
        receipt = await self._receipt() if sent else None
        if receipt is None:
            self._drop()
            self.agent.log(f"P4_EVENT_PEER_DELIVERY_FAILED target={self.target} retained=1 error=no receipt")
            self.agent.fail("uncertain", event, "no receipt")
        elif receipt.status is Status.ACCEPTED:
            self.agent.record("marker", event, raw)
            ack = ReceiptAck(str(self.agent.address), self._generation, receipt.attempt, receipt.digest)
            await self._wire.send(hops.encode_hop(ack))
        else:
            state = "rejected_remote" if receipt.status is Status.REJECTED else receipt.status.name.lower()
            self.agent.log(f"P4_EVENT_PEER_DELIVERY_FAILED target={self.target} retained=1 error={receipt.detail}")
            self.agent.fail(state, event, receipt.detail)

    async def _receipt(self) -> Receipt | None:
        """The receipt of the attempt under way, or None when the peer goes or says anything else."""
        assert self._wire is not None
        body = await self._wire.receive()
        try:
            frame = hops.decode_hop(body) if body else None
        except Refused:
            frame = None
        if isinstance(frame, Receipt) and frame.attempt == self._attempt:
            return frame
        if body:
            self.agent.log(f"P4_EVENT_CONNECTION_STOPPED target={self.target} error=unexpected frame on outbound hop")
        return None

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None
            self.agent.slots.give()
