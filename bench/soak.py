"""Random operations on real agents and engines, and KILL at random moments to random processes of theirs.

``python -m bench.soak --json [--rounds 200] [--seed N]`` prints one object. Each round starts a load, an unload, a
drain or a test, kills one process at some moment of it (the operation's, the spare one that waits for the next, an
agent, an engine or a shim), starts a killed agent again and resumes an operation that lost its process. What must
hold, whatever was killed: no record that a console was shown is lost, no slot ever has two engines, and in the end
nothing is left and nothing moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import click
import psutil

from backend.api import (
    Answer,
    Backend,
    FleetState,
    HostState,
    MakePlan,
    ReplicaState,
    Request,
    ResumeOperation,
    StartDrainRequest,
    StartLoad,
    StartUnload,
    SubmitRefused,
    TestRequest,
    load_context,
)
from backend.control.link_ends import LinkSettings
from tests.faults.stand import Asker, FaultFleet, assert_quiet, journal_of, running

HOSTS = ("host-a", "host-b")
SETTLED = (ReplicaState.READY, ReplicaState.FAILED, ReplicaState.STOPPED)
ROUND_SECONDS = 120.0
LONGEST_PAUSE = 1.2
EARLIEST_PAUSE = 0.3
EARLY_SHARE = 0.5
SLOTS_SECONDS = 0.1
MOST_REPLICAS = 2


class Broken(AssertionError):
    """A promise did not hold; the message says which, and in which round."""


class SlotWatch(threading.Thread):
    """Looks at the engines of the fleet all the time: a slot with two of them is what must never be."""

    def __init__(self, fleet: FaultFleet) -> None:
        super().__init__(name="slot-watch", daemon=True)
        self._fleet = fleet
        self.stopping = threading.Event()
        self.second_owners: list[str] = []
        self.looks = 0

    def run(self) -> None:
        while not self.stopping.wait(SLOTS_SECONDS):
            self.looks += 1
            owners: dict[str, set[str]] = defaultdict(set)
            for process in self._fleet.engines():
                with contextlib.suppress(psutil.Error):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        slot, _, generation = os.path.basename(process.cwd()).rpartition("-")
                        owners[slot].add(f"generation {generation} session {os.getsid(process.pid)}")
            self.second_owners += [f"{slot}: {sorted(two)}" for slot, two in owners.items() if len(two) > 1]


class JournalWatch(threading.Thread):
    """Follows both journals with cursors from their first record on, over every restart."""

    def __init__(self, fleet: FaultFleet) -> None:
        super().__init__(name="journal-watch", daemon=True)
        self._fleet = fleet
        self._loop = asyncio.new_event_loop()
        self._ending: asyncio.Event | None = None
        self.askers = {host: Asker(fleet, host, f"soak-{host}", tail=1_000_000) for host in HOSTS}

    def run(self) -> None:
        self._loop.run_until_complete(self._follow())

    async def _follow(self) -> None:
        self._ending = asyncio.Event()
        async with running(*self.askers.values()):
            await self._ending.wait()

    def stop(self) -> None:
        """End the links and wait for that."""
        if self._ending is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
        self.join(10)

    def lost(self) -> list[str]:
        """What was shown and is not in the journals now, and every hole and every other journal that a link noted."""
        found = [f"{host}: {words}" for host, asker in self.askers.items() for words in asker.broken]
        for host, asker in self.askers.items():
            records = asyncio.run(journal_of(self._fleet, host))
            if [record.seq for record in records] != list(range(1, len(records) + 1)):
                found.append(f"{host}: the journal has holes")
            kept = {record.seq: record for record in records}
            found += [f"{host}: record {seq} is gone" for seq, r in asker.records.items() if kept.get(seq) != r]
        return found


class Soak:
    """One run: a fleet, a backend, and a dice."""

    def __init__(self, seed: int, first_port: int) -> None:
        self.dice = random.Random(seed)
        self.fleet = FaultFleet(first_port)
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.fleet.start(*HOSTS)
        settings = LinkSettings(open=5.0, send=5.0, silence=8.0, floor=0.1, ceiling=0.3, settled=1.0, refused=1.0)
        self.backend = Backend(load_context("test", self.fleet.home), who="soak", settings=settings)
        self.slots = SlotWatch(self.fleet)
        self.journals = JournalWatch(self.fleet)

    def start(self) -> None:
        """Begin to watch."""
        self.backend.start()
        self.slots.start()
        self.journals.start()

    @property
    def state(self) -> FleetState:
        """What a console sees."""
        return self.backend.state()

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = ROUND_SECONDS) -> None:
        """Until it holds; Broken otherwise. An agent that ended is started again, an operation resumed, meanwhile."""
        deadline = time.monotonic() + seconds
        while not holds():
            self._keep()
            if time.monotonic() > deadline:
                seen = [(str(r.id), r.state.value, r.words) for r in self.state.replicas.values()]
                ops = [(o.id, o.state, o.words) for o in self.state.operations.values() if o.ended_unix_ms is None]
                raise Broken(f"{what} did not come within {seconds:g} s; replicas {seen}, operations {ops}")
            time.sleep(0.03)

    def _keep(self) -> None:
        for host in HOSTS:
            code = self.fleet.agents[host].poll()
            if code is not None:
                if code != -signal.SIGKILL:
                    self.broken.append(f"{host} ended by itself with {code}: {self.fleet.log_of(host)[-600:]}")
                self.fleet.socket(host).unlink(missing_ok=True)
                self.fleet.spawn_agent(host)
                self.counts["agents started again"] += 1
        for operation in self.state.operations.values():
            if operation.state == "ownerless" and self.heard():
                self.ask(ResumeOperation(operation=operation.id))
                self.counts["operations resumed"] += 1
                self.wait_short(lambda op=operation.id: self.state.operations[op].state != "ownerless")  # type: ignore[misc]

    def wait_short(self, holds: Callable[[], bool]) -> None:
        """Until it holds, or for two seconds."""
        deadline = time.monotonic() + 2.0
        while not holds() and time.monotonic() < deadline:
            time.sleep(0.03)

    def heard(self) -> bool:
        """Both hosts are live."""
        return all(host.state is HostState.LIVE for host in self.state.hosts.values())

    def ask(self, request: Request, seconds: float = 60.0) -> Answer | None:
        """The answer to a request; None when none came."""
        try:
            op_id = self.backend.submit(request)
        except SubmitRefused as error:
            raise Broken(f"the backend takes nothing any more: {error}") from error
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.state.answers.get(op_id)
            if answer is not None and answer.done:
                return answer
            time.sleep(0.01)
        return None

    # One round

    def round(self) -> None:
        """One operation, one KILL, and back to a state where nothing moves."""
        self.wait("both hosts", self.heard)
        begun = self._begin()
        early = self.dice.random() < EARLY_SHARE  # an operation's own process lives for a second at most
        time.sleep(self.dice.uniform(0.0, EARLIEST_PAUSE if early else LONGEST_PAUSE))
        self._kill()
        if begun is not None:
            begun.join(90)
        self.settle()

    def _begin(self) -> threading.Thread | None:
        """Start one operation; a test is asked in a thread of its own."""
        ready = [r for r in self.state.replicas.values() if r.state is ReplicaState.READY]
        kinds = ["load"] if not ready else ["unload", "drain", "test"]
        if ready and len(self.state.replicas) < MOST_REPLICAS:
            kinds.append("load")
        kind = self.dice.choice(kinds)
        if kind == "load":
            self._begin_load()
            return None
        replica = self.dice.choice(ready).id
        self.counts[kind] += 1
        if kind == "test":
            asked = threading.Thread(target=self.ask, args=(TestRequest(replica=replica),), daemon=True)
            asked.start()
            return asked
        drained = StartDrainRequest(replica=replica, deadline_seconds=20.0, at_deadline="stop")
        self._count(self.ask(StartUnload(replica=replica) if kind == "unload" else drained))
        return None

    def _begin_load(self) -> None:
        target = f"tiny:{self.dice.choice(('alone', 'one-worker', 'two-host'))}"
        self.counts["load"] += 1
        planned = self.ask(MakePlan(target=target))
        if planned is None or planned.plan is None or planned.exit_code:
            self.counts["not planned"] += 1
            return
        self._count(self.ask(StartLoad(plan=planned.plan, confirmed=planned.plan.digest)))

    def _count(self, answer: Answer | None) -> None:
        if answer is None or answer.exit_code:
            self.counts["not begun"] += 1

    def _kill(self) -> None:
        victims = self._victims()
        kinds = sorted(kind for kind, pids in victims.items() if pids)
        kind = self.dice.choice(kinds)
        pid = self.dice.choice(sorted(victims[kind]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.counts[f"killed: {kind}"] += 1

    def _victims(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"agent": [], "operation": [], "spare": [], "shim": []}
        for process in self.fleet.processes():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if "backend.control.operations" in line:
                    found["spare" if "--spare-fd" in line else "operation"].append(process.pid)
                elif "backend.agent" in line:
                    found["agent"].append(process.pid)
                elif any(part.endswith("shim.py") for part in line):
                    found["shim"].append(process.pid)
        return {**found, "engine": sorted(self.fleet.engine_pids())}

    def settle(self) -> None:
        """Every operation ended, every replica ready or gone, and no engine that no report knows."""
        self.wait("both hosts again", self.heard)
        self.wait("the end of every operation", self._all_ended)
        self.wait("replicas that move no more", lambda: all(r.state in SETTLED for r in self.state.replicas.values()))
        for replica in [r for r in self.state.replicas.values() if r.state is not ReplicaState.READY]:
            self.counts["failed replicas unloaded"] += 1
            self.ask(StartUnload(replica=replica.id))
            self.wait("the end of the unload", self._all_ended)
        self.wait("engines that are all known", self._all_known, 30.0)

    def _all_ended(self) -> bool:
        return all(o.ended_unix_ms is not None for o in self.state.operations.values())

    def _all_known(self) -> bool:
        known = {
            shard.identity.pid
            for host in self.state.hosts.values()
            for shard in host.entities.shards.values()
            if shard.identity is not None and shard.state not in ("stopped", "failed")
        }
        return self.fleet.engine_pids() == known

    # The end

    def finish(self) -> dict[str, Any]:
        """Unload everything, and look for what is left."""
        self.wait("both hosts", self.heard)
        for replica in list(self.state.replicas):
            self.ask(StartUnload(replica=replica))
        self.wait("the last operations", self._all_ended)
        self.wait("the end of every engine", lambda: not self.fleet.engine_pids(), 60.0)
        self.wait("nothing in the reports", lambda: all(not _held(self.state, h) for h in self.state.hosts), 60.0)
        self.backend.stop()
        left = self._left_over()
        quiet = ""
        try:
            asyncio.run(assert_quiet(self.fleet, 3.0))
        except AssertionError as error:
            quiet = str(error)
        lost = self.journals.lost()
        self.journals.stop()
        self.slots.stopping.set()
        self.slots.join(5)
        return {
            "lost_records": lost,
            "second_owners": self.slots.second_owners,
            "orphans": left,
            "not_quiet": quiet,
            "records": {host: len(asker.records) for host, asker in self.journals.askers.items()},
            "looks_at_slots": self.slots.looks,
        }

    def _left_over(self, seconds: float = 30.0) -> dict[str, list[int]]:
        """Every process of the fleet that is no agent, once those that are just leaving have left."""
        deadline = time.monotonic() + seconds
        while True:
            left = {kind: pids for kind, pids in self._victims().items() if kind != "agent" and pids}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)


def _held(state: FleetState, host: str) -> bool:
    entities = next(view.entities for name, view in state.hosts.items() if name == host)
    return bool(entities.shards or entities.reservations or entities.holds)


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=200, show_default=True)
@click.option("--seed", type=int, default=None, help="the dice; printed, so that a run can be repeated")
@click.option("--seconds", type=float, default=3600.0, show_default=True, help="stop after this long")
@click.option("--first-port", type=int, default=17_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def main(rounds: int, seed: int | None, seconds: float, first_port: int, as_json: bool) -> None:
    """Operate at random, kill at random, and see that nothing is lost, doubled or left."""
    seed = seed if seed is not None else random.SystemRandom().randrange(1 << 32)
    soak = Soak(seed, first_port)
    began = time.monotonic()
    done = 0
    found: dict[str, Any] = {}
    try:
        soak.start()
        while done < rounds and time.monotonic() - began < seconds:
            soak.round()
            done += 1
            if not as_json:
                print(f"round {done}: {dict(soak.counts)}", flush=True)
        found = soak.finish()
    except Broken as broken:
        soak.broken.append(f"round {done + 1}: {broken}")
    finally:
        if soak.broken:
            print(f"the agents' logs are in {soak.fleet.home}", file=sys.stderr)
        else:
            soak.fleet.close()
    result = {"seed": seed, "rounds": done, "seconds": round(time.monotonic() - began, 1), "broken": soak.broken}
    result |= {"counts": dict(sorted(soak.counts.items())), **found}
    print(json.dumps(result, indent=None if as_json else 2))
    bad = soak.broken or any(found.get(key) for key in ("lost_records", "second_owners", "orphans", "not_quiet"))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
