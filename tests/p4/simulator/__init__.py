"""A simulator of a p4 agent with its stages, for tests: a real process with real sockets, and no model behind them.

It is written from the contract's text alone and imports nothing of ``backend``, so that the interoperability vectors
check both sides. What the contract leaves open is said where it is decided. It does not model: the bytes of journal
records, deadlines as an admission fence, stage servers as processes of their own, queue credits other than a paused
node and an event larger than a store, key-value snapshots, and hardware probes.
"""
