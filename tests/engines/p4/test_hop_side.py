"""One side of a hop connection without a socket: any frames in any order, and every store stays within its bound."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.hops import Data, Hello, HelloAck, Query, QueryResult, Receipt, ReceiptAck, ReceiptStatus
from backend.engines.p4.hop_side import HopSide, TooManyOutstanding
from tests.contract.p4.bytes_on_file import body_of, entries

ROOM = 4
_vector: Any = entries("p4e3-valid")[2].values[0]
EVENT = body_of(_vector)
ACK = HelloAck(7, "peer", 9, 300, 1000)

attempts = st.integers(1, 6)
digests = st.sampled_from([Data(1, EVENT).digest, Data(1, b"mine").digest, bytes(32)])
names = st.sampled_from(["peer", "me"])
frames = st.one_of(
    st.just(ACK),
    st.just(Hello("peer", 9, 1, 1)),
    st.builds(Data, attempts, st.sampled_from([EVENT, b"no event"])),
    st.builds(Receipt, attempts, digests, st.sampled_from(ReceiptStatus), st.just("")),
    st.builds(QueryResult, attempts, digests, st.sampled_from(ReceiptStatus), st.just("")),
    st.builds(ReceiptAck, names, st.just(9), attempts, digests),
    st.builds(Query, names, st.just(9), attempts, digests),
)


def a_side() -> HopSide:
    side = HopSide("me", 7, ROOM, 1 << 20)
    assert side.hear(ACK).greeted
    return side


@given(steps=st.lists(st.none() | frames, max_size=40))
def test_any_frames_in_any_order_leave_every_store_bounded(steps: list[Any]) -> None:
    side = a_side()
    for step in steps:
        with contextlib.suppress(P4CodecError, TooManyOutstanding):
            if step is None:
                side.send(b"mine")
            else:
                heard = side.hear(step)
                assert len(heard.answers) <= 1
        assert side.outstanding <= ROOM
        assert side.pinned <= ROOM + 64


def test_an_event_is_kept_until_its_receipt_which_is_acknowledged_once() -> None:
    side = a_side()
    data = side.send(b"mine")
    assert side.outstanding == 1
    receipt = Receipt(1, data.digest, ReceiptStatus.ACCEPTED_EXACT)
    assert side.hear(receipt).answers == (ReceiptAck("me", 7, 1, data.digest),)
    assert side.outstanding == 0
    again = side.hear(receipt)
    assert (again.answers, again.settled) == ((), None)
    assert "waits for none" in again.ignored
    side.send(b"mine")
    with pytest.raises(P4CodecError, match="other bytes"):
        side.hear(Receipt(2, bytes(32), ReceiptStatus.ACCEPTED_EXACT))


def test_unknown_to_a_query_settles_nothing_and_a_later_receipt_still_does() -> None:
    side = a_side()
    data = side.send(b"mine")
    unknown = side.hear(QueryResult(1, data.digest, ReceiptStatus.UNKNOWN, "receipt is not pinned"))
    assert unknown.settled is not None
    assert side.outstanding == 1
    late = side.hear(Receipt(1, data.digest, ReceiptStatus.REJECTED, "full"))
    assert late.answers == ()
    assert late.settled is not None
    assert (late.settled.status, late.settled.detail) == (ReceiptStatus.REJECTED, "full")


def test_receipts_that_nobody_acknowledges_end_in_a_full_store_not_in_memory() -> None:
    side = a_side()
    statuses = []
    for attempt in range(1, ROOM + 3):
        (receipt,) = side.hear(Data(attempt, EVENT)).answers
        assert isinstance(receipt, Receipt)
        statuses.append(receipt.status)
    assert statuses == [ReceiptStatus.ACCEPTED_EXACT] * ROOM + [ReceiptStatus.REJECTED] * 2
    side.hear(ReceiptAck("peer", 9, 1, Data(1, EVENT).digest))
    (receipt,) = side.hear(Data(99, EVENT)).answers
    assert isinstance(receipt, Receipt)
    assert receipt.status is ReceiptStatus.ACCEPTED_EXACT
    for attempt in range(200, 400):
        side.hear(Data(attempt, b"no event"))
    assert side.pinned == ROOM + 64


def test_nothing_leaves_before_the_hello_is_answered() -> None:
    side = HopSide("me", 7, ROOM, 1)
    with pytest.raises(P4CodecError, match="before the peer answered Hello"):
        side.send(b"mine")
    with pytest.raises(P4CodecError, match="only the answer to Hello"):
        side.hear(Data(1, EVENT))
