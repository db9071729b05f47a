"""Simulated p4 agents as real processes on loopback, each a host of its own: started, asked, switched, ended by pid.

Every agent advertises an address of a network that is not there (``tcp://10.77.0.1:52001``, …) and listens on a free
loopback port; routes stand for the network between them, and on each host 127.0.0.1 is that host. A caller dials
``dial`` and writes ``address`` into its envelopes, as through a tunnel.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

SECONDS = 30.0
"""Deadline of every wait here: the machine may be slow and shared."""
AGENT_PORT = 52001
JOURNAL_VARIABLE = "P4_EVENT_OUTBOUND_JOURNAL_DIR"


class SimulatedHost:
    """One agent process. ``dial`` is where it really listens, ``address`` what it advertises."""

    def __init__(self, home: Path, name: str, advertised: str, sockets: Path, *, has_journal: bool = True) -> None:
        self.home = home
        self.name = name
        self.advertised = advertised
        self.has_journal = has_journal
        self.environment: dict[str, str] = {}
        """More variables that it is started with."""
        self.journal = home / f"{name}-journal"
        self.log = home / f"{name}.log"
        self.config = home / f"{name}.json"
        self.control = sockets / name
        self.address = ""
        self.dial: tuple[str, int] = ("127.0.0.1", 0)
        self.refusal = ""
        self._process: subprocess.Popen[str] | None = None
        self._control: TextIO | None = None

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def spawn(self, **switches: Any) -> None:
        """Start the process; ``wait_ready`` says when it serves."""
        self.config.write_text(json.dumps(switches))
        self.control.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("P4_")}
        if self.has_journal:
            environment[JOURNAL_VARIABLE] = str(self.journal)
        environment |= self.environment
        command = [sys.executable, "-I", "-m", "tests.p4.simulator", "{}:{}".format(*self.dial)]
        command += [self.advertised] if self.advertised else []
        command += ["--config", str(self.config), "--control", str(self.control)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def wait_ready(self) -> None:
        """Wait for the READY line. Raises RuntimeError with the agent's own words when it ends instead."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(SECONDS), f"{self.name} said nothing within {SECONDS:g} s"
        line = self._process.stdout.readline()
        if not line.startswith("P4_EVENT_AGENT_READY address="):
            self.end()
            raise RuntimeError(f"{self.name} did not start: {self.log.read_text().strip().splitlines()[-1:]}")
        self.address = line.strip().partition("address=")[2]
        host, _, port = self.ask()["listening"].rpartition(":")
        self.dial = host, int(port)

    def ask(self) -> dict[str, Any]:
        """What the agent holds now: slots, connections, nodes, journal, switches."""
        return self.set()

    def set(self, **switches: Any) -> dict[str, Any]:
        """Change switches of the running agent, and say what it holds."""
        if self._control is None:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(SECONDS)
            link.connect(str(self.control))
            self._control = link.makefile("rw")
            link.close()
        self._control.write(json.dumps({"set": switches}) + "\n")
        self._control.flush()
        said: dict[str, Any] = json.loads(self._control.readline())
        if "error" in said:
            raise ValueError(said["error"])
        return said

    def until(self, what: str, holds: Any) -> dict[str, Any]:
        """Ask until ``holds`` of what the agent says is true; fail with ``what`` when it is not in time."""
        deadline = time.monotonic() + SECONDS
        while not holds(said := self.ask()):
            assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}; {said}"
            time.sleep(0.005)
        return said

    def end(self, sent: signal.Signals = signal.SIGTERM) -> None:
        """End the process by its pid and wait for it; everything it held is gone but its journal."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(sent)
            try:
                self._process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class SimulatedRing:
    """Some simulated hosts and the network between them."""

    def __init__(self, hosts: list[SimulatedHost]) -> None:
        self.hosts = hosts
        self.routes: dict[str, dict[str, str]] = {}

    def __getitem__(self, index: int) -> SimulatedHost:
        return self.hosts[index]

    def connect(self) -> None:
        """Give every agent the routes to all others, and its own loopback."""
        everywhere = {
            host.address.removeprefix("tcp://"): "{}:{}".format(*host.dial)
            for host in self.hosts
            if not host.address.startswith("tcp://127.")
        }
        for host in self.hosts:
            if not host.advertised:
                continue
            own = "{}:{}".format(*host.dial)
            self.routes[host.name] = everywhere | {f"127.0.0.1:{AGENT_PORT}": own}
            host.set(routes=self.routes[host.name])

    def restart(self, index: int, sent: signal.Signals = signal.SIGTERM, **switches: Any) -> SimulatedHost:
        """End one agent and start it again where it was. Raises RuntimeError when its journal does not let it."""
        host = self.hosts[index]
        host.end(sent)
        host.spawn(routes=self.routes.get(host.name), **switches)
        host.wait_ready()
        return host

    def end(self) -> None:
        """End every process."""
        for host in self.hosts:
            host.end()


def stage_binary(folder: Path, **facts: Any) -> Path:
    """A stage binary for LOADs and memory plans: a small program around the simulated one, with facts of its own."""
    said, program = folder / "p4_staged_server.json", folder / "p4_staged_server"
    said.write_text(json.dumps(facts))
    program.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -I -m tests.p4.simulator.stage_binary --facts '{said}' \"$@\"\n"
    )
    program.chmod(0o755)
    return program


@contextlib.contextmanager
def simulated_ring(
    home: Path,
    count: int = 2,
    *,
    advertised: list[str] | None = None,
    has_journal: bool = True,
    environment: dict[str, str] | None = None,
    **switches: Any,
) -> Iterator[SimulatedRing]:
    """Start some simulated agents, and end them by pid. An empty ``advertised`` advertises what is bound."""
    sockets = Path(tempfile.mkdtemp(prefix="p4-"))
    names = advertised or [f"tcp://10.77.0.{index + 1}:{AGENT_PORT}" for index in range(count)]
    hosts = [
        SimulatedHost(home, f"p4-{index}", name, sockets, has_journal=has_journal) for index, name in enumerate(names)
    ]
    ring = SimulatedRing(hosts)
    try:
        for host in hosts:
            host.environment = environment or {}
            host.spawn(**switches)
        for host in hosts:
            host.wait_ready()
        ring.connect()
        yield ring
    finally:
        ring.end()
        shutil.rmtree(sockets, ignore_errors=True)
