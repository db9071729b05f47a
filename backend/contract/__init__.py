"""The words as types, shared by both sides of the wire. Pure: no I/O, no clock, no randomness."""
