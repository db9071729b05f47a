"""What a simulated agent is told to be: facts of its host, and the switches that play what operators met."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass
class Switches:
    """Everything settable at the start (a JSON file) and while running (the control socket). Defaults are sound."""

    # what the agent and its host are
    advertised: str = ""
    """Overrides the advertised address; empty is the command line's, or what was bound."""
    routes: dict[str, str] | None = None
    """Stands for the network: where each ``host:port`` really is; others are refused. None dials addresses as said."""
    journal: str = ""
    """The journal directory; empty is the environment's, and none at all when that is unset too."""
    journal_max_bytes: int = 1 << 40
    slots: int = 256
    retained_bytes: int = 256 * MIB
    receipt_bytes: int = 64 * MIB
    outstanding: int = 256
    devices: list[str] = field(default_factory=lambda: ["CUDA0"])
    memory_bytes: int = 128 << 30
    device_bytes: int = 24 << 30
    probe_seconds: float = 0.0
    """How long the hardware probe of an INSPECT holds up everything else that is addressed to the agent."""

    # the model, and the release of the stage binary
    n_layer: int = 45
    n_embd: int = 4096
    tensors: int = 2
    layer_bytes: int = 100 * MIB
    kv_bytes: int = 2048
    """Of one layer and one position."""
    speculative: bool = False
    upstream: str = "451b89bae"
    patch_set: str = "f00dcafe0001"
    backend_inventory: str = ""
    """Empty: derived from the devices."""
    stage_wire_abi: str = "physical-v4"
    stage_lacks: list[str] = field(default_factory=list)
    """Fields that an older stage binary leaves out of its HELLO."""
    stage_processes: bool = False
    """Launch each LOAD's ``binary`` as a child, which then says READY itself, instead of playing it."""
    spin_threads: int = 0
    """Threads of a stage process that burn while they wait, unless its OMP_WAIT_POLICY is PASSIVE."""
    reports_load_generation: bool = False
    """Whether the snapshot names ``nodes[].load_generation``, as newer engines may."""

    # how it behaves
    broker: str = "public"
    """An unknown node at the own address: ``public`` refuses it, ``private`` forwards it outward, into silence."""
    slot_leak: bool = True
    """A direct connection that ends without FINISH keeps its slot for ever, as the contract says."""
    silence: str = ""
    """``all``: connections are taken and nothing is ever said. ``replies``: receipts, but no event back."""
    lost_receipts: str = ""
    """``unsent``: the receipt is pinned and never sent. ``forgotten``: nor is it pinned, so a query says unknown."""
    load_seconds: float = 0.0
    unload_seconds: float = 0.0
    ready_bound: int = 0
    """The max_physical_result_bytes that READY reports instead of the derived one."""
    load_outcome: str = ""
    """``unknown``: a load ends failed and unknown. ``present``: failed, and the stage is still there."""
    unload_outcome: str = ""
    """``unknown``: an unload ends failed and unknown."""
    stuck_state: str = ""
    """A state text that every stage shows, whatever it does."""
    census_check: bool = True
    """The head stops at the first release whose source has another generation than its load."""
    census_lag: dict[str, int] = field(default_factory=dict)
    """Counts of the release census that never empty, by name, as after a release that never came."""
    token_seconds: float = 0.0
    hold_tokens: bool = False
    """The tail keeps every token back, so that requests stay in flight."""
    eos_after: int = 0
    telemetry: bool = True

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()

    def set(self, values: dict[str, Any]) -> None:
        """Change some of them. Raises ValueError for an unknown name or another type."""
        known = {each.name for each in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"no such switch: {name}. There are {', '.join(sorted(known))}")
            old = getattr(self, name)
            if isinstance(old, float) and type(value) is int:
                value = float(value)
            if old is not None and value is not None and type(value) is not type(old):
                raise ValueError(f"switch {name} is {type(old).__name__}, not {value!r}")
            setattr(self, name, value)
        self._changed.set()

    async def until_tokens_flow(self) -> None:
        """Wait while tokens are held back."""
        while self.hold_tokens:
            self._changed.clear()
            await self._changed.wait()

    def as_dict(self) -> dict[str, Any]:
        """All of them by name."""
        return asdict(self)

    @property
    def inventory(self) -> str:
        """The stage's backend inventory: every backend with its devices, sorted."""
        if self.backend_inventory:
            return self.backend_inventory
        groups: dict[str, list[str]] = {"CPU": ["CPU"]}
        for device in self.devices:
            groups.setdefault(device.rstrip("0123456789"), []).append(device)
        return "|".join(f"{name}[{','.join(sorted(group))}]" for name, group in sorted(groups.items()))


def read_switches(file: Path | None) -> Switches:
    """The switches of a configuration file, or the defaults."""
    switches = Switches()
    if file is not None:
        switches.set(json.loads(file.read_text()))
    return switches
