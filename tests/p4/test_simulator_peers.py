"""The simulator as the one who dials: hop mode, receipts only on the way back, and failures that it keeps to itself."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.p4.peer import GENERATION, SECONDS, BarePeer, changed, planned_ring
from tests.p4.ring import SimulatedHost, simulated_ring
from tests.p4.simulator import hops
from tests.p4.simulator.hops import Data, Hello, HelloAck, Receipt, ReceiptAck, Status
from tests.p4.simulator.stage import PREFILL, SESSION
from tests.p4.simulator.wire import AgentEnd, Class, decode_event, parse_address

ELSEWHERE = "tcp://10.77.0.9:52001"


class Elsewhere:
    """A scripted agent at another address: it takes one connection and is asked for each frame."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket, _ = listener.accept()
        self.socket.settimeout(SECONDS)

    def receive(self) -> hops.Frame:
        head = self.socket.recv(4, socket.MSG_WAITALL)
        frame = hops.decode_hop(self.socket.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL))
        assert frame is not None
        return frame

    def send(self, frame: hops.Frame) -> None:
        body = hops.encode_hop(frame)
        self.socket.sendall(len(body).to_bytes(4, "little") + body)

    def greet(self) -> Hello:
        hello = self.receive()
        assert isinstance(hello, Hello)
        self.send(HelloAck(hello.generation, ELSEWHERE, 1, 256, 1 << 26))
        return hello


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(SECONDS)
        yield listening


@pytest.fixture
def host(tmp_path: Path, listener: socket.socket) -> Iterator[SimulatedHost]:
    with simulated_ring(tmp_path, 1) as ring:
        ring[0].set(routes={ELSEWHERE.removeprefix("tcp://"): f"127.0.0.1:{listener.getsockname()[1]}"})
        yield ring[0]


def test_an_event_for_another_agent_goes_by_hop_and_is_acknowledged(
    host: SimulatedHost, listener: socket.socket
) -> None:
    caller = BarePeer(host.dial, host.address)
    sent = caller.send(caller.event(AgentEnd(parse_address(ELSEWHERE)), SESSION, b"{}"))
    other = Elsewhere(listener)
    hello = other.greet()
    assert hello.sender == host.address
    data = other.receive()
    assert isinstance(data, Data)
    assert decode_event(data.event) == sent
    other.send(Receipt(data.attempt, data.digest, Status.ACCEPTED))
    assert other.receive() == ReceiptAck(host.address, hello.generation, data.attempt, data.digest)
    assert host.ask()["failures"] == {}


@pytest.mark.parametrize(
    ("answer", "state"),
    [("rejected", "rejected_remote"), ("data", "uncertain"), ("gone", "uncertain")],
)
def test_what_is_not_accepted_is_kept_and_its_sender_hears_nothing(
    host: SimulatedHost, listener: socket.socket, answer: str, state: str
) -> None:
    caller = BarePeer(host.dial, host.address)
    caller.send(caller.event(AgentEnd(parse_address(ELSEWHERE)), SESSION, b"{}"))
    other = Elsewhere(listener)
    other.greet()
    data = other.receive()
    assert isinstance(data, Data)
    if answer == "rejected":
        other.send(Receipt(data.attempt, data.digest, Status.REJECTED, "UnknownNode"))
    elif answer == "data":
        other.send(Data(1, data.event))  # nothing but receipts may come this way
    else:
        other.socket.close()
    said = host.until("the failure is kept", lambda said: said["failures"])
    assert [kept[0] for kept in said["failures"].values()] == [state]
    seen = caller.inspect()
    assert seen is not None
    assert seen["transport"]["failures"]["states"][state] == 1
    assert len(caller.events) == 1
    if answer == "data":
        assert "unexpected frame on outbound hop" in host.log.read_text()


def test_a_caller_that_resets_leaves_a_socket_that_no_table_shows(host: SimulatedHost) -> None:
    caller = BarePeer(host.dial, host.address)
    assert caller.inspect() is not None
    assert _hidden(host.pid) == 0
    caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.drop()
    host.until("the slot has leaked", lambda said: said["slots"]["leaked"] == 1)
    assert _hidden(host.pid) == 1


def _hidden(pid: int) -> int:
    """Socket inodes of a process that are in no table of its network."""
    held = {os.readlink(each)[8:-1] for each in Path(f"/proc/{pid}/fd").iterdir() if "socket:" in os.readlink(each)}
    tables = (Path(f"/proc/{pid}/net") / name for name in ("tcp", "tcp6", "udp", "udp6", "unix"))
    words = {word for table in tables if table.exists() for word in table.read_text().split()}
    return len(held - words)


def test_nothing_malformed_ends_the_agent(host: SimulatedHost) -> None:
    stages = planned_ring([host.address], count=2)
    caller = BarePeer(host.dial, host.address)
    for stage in stages:
        assert caller.result(caller.load(stage)) is not None
    for content in (SESSION, PREFILL, "application/vnd.p4.llamacpp.simulated-batch+json", "x/y"):
        for payload in (b"", b"[]", b"{}", b"\xff", b'{"a":1,"a":2}', b'{"load_generation":%d}' % GENERATION):
            event = caller.event(stages[0].end, content, payload, Class.DATA)
            assert caller.answer(caller.send(event), "error-v2") is not None
    session = b'{"load_generation":%d,"session_id":[],"stages":[{"agent":7}],"stage_index":0}' % GENERATION
    assert caller.answer(caller.send(caller.event(stages[0].end, SESSION, session)), "error-v2") is not None
    third = planned_ring([host.address], count=3)[2]
    wrongs: tuple[dict[str, Any], ...]
    wrongs = ({"plan": '--model "'}, {"plan": "-b x"}, {"environment": [1]}, {"n_batch": 1 << 64})
    for number, wrong in enumerate(wrongs):
        body = replace(changed(third, **wrong), generation=GENERATION + number)
        result = caller.result(caller.load(body))
        assert result is not None
        assert result.metadata["resource_state"] == "absent"
    assert host.is_running
