"""Follows one ggml-rpc-server: greet it, see its leader come and its weights grow, see its leader go.

It is greeted only before a leader can be attached: it serves one client at a time, and a greeting that is given up
later would kill it. From then on the kernel is asked about its sockets, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from backend.contract.durations import duration
from backend.contract.findings import refuse
from backend.contract.reports import Measurement
from backend.contract.states import ShardState, shard_state
from backend.contract.words import UnixMs
from backend.engines.driver import LeaderGone, PhaseSeen, Run, Seen
from backend.engines.llamacpp.pace import Pace, StartRefused, beat, next_look, overrun, phase_limit
from backend.engines.llamacpp.rpc import KNOWN_PROTOCOLS, Greeting, hello
from backend.engines.llamacpp.sockets import (
    ESTABLISHED,
    LISTEN,
    FourTuple,
    SocketDiag,
    SocketSeen,
    has_ended,
    resident_bytes,
    socket_inodes,
)

ENOUGH = 0.9
"""The share of its planned weights that a worker must hold to count as loaded; some pages may not be touched yet."""
_MEASURE_LOADING_SECONDS = 0.25


class Attachment:
    """Pure: from "which client, how much memory, how much received" to phases.

    A leader opens a dozen short connections before the one that stays. So a client is a leader when its connection
    lasts, or when the weights have come over it.
    """

    def __init__(self, *, planned: int, lasting: float, grace: float, had_leader: bool = False) -> None:
        self._planned = planned
        self._lasting = lasting
        self._grace = grace
        self._client: FourTuple | None = None
        self._since = 0.0
        self._alone_since: float | None = None
        self._has_said_gone = False
        self.state = ShardState.LOADING if had_leader else ShardState.CONNECTING

    def step(
        self, now: float, client: FourTuple | None, loaded: int | None, received: int | None = None
    ) -> PhaseSeen | LeaderGone | None:
        """One look. ``loaded`` is in bytes, None when it cannot be measured: then only the connection counts.

        ``received`` is what came over this very connection, in bytes; None when the kernel does not tell.
        """
        if client != self._client:
            self._client, self._since = client, now
        if client is None:
            return self._alone(now)
        has_weights = received is not None and 0 < ENOUGH * self._planned <= received
        if now - self._since < self._lasting and not has_weights:
            return None
        self._alone_since = None
        if self.state is ShardState.CONNECTING:
            return self._enter(ShardState.LOADING, f"leader {client.remote}:{client.remote_port} attached")
        if self.state is not ShardState.LOADING:
            return None
        if loaded is None or loaded >= ENOUGH * self._planned:
            return self._enter(ShardState.READY, self._holds(loaded))
        if has_weights:
            return self._enter(ShardState.READY, f"received its {self._planned} bytes of weights, leader attached")
        return None

    def _holds(self, loaded: int | None) -> str:
        if loaded is None:
            return f"leader attached; {self._planned} bytes planned, what it holds cannot be measured here"
        return f"holds {min(loaded, self._planned)} of {self._planned} bytes, leader attached"

    def _alone(self, now: float) -> PhaseSeen | LeaderGone | None:
        """No client: harmless before a leader came, and the end after its grace when there was one."""
        if self.state is not ShardState.CONNECTING:
            self._alone_since = now
            return self._enter(
                ShardState.CONNECTING, f"its leader left; it is ended when none attaches within {duration(self._grace)}"
            )
        if self._alone_since is None or self._has_said_gone or now - self._alone_since < self._grace:
            return None
        self._has_said_gone = True
        return LeaderGone(f"it had a leader, and has had none for {duration(self._grace)}")

    def _enter(self, state: ShardState, words: str) -> PhaseSeen:
        self.state = state
        return PhaseSeen(state, words)


class WorkerDrive:
    """One worker, from its spawn on."""

    def __init__(self, run: Run, see: Callable[[Seen], None], pace: Pace, wall_ms: Callable[[], int]) -> None:
        self._run = run
        self._see = see
        self._pace = pace
        self._wall_ms = wall_ms
        self._port = run.shard.ports[0]
        self._on_cpu = run.shard.device == "CPU"
        self._subject = f"rank {run.shard.rank} on {run.shard.host}"
        self._known: FourTuple | None = None

    async def follow(self) -> None:
        """Runs until cancelled. Raises StartRefused when the start must end."""
        with SocketDiag() as diag:
            if self._run.adopted:
                await self._find_again(diag)
            else:
                greeting = await self._greet(diag)
                self._check_protocol(greeting)
                self._see(PhaseSeen(ShardState.CONNECTING, f"answers HELLO {greeting.words}, waiting for its leader"))
            await self._watch(diag)

    async def _find_again(self, diag: SocketDiag) -> None:
        """An adopted worker may have a leader, so it is not greeted: that it listens is all that is asked of it."""
        if shard_state(self._run.shard.state) is not ShardState.SPAWNING:
            return
        limit = phase_limit(self._run.plan, "connecting")
        end = time.monotonic() + limit
        while not self._listens(diag):
            if time.monotonic() >= end:
                waited_for = f"nothing of this worker listens on port {self._port}"
                raise overrun(self._run.plan, self._subject, "connecting", limit, waited_for)
            await asyncio.sleep(next_look(time.monotonic() - end + limit, self._pace.hello_again))
        self._see(PhaseSeen(ShardState.CONNECTING, "adopted: listens, not greeted, as it may have a leader"))

    async def _greet(self, diag: SocketDiag) -> Greeting:
        """Ask for the protocol until the worker answers, within the phase's bound."""
        limit = phase_limit(self._run.plan, "connecting")
        began = time.monotonic()
        waited_for = f"nothing of this worker listens on port {self._port}"
        while True:
            left = began + limit - time.monotonic()
            if left <= 0:
                raise overrun(self._run.plan, self._subject, "connecting", limit, waited_for)
            listens = self._listens(diag)
            other = self._served(diag) if listens else None
            if other is not None:
                client = f"{other.ends.remote}:{other.ends.remote_port}"
                waited_for = f"it serves another client, {client}, and a leader would hang behind that"
            elif listens:
                try:
                    return await hello(self._run.shard.advertise, self._port, min(left, self._pace.hello_deadline))
                except TimeoutError:
                    waited_for = f"no answer to HELLO on port {self._port}: it accepts a connection and says nothing"
                except OSError as error:
                    waited_for = f"HELLO on port {self._port}: {error}"
            await asyncio.sleep(next_look(time.monotonic() - began, self._pace.hello_again))

    def _check_protocol(self, greeting: Greeting) -> None:
        """Refuse another major than the plan's release speaks; a release that is not known here is taken as it is."""
        known = KNOWN_PROTOCOLS.get(self._run.shard.release)
        if known is not None and known[0] != greeting.major:
            release = self._run.shard.release
            raise StartRefused(
                refuse(
                    "protocol.differs",
                    self._subject,
                    expected=f"RPC protocol {'.'.join(map(str, known))}, which release {release} speaks",
                    found=f"{greeting.words} in its answer to HELLO",
                    remedy="Put llama-server and ggml-rpc-server of one build on every host of the ring.",
                )
            )

    def _listens(self, diag: SocketDiag) -> bool:
        """Whether this process, and no other that took the port before it, listens there."""
        inodes = socket_inodes(self._run.pid)
        listeners = diag.dump(LISTEN, local_port=self._port)
        # None: the kernel does not show this process's descriptors. Then any listener must do.
        return any(inodes is None or seen.inode in inodes for seen in listeners)

    def _served(self, diag: SocketDiag) -> SocketSeen | None:
        """The one client that is connected now, by an exact look-up while it stays the same."""
        if self._known is not None:
            seen = diag.look(self._known)
            if seen is not None and seen.state == ESTABLISHED:
                return seen
        # A queued client has no process yet (inode 0): it is not the one served.
        served = [seen for seen in diag.dump(ESTABLISHED, local_port=self._port) if seen.inode]
        self._known = served[0].ends if served else None
        return served[0] if served else None

    async def _watch(self, diag: SocketDiag) -> None:
        """Look at the client and the memory until cancelled."""
        pace, run = self._pace, self._run
        planned = int(run.shard.bound.weights)
        baseline = self._baseline()
        known = shard_state(run.shard.state)
        had_leader = run.adopted and known in (ShardState.LOADING, ShardState.READY, ShardState.DRAINING)
        attachment = Attachment(planned=planned, lasting=pace.lasting, grace=pace.leader_grace, had_leader=had_leader)
        measure_at, changed_at = 0.0, time.monotonic()
        before: FourTuple | None = None
        loaded = None if baseline is None else 0
        while True:
            now = time.monotonic()
            memory = self._memory()
            if memory is not None and baseline is not None:  # else it is what it was at the last look
                loaded = max(0, memory - baseline)
            try:
                served = self._served(diag)
            except OSError as error:
                if attachment.state is not ShardState.READY:
                    raise
                self._see(self._unseen(memory, error))  # unknown, and no end of what serves
                await beat(pace.worker_look)
                continue
            if served is None and has_ended(run.pid):
                return  # its agent sees the exit; no leader left it
            client, received = (served.ends, served.received_bytes) if served is not None else (None, None)
            if client != before:
                before, changed_at = client, now
            seen = attachment.step(now, client, loaded, received)
            if seen is not None:
                self._see(seen)
            is_ready = attachment.state is ShardState.READY
            if is_ready or now >= measure_at or seen is not None:
                self._see(self._measurement(memory, loaded, planned))
                measure_at = now + _MEASURE_LOADING_SECONDS
            if is_ready:
                await beat(pace.worker_look if run.is_watched() else pace.worker_look_unwatched)
            else:
                await asyncio.sleep(next_look(now - changed_at, pace.loading_look))

    def _baseline(self) -> int | None:
        """What the worker had before any weights. For an adopted one that is not known: on the CPU all of it counts."""
        if not self._run.adopted:
            return self._memory()
        return 0 if self._on_cpu else None

    def _memory(self) -> int | None:
        """Resident bytes on the CPU; on another device the bytes that are not free there, whoever has them.

        None while that is not known.
        """
        if self._on_cpu:
            return resident_bytes(self._run.pid)
        free = self._run.free_now()
        return None if free is None else -free

    def _unseen(self, memory: int | None, error: OSError) -> Measurement:
        return Measurement(
            node_id=self._run.shard.node_id,
            observed_unix_ms=UnixMs(self._wall_ms()),
            memory=memory if self._on_cpu else None,
            words=f"whether its leader is connected is unknown: {error}",
        )

    def _measurement(self, memory: int | None, loaded: int | None, planned: int) -> Measurement:
        if memory is None:
            loaded = None  # what it was at the last look is no measurement of now
        return Measurement(
            node_id=self._run.shard.node_id,
            observed_unix_ms=UnixMs(self._wall_ms()),
            memory=memory if self._on_cpu else loaded,
            loaded=None if loaded is None else min(loaded, planned),
            to_load=planned,
            source="resident memory" if self._on_cpu else "device memory",
        )
