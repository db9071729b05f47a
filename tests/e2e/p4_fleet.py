"""Two real agents beside two simulated p4 agents on this machine, and the real command line around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.fleet import Fleet
from tests.p4.ring import SimulatedRing

P4_CATALOG = """
[models.step]
path = "tiny.gguf"
engine = "p4"
geometry = { cut_tensors = 2, cut_row_bytes = 32768 }

[models.step.profiles.ring]
ranks = 4
hosts = ["host-a", "host-b"]
device = "CPU"
context = 512
sequences = 8
n_batch = 128
n_ubatch = 32
options = { store = 192 }

[models.step.profiles.short]
ranks = 2
hosts = ["host-a"]
device = "CPU"
context = 512
sequences = 8
n_batch = 128
n_ubatch = 32
options = { store = 192 }
"""
SOUND: dict[str, Any] = {"n_layer": 4}
"""The switches of a p4 agent whose stages read the tiny model."""
HEAD_BOUND, TAIL_BOUND = 137_935_244, 3_696_012


class P4Fleet(Fleet):
    """A fleet whose agents each have a simulated p4 agent; ``host-a`` has the ring's first, ``host-b`` its second."""

    def __init__(self, first_port: int, ring: SimulatedRing, catalog: str = P4_CATALOG) -> None:
        self.ring = ring
        self.more: dict[str, str] = {}
        super().__init__(first_port, catalog)

    def write_agent(self, name: str, index: int, extra: str = "", engine_folder: str = "") -> None:
        """An agent that asks its p4 agent."""
        super().write_agent(name, index, extra, engine_folder)
        binary = self.home / f"stage-{name}"
        if not binary.exists():
            binary.write_text("#!/bin/sh\nexit 2\n")
            binary.chmod(0o755)
        sim = self.ring[index]
        with (self.home / f"{name}.toml").open("a") as file:
            file.write(
                f'\n[engines.p4]\nagent = "tcp://{sim.dial[0]}:{sim.dial[1]}"\nadvertise = "{sim.address}"\n'
                f'binary = "{binary}"\njournal = "{sim.journal}"\n{self.more.get(name, "")}\n'
            )

    def binary(self, name: str) -> Path:
        """The stage's program of one host."""
        return self.home / f"stage-{name}"

    def shards(self, replica: str) -> dict[int, dict[str, Any]]:
        """Every shard of a replica by its rank."""
        found = self.replica(replica)
        return {} if found is None else {int(shard["rank"]): shard for shard in found["shards"]}
