"""A simulator of a p4 agent with its stages, for tests: real processes with real sockets, and no model behind them.

It is written from the contract's text alone and imports nothing of the product, so that the interoperability vectors
check both sides. ``python -m tests.p4.simulator`` is the agent, ``tests/p4/ring.py`` starts some of them with a network
between, ``stage_binary.py`` is a stage server and its ``--inspect-memory-plan``, ``switches.py`` says what can be
switched.

Ours, as the contract does not say them: the bytes and most names of journal records (known are ``.admission``,
inbound, outbound and marker files, and that nothing is deleted; events to the agent itself leave none here), what
travels between stages, the class of error events (telemetry), the wording of the broker's errors, that FINISH is
echoed behind what is queued and not behind what is still being worked on, and what an UNLOAD of a stopped node ends
in (failed, unknown).

Not modelled: deadlines as an admission fence, queue credits other than a paused node and an event larger than a store,
queries that an agent sends after its own attempts, more than one attempt under way to a peer, speculative decoding
beyond the bound, key-value snapshots, tokenising, hardware probes, the legacy node commands, and Windows.
"""
