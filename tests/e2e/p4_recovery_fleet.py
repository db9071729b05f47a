"""A p4 fleet whose simulated p4 agents can be ended and started by commands, as a service's are on a host."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.fleet import until
from tests.e2e.p4_fleet import SOUND, P4Fleet
from tests.p4.ring import JOURNAL_VARIABLE, SimulatedHost, SimulatedRing, simulated_ring
from tests.ports import claim_block

KILL = "/bin/kill"


class RecoverableFleet(P4Fleet):
    """Each p4 agent has ``stop`` and ``start`` in agent.toml; what they start is ended by its pid in ``close``."""

    def __init__(self, first_port: int, ring: SimulatedRing, **switches: Any) -> None:
        super().__init__(first_port, ring)
        self.switches = {**SOUND, **switches}
        self.names = ("host-a", "host-b")
        for index, name in enumerate(self.names):
            start = self.start_script(name)
            self.configure(name, index, stop=(KILL, "-TERM", "{pid}"), start=(str(start),))

    def configure(self, name: str, index: int, *, more: str = "", **commands: tuple[str, ...]) -> None:
        """The commands of one host; the agent reads them when it starts."""
        self.more[name] = "\n".join([*(f"{key} = {json.dumps(list(words))}" for key, words in commands.items()), more])
        self.write_agent(name, index)

    def start_script(self, name: str) -> Path:
        """What starts this host's p4 agent again, where it was; it returns at once, and writes down whom it started."""
        sim = self.sim(name)
        sim.config.write_text(json.dumps({**self.switches, "routes": self.ring.routes.get(sim.name)}))
        words = [sys.executable, "-I", "-m", "tests.p4.simulator", "{}:{}".format(*sim.dial), sim.advertised]
        words += ["--config", str(sim.config), "--control", str(sim.control)]
        script = self.home / f"start-{name}"
        script.write_text(
            f"#!/bin/sh\nrm -f {shlex.quote(str(sim.control))}\n"
            f"{JOURNAL_VARIABLE}={shlex.quote(str(sim.journal))} setsid {shlex.join(words)} "
            f">>{shlex.quote(str(sim.log))} 2>&1 </dev/null &\necho $! >>{self.pids}\n"
        )
        script.chmod(0o755)
        return script

    def script(self, name: str, text: str) -> Path:
        """A program of the test."""
        path = self.home / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    @property
    def pids(self) -> Path:
        """Where every process that a script leaves behind is written down."""
        return self.home / "started-pids"

    def sim(self, name: str) -> SimulatedHost:
        """The simulated p4 agent of a host."""
        return self.ring[self.names.index(name)]

    def again(self, name: str) -> SimulatedHost:
        """The simulated p4 agent of a host after it was started by its script: its control socket is another one."""
        sim = self.sim(name)
        if sim._control is not None:
            sim._control.close()
            sim._control = None
        until(f"the control socket of {name}", sim.control.exists)
        return sim

    def plan(self, host: str, *words: str, code: int = 1) -> Path:
        """Make a recovery plan and save it."""
        path = self.home / f"recovery-{host}.json"
        done = self.run("p4", "recover", host, "--plan", "-o", str(path), *words)
        assert done.returncode == code, done.stdout + done.stderr
        return path

    def close(self) -> None:
        """End what scripts have started, then the rest."""
        started = self.pids.read_text().split() if self.pids.exists() else []
        super().close()
        for pid in started:
            end_process(int(pid))


@contextmanager
def recoverable_fleet(folder: Path, **switches: Any) -> Iterator[RecoverableFleet]:
    """A started fleet of two hosts whose p4 agents can be ended and started; everything ends with it."""
    with simulated_ring(folder, 2, **{"n_layer": 4, **switches}) as ring:
        fleet = RecoverableFleet(claim_block(), ring, **switches)
        try:
            fleet.start()
            yield fleet
        finally:
            fleet.close()


def end_process(pid: int) -> None:
    """End one process of this test by its pid, and everything under it."""
    try:
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            os.kill(each.pid, signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return
