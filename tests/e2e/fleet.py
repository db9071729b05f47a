"""Two real agents on this machine, a real catalog and the real command line around them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from backend.local.tiny_model import write_tiny_model
from tests.ports import give_back

T = TypeVar("T")

PATIENCE = 40.0
"""Seconds to wait for something that must come: two slow cores share everything here."""

CATALOG = """
[models.tiny]
path = "tiny.gguf"
aliases = ["t"]
engine = "llamacpp"

[models.tiny.profiles.two-host]
ranks = 3
hosts = ["host-a", "host-b"]
device = "CPU"
context = 2048
sequences = 2

[models.tiny.profiles.one-worker]
ranks = 2
hosts = ["host-a"]
context = 2048

[models.tiny.profiles.three-workers]
ranks = 4
hosts = ["host-a", "host-b"]
context = 2048

[models.tiny.profiles.alone]
ranks = 1
hosts = ["host-a"]
context = 2048
"""


def until(what: str, look: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Look again and again until there is something; fails naming what did not come."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds:g} s; last seen: {seen!r}")
        time.sleep(0.05)


def _has_ended(process: psutil.Process) -> bool:
    """Whether a process writes no more: it is gone, or waits for whoever started it to collect it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Fleet:
    """A home folder, agents by name, and the `ringtop` command."""

    def __init__(self, first_port: int, catalog: str = CATALOG) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
        self.first_port = first_port
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        (self.home / "models").mkdir()
        write_tiny_model(self.home / "models" / "tiny.gguf")
        (self.home / "catalog.toml").write_text(catalog)
        self.write_contexts({name: f"unix:{self.socket(name)}" for name in ("host-a", "host-b")})
        for index, name in enumerate(("host-a", "host-b")):
            self.write_agent(name, index)

    def socket(self, name: str) -> Path:
        return self.home / f"{name}.sock"

    def write_contexts(self, hosts: dict[str, str]) -> None:
        lines = ['default = "test"', "[contexts.test]", 'label = "TEST"', 'catalog = "catalog.toml"']
        lines += ["[contexts.test.hosts]", *(f'{name} = "{address}"' for name, address in hosts.items())]
        (self.home / "contexts.toml").write_text("\n".join(lines) + "\n")

    def write_agent(self, name: str, index: int, extra: str = "", engine_folder: str = "") -> None:
        low = self.first_port + 40 * index
        (self.home / f"{name}.toml").write_text(
            f'host = "{name}"\nstate = "{self.home / name}"\nsocket = "{self.socket(name)}"\n'
            f'ports = [{low}, {low + 39}]\nmodel_roots = ["{self.home / "models"}"]\n{extra}\n'
            f'[engines.llamacpp]\nfolder = "{engine_folder}"\n'
        )

    def start(self, *names: str) -> None:
        """Start agents and wait until each listens."""
        for name in names or ("host-a", "host-b"):
            log = open(self.home / f"{name}.log", "ab")  # noqa: SIM115  the process keeps it
            self.agents[name] = subprocess.Popen(
                [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", str(self.home / f"{name}.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for name in names or ("host-a", "host-b"):
            until(f"the socket of {name}", self.socket(name).exists)

    def kill_agent(self, name: str) -> None:
        """End an agent as nothing should: at once, without a word."""
        agent = self.agents.pop(name)
        agent.kill()
        agent.wait()
        self.socket(name).unlink(missing_ok=True)

    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "HOME")}
        return {**kept, "RINGTOP_HOME": str(self.home), "TERM": "xterm-256color"}

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-I", "-m", "console.cli", *args]

    def run(
        self, *args: str, seconds: float = 60.0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One `ringtop` command, to its end."""
        return subprocess.run(
            self.command(*args),
            env={**self.env(), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def json(self, *args: str, code: int = 0) -> Any:
        """What a command prints with --json; its exit code must be ``code``."""
        done = self.run(*args, "--json")
        assert done.returncode == code, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def load(self, target: str = "tiny:two-host") -> dict[str, Any]:
        """Load and return the replica as `ls replicas` shows it."""
        done = self.run("load", target, "--yes")
        assert done.returncode == 0, f"load {target}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        (replica,) = [r for r in self.json("ls", "replicas") if r["state"] == "ready"]
        return dict(replica)

    def replica(self, name: str = "tiny-1") -> dict[str, Any] | None:
        return next((dict(r) for r in self.json("ls", "replicas") if r["id"] == name), None)

    def pid_of(self, node: str) -> int:
        """The process of one shard."""
        replica = self.replica(node.partition("/")[0])
        assert replica is not None
        return int(next(s["pid"] for s in replica["shards"] if s["rank"] == int(node.rpartition("/")[2])))

    def processes(self) -> list[psutil.Process]:
        """Every process that carries this home in its command line: agents, shims, engines, operations."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if str(self.home) in line and process.pid != os.getpid():
                found.append(process)
        return found

    def engines(self) -> list[psutil.Process]:
        """The engines that this fleet's agents started: their working folder is their run's."""
        found = []
        for process in psutil.process_iter(["name"]):
            try:
                inside = process.cwd().startswith(str(self.home))
            except psutil.Error:
                continue
            if inside and process.info["name"] in ("llama-server", "ggml-rpc-server"):
                found.append(process)
        return found

    def close(self) -> None:
        """End what this fleet started, by its own processes only; at once, as consoles may still be connected."""
        for agent in self.agents.values():
            agent.kill()
        for agent in self.agents.values():
            agent.wait()
        left = [*self.engines(), *self.processes()]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while not all(_has_ended(each) for each in left) and time.monotonic() < deadline:
            time.sleep(0.005)  # what still writes would make a folder that is being removed anew
        shutil.rmtree(self.home, ignore_errors=True)
        give_back(self.first_port)
