"""The p4 event contract as bytes: events, hop frames, lifecycle payloads and their framing on a socket.

Pure: bytes in, frozen structs out, and back. Whatever is refused raises ``P4CodecError`` and nothing else, and no
length that a peer declares is believed before the bytes are there.
"""
