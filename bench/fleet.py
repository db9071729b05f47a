"""Real agents for the benchmarks, an operator's backend in this process, and what the figures are made of."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from backend.api import (
    Answer,
    Backend,
    FleetState,
    MakePlan,
    OperationView,
    OpId,
    Plan,
    ReplicaView,
    StartLoad,
    StartUnload,
    load_context,
)
from backend.local.tiny_model import write_tiny_model

T = TypeVar("T")

PATIENCE_SECONDS = 90.0
ENGINES = ("llama-server", "ggml-rpc-server")
CATALOG = """
[models.tiny]
path = "tiny.gguf"
engine = "llamacpp"

[models.tiny.profiles.ring]
ranks = 3
hosts = ["host-a", "host-b"]
device = "CPU"
context = 2048
sequences = 2
threads = 1

[models.tiny.profiles.wide]
ranks = 4
hosts = ["host-a"]
device = "CPU"
context = 256
sequences = 1
threads = 1

[models.big]
path = "big.gguf"
engine = "llamacpp"

[models.big.profiles.ring]
ranks = 3
hosts = ["host-a", "host-b"]
device = "CPU"
context = 2048
sequences = 2
threads = 1
"""


class BenchFailed(Exception):
    """Something that the figures need did not happen; the message says what."""


def until(what: str, look: Callable[[], T | None], pause: float = 0.001) -> T:
    """What ``look`` finds, looked for again and again. Raises BenchFailed naming what did not come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        if found := look():
            return found
        if time.monotonic() > deadline:
            raise BenchFailed(f"{what} did not come within {PATIENCE_SECONDS:g} s")
        time.sleep(pause)


def median(values: Sequence[float], digits: int = 4) -> float:
    """The median, rounded for reading."""
    return round(statistics.median(values), digits)


def percentile(values: Sequence[float], share: float, digits: int = 4) -> float:
    """The value below which ``share`` of all lie, rounded for reading."""
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))], digits)


def ratio(ours: Sequence[float], floor: Sequence[float]) -> float:
    """The median of the ratios of each round."""
    return round(statistics.median(a / b for a, b in zip(ours, floor, strict=True)), 2)


def free_block(size: int) -> int:
    """The first of ``size`` ports below the kernel's ephemeral range that nobody listens at."""
    first = 12_000 + (os.getpid() % 20) * size
    while True:
        taken = False
        for port in range(first, first + size):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    taken = True
                    break
        if not taken:
            return first
        first += size


