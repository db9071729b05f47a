"""Bodies on a socket: a u32 length in front of each, and four zero bytes as the last word of a side.

FINISH matters more than it looks: a direct connection that ends without one costs its p4 agent a connection slot until
that agent is started again.
"""

from __future__ import annotations

from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.layout import U32_MAX

FINISH = b"\x00\x00\x00\x00"
"""What a side sends when it says nothing more; it then waits for the same from the other."""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""The longest body that we read or write; a p4 agent allows 2 GiB, which nobody here can want to hold."""
_LENGTH_BYTES = 4


def frame_body(body: bytes, limit: int = MAX_BODY_BYTES) -> bytes:
    """A body as it goes onto the socket; raises P4CodecError for an empty one, which would mean FINISH."""
    if not body:
        raise P4CodecError("an empty body would be read as FINISH")
    if len(body) > min(limit, U32_MAX):
        raise P4CodecError(f"the body has {len(body)} bytes; at most {min(limit, U32_MAX)} are sent")
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class BodyReader:
    """Cuts what arrives on one socket into bodies. Holds at most one body and what came with the last piece."""

    def __init__(self, limit: int = MAX_BODY_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()
        self.is_finished = False
        """The peer said FINISH."""

    @property
    def held_bytes(self) -> int:
        """Bytes of a body that has not arrived whole; not 0 at the end of a stream means that it was cut."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived and return the bodies that are whole now.

        A length over the limit is refused when its four bytes are there. Raises P4CodecError for that, and for bytes
        after the peer's FINISH; the reader is of no use after it.
        """
        self._held += data
        bodies: list[bytes] = []
        at = 0
        while not self.is_finished and len(self._held) - at >= _LENGTH_BYTES:
            start = at + _LENGTH_BYTES
            length = int.from_bytes(self._held[at:start], "little")
            if length > self._limit:
                raise P4CodecError(f"a body says it has {length} bytes; at most {self._limit} are read")
            if length == 0:
                self.is_finished = True
                at = start
                break
            if len(self._held) - start < length:
                break
            bodies.append(bytes(self._held[start : start + length]))
            at = start + length
        del self._held[:at]
        if self.is_finished and self._held:
            raise P4CodecError(f"{len(self._held)} bytes follow FINISH, after which a side says nothing")
        return bodies