def answers(path: Path) -> bool:
    """Whether somebody listens at a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class Fleet:
    """A home folder with agents by name. Use as a context manager.

    ``folder`` in memory (/dev/shm) takes disk syncs out of the figures.
    """

    def __init__(self, hosts: Sequence[str] = ("host-a", "host-b"), *, big: bool = False, folder: str = "/tmp") -> None:
        self.home = Path(tempfile.mkdtemp(prefix="rtb", dir=folder))
        self.hosts = tuple(hosts)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        (self.home / "models").mkdir()
        write_tiny_model(self.home / "models" / "tiny.gguf")
        if big:
            # 1 GB; the defaults give 1.5 MB
            path = self.home / "models" / "big.gguf"
            write_tiny_model(path, layers=8, embd=2048, heads=16, kv_heads=16, ff=7168)
        (self.home / "catalog.toml").write_text(CATALOG)
        lines = ['default = "bench"', "[contexts.bench]", 'label = "BENCH"', "[contexts.bench.hosts]"]
        lines += [f'{host} = "unix:{self.socket(host)}"' for host in self.hosts]
        (self.home / "contexts.toml").write_text("\n".join(lines) + "\n")
        first = free_block(40 * len(self.hosts))
        for index, host in enumerate(self.hosts):
            low = first + 40 * index
            (self.home / f"{host}.toml").write_text(
                f'host = "{host}"\nstate = "{self.home / host}"\nsocket = "{self.socket(host)}"\n'
                f'ports = [{low}, {low + 39}]\nmodel_roots = ["{self.home / "models"}"]\n'
                '[engines.llamacpp]\nfolder = ""\n'
            )

    def __enter__(self) -> Fleet:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def model(self) -> Path:
        """The tiny model's file."""
        return self.home / "models" / "tiny.gguf"

    def socket(self, host: str) -> Path:
        """Where an agent listens."""
        return self.home / f"{host}.sock"

    def start(self) -> None:
        """Start every agent and wait until each listens."""
        for host in self.hosts:
            with open(self.home / f"{host}.log", "ab") as log:
                self.agents[host] = subprocess.Popen(
                    [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", str(self.home / f"{host}.toml")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        until("an answer of every agent", lambda: all(answers(self.socket(host)) for host in self.hosts))

    @contextlib.contextmanager
    def backend(self) -> Iterator[Backend]:
        """An operator's backend that has heard every agent."""
        backend = Backend(load_context("bench", self.home))
        backend.start()
        try:
            backend.wait_settled(PATIENCE_SECONDS)
            until("the catalog", lambda: backend.state().models)
            yield backend
        finally:
            backend.stop()

    def engines(self) -> list[psutil.Process]:
        """The engines that these agents started: their working folder is their run's."""
        found = []
        for process in psutil.process_iter(["name"]):
            with contextlib.suppress(psutil.Error):
                if process.info["name"] in ENGINES and process.cwd().startswith(str(self.home)):
                    found.append(process)
        return found

    def close(self) -> None:
        """End what was started here, and nothing else."""
        for agent in self.agents.values():
            agent.terminate()
        for agent in self.agents.values():
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for engine in self.engines():
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.send_signal(signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


@contextlib.contextmanager
def floor(kind: str, socket_path: Path, *rest: object) -> Iterator[subprocess.Popen[bytes]]:
    """One of the programs of ``floors.py``, listening."""
    program = [sys.executable, "-I", str(Path(__file__).with_name("floors.py")), kind, str(socket_path)]
    process = subprocess.Popen([*program, *map(str, rest)], stdin=subprocess.DEVNULL)
    try:
        until(f"the socket of {kind}", lambda: answers(socket_path))
        yield process
    finally:
        process.kill()
        process.wait()
        socket_path.unlink(missing_ok=True)


def make_plan(backend: Backend, target: str) -> Plan:
    """A plan that no guard refuses."""
    op_id = backend.submit(MakePlan(target=target))
    answer = until("a plan", lambda: _answer(backend.state(), op_id))
    if answer.plan is None or answer.plan.is_refused:
        raise BenchFailed(f"{target} cannot be planned: {answer.words}")
    return answer.plan


def start_load(backend: Backend, plan: Plan) -> OpId:
    """Begin to load a plan, as if it had just been confirmed."""
    return backend.submit(StartLoad(plan=plan, confirmed=plan.digest))


def wait_ready(backend: Backend, plan: Plan) -> ReplicaView:
    """The replica as soon as the operator's side sees that it is ready: every rank, and a canary."""

    def look() -> ReplicaView | None:
        view = backend.state().replicas.get(plan.replica)
        if view is None or view.load_generation != plan.load_generation:
            return None
        if view.state.value == "failed":
            raise BenchFailed(f"{plan.replica} failed: {view.words}")
        return view if view.state.value == "ready" else None

    return until(f"{plan.replica} ready", look, 0.0005)


def wait_ended(backend: Backend, op_id: OpId) -> OperationView:
    """The operation once its ledger says that it succeeded. Raises BenchFailed for another end."""

    def look() -> OperationView | None:
        answer = backend.state().answers.get(op_id)
        if answer is not None and answer.exit_code:
            raise BenchFailed(f"{op_id}: {answer.words}")
        operation = backend.state().operations.get(op_id)
        if operation is None or operation.state == "running":
            return None
        if operation.state != "succeeded":
            raise BenchFailed(f"{op_id} is {operation.state}: {operation.words}")
        return operation

    return until(f"the end of {op_id}", look, 0.005)


def unload(backend: Backend, plan: Plan) -> OperationView:
    """Unload a replica, to the proof that nothing of it is left."""
    return wait_ended(backend, backend.submit(StartUnload(replica=plan.replica, why="bench")))


def _answer(state: FleetState, op_id: OpId) -> Answer | None:
    answer = state.answers.get(op_id)
    return answer if answer is not None and answer.done else None
