"""Every guard there is, by the id that its findings carry: what it prevents, what to do, and when it can first know."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backend.contract.findings import Finding
from backend.planning.guards import addresses, devices, hosts, numbers, replicas, serving, shape, sizes
from backend.planning.guards.situation import Guard, Situation

GENERATION = "load generation differs from node generation"
BOUND = "result bound guessed"
LOOPBACK = "loopback advertised across hosts"
JOURNAL = "journal off"
DEVICE = "device name of another backend"
RELEASE = "native server older than the agent"
TARGET = "LOAD sent to the node that it creates"

Check = Callable[[Situation], Iterable[Finding]]


def _refuse(
    id: str, prevents: str, remedy: str, source: str, check: Check | None = None, step: str = "plan", drift: str = ""
) -> Guard:
    return Guard(
        id=id, prevents=prevents, severity="refuse", remedy=remedy, source=source, step=step, drift=drift, check=check
    )


def _warn(
    id: str, prevents: str, remedy: str, source: str, check: Check | None = None, step: str = "plan", drift: str = ""
) -> Guard:
    return Guard(
        id=id, prevents=prevents, severity="warn", remedy=remedy, source=source, step=step, drift=drift, check=check
    )


_HOSTS = (
    _refuse("host.unknown", "a load planned for a host nobody has", "Correct hosts.", "contexts.toml", hosts.unknown),
    _refuse(
        "host.unreachable",
        "a load that waits for a host that does not answer",
        "Bring its agent back, or name others.",
        "the links",
        hosts.unreachable,
    ),
    _refuse("hosts.none", "a plan without any host", "Change what speaks against each.", "placement", hosts.none),
    _refuse(
        "host.refuses",
        "engines that die when their agent restarts or one of them runs out of memory",
        "Set KillMode=process and OOMPolicy=continue in the agent's unit.",
        "the agent's control group and unit",
        hosts.refuses,
    ),
    _refuse(
        "host.pool", "a load on a host that is kept for others", "Name another host.", "pool in agent.toml", hosts.pool
    ),
    _refuse("host.fabric", "a ring over the slow network", "Name another host.", "fabric in agent.toml", hosts.fabric),
    _warn(
        "fabric.differs",
        "every token crossing between two networks",
        "Set fabric.",
        "fabric in agent.toml",
        hosts.fabric,
    ),
    _refuse(
        "host.cores",
        "more CPU promised than there is",
        "Unload something, or lower cpu_cores.",
        "load records against cores in agent.toml",
        hosts.budgets,
    ),
    _refuse(
        "host.power",
        "a circuit that trips",
        "Unload something, or lower power.",
        "load records against power_w in agent.toml",
        hosts.budgets,
    ),
    _refuse(
        "journal.unhealthy",
        "a load that nobody remembers after a restart",
        "Free space, or repair the journal on the host.",
        "the agent's journal",
        hosts.journal,
        drift=JOURNAL,
    ),
    _refuse("engine.missing", "a load that no program can serve", "Install it there.", "agent.toml", hosts.engine),
    _refuse(
        "release.differs",
        "ranks that misread each other, or hang",
        "Install one release on every host of the ring.",
        "the engine's own version on every host",
        hosts.release,
        drift=RELEASE,
    ),
    _refuse(
        "cpu.features",
        "an engine that dies of signal 4 (illegal instruction) at its warm-up",
        "Use an f16 model and cache, a GPU, or another build.",
        "/proc/cpuinfo against the build",
        hosts.cpu,
    ),
)

_DEVICES = (
    _refuse(
        "device.missing",
        "a whole load that ends at an unknown device name",
        "Name a device of the engine's own list.",
        "the engine's own device list",
        devices.missing,
        drift=DEVICE,
    ),
    _warn(
        "device.unseen",
        "layers that silently stay on the CPU",
        "Install a build with this backend, or remove the mask.",
        "the driver's list against the engine's",
        devices.unseen,
        drift=DEVICE,
    ),
    _warn(
        "device.unmeasured",
        "memory that nobody can compare",
        "Set its memory in agent.toml.",
        "the driver's list against the engine's",
        devices.unmeasured,
    ),
    _refuse(
        "device.taken", "two replicas on one GPU", "Unload one, or set share_device.", "shards and holds", devices.taken
    ),
    _refuse(
        "device.index",
        "a shard on another device than the one planned",
        "Plan again; tie devices to uuids.",
        "the driver's uuids",
        devices.index,
    ),
)

_ADDRESSES = (
    _refuse(
        "address.loopback",
        "a peer that dials itself",
        "Set advertise in agent.toml.",
        "advertise and boot ids",
        addresses.loopback,
        drift=LOOPBACK,
    ),
    _refuse(
        "address.wildcard",
        "an address that cannot be dialled, and an engine open to everybody",
        "Set advertise in agent.toml.",
        "advertise",
        addresses.wildcard,
        drift=LOOPBACK,
    ),
    _refuse(
        "address.linklocal",
        "an address that is another interface on every host",
        "Set advertise in agent.toml.",
        "advertise",
        addresses.linklocal,
        drift=LOOPBACK,
    ),
    _warn(
        "address.container",
        "an address that only its own machine knows",
        "Set advertise in agent.toml.",
        "advertise against default bridges",
        addresses.container,
        drift=LOOPBACK,
    ),
    _refuse(
        "address.foreign",
        "an engine that cannot listen, which llama.cpp's worker calls success (exit 0)",
        "Set advertise in agent.toml.",
        "the interfaces of the host",
        addresses.foreign,
    ),
    _refuse(
        "address.same",
        "a peer that answers for another host",
        "Give each host its own advertise.",
        "advertise and boot ids",
        addresses.same,
    ),
    _refuse(
        "port.taken", "a bind that fails", "Free it, or leave port out.", "the agent's ports", addresses.port_taken
    ),
    _refuse("port.outside", "a port the host may not use", "Leave port out.", "agent.toml", addresses.port_outside),
    _refuse(
        "ports.none", "a shard without a port", "Dismiss ended replicas.", "the agent's ports", addresses.ports_none
    ),
    _warn(
        "port.ephemeral",
        "a port that the kernel gives away just before the engine binds it",
        "Move ports below the range, or reserve them by sysctl.",
        "ip_local_port_range",
        addresses.ephemeral,
    ),
    _refuse("port.clash", "two shards on one endpoint", "Plan again.", "the plan", shape.endpoints),
)

_NUMBERS = (
    _refuse(
        "generation.differs",
        "a leader that stops at its first release, after one right answer",
        "Plan again, with one number.",
        "the plan",
        numbers.differs,
        drift=GENERATION,
    ),
    _refuse(
        "generation.not_above",
        "a load that an agent takes for an older one",
        "Plan again.",
        "the generations stored at the plan's hosts",
        numbers.not_above,
        drift=GENERATION,
    ),
    _warn(
        "generation.ahead",
        "a number from a broken clock that all later ones would follow",
        "Look at that host's clock.",
        "the generations stored anywhere",
        numbers.ahead,
        drift=GENERATION,
    ),
    _refuse(
        "clock.off",
        "a generation that is wrong for everybody",
        "Set this machine's clock.",
        "the clock pairs of the hellos",
        numbers.clock_off,
        drift=GENERATION,
    ),
    _warn("clock.offset", "journals that do not line up", "Set its clock.", "the clock pairs", numbers.clock_offset),
)

_SHAPE = (
    _refuse("split.length", "a rank without layers", "One count per rank that holds any.", "the profile", sizes.shape),
    _refuse("split.sum", "layers nobody holds", "Add up to the model's layers.", "the header", sizes.shape),
    _refuse(
        "split.engine", "another split than planned", "Choose another split.", "the engine's rounding", sizes.shape
    ),
    _refuse("ranks", "a rank that holds nothing", "Lower ranks, or add hosts.", "layers, hosts, devices", sizes.ranks),
    _refuse(
        "ranks.devices", "devices that nobody would use", "Raise ranks instead.", "the engine's rules", sizes.options
    ),
    _refuse(
        "ranks.parallel",
        "ranks that wait for each other for minutes without a word",
        "tensor × pipeline = ranks × devices.",
        "the profile",
        sizes.shape,
    ),
    _refuse("ranks.order", "a ring with a rank twice or missing", "Plan again.", "the plan", shape.ranks),
    _refuse("layers.window", "a layer computed twice, or by nobody", "Plan again.", "the plan", shape.layers),
    _refuse("options.unknown", "an option without effect", "Correct its name.", "the allowlist", sizes.options),
    _refuse("options.refused", "a plan undone by an option", "Remove it.", "the allowlist", sizes.options),
    _refuse(
        "options.value", "an engine that exits at its start", "Give a legal value.", "the allowlist", sizes.options
    ),
    _refuse(
        "batch.order", "a micro-batch that is cut, or refused", "n_ubatch ≤ n_batch.", "the profile", sizes.options
    ),
    _warn("batch.unbounded", "activations without a limit", "Give a chunk size.", "the profile", sizes.options),
    _warn(
        "threads.spin",
        "idle stages that starve their agent",
        "Leave wait_policy out (passive).",
        "options of a p4 profile",
        sizes.options,
    ),
)

_MODEL = (
    _refuse("model.unreadable", "a load of nothing", "Put the file there.", "the model's header", sizes.model_file),
    _refuse(
        "model.truncated", "a load that ends in the file", "Copy it again.", "size against header", sizes.model_file
    ),
    _warn(
        "model.architecture",
        "a size taken for derived that is not",
        "Read its sizes as estimates.",
        "the architectures that were tried",
        sizes.model_known,
        drift=BOUND,
    ),
    _warn("context.training", "KV that no token uses", "Lower context.", "the model's header", sizes.model_known),
    _warn(
        "bound.unverified",
        "a result bound that READY will not equal",
        "Give cut_tensors and cut_row_bytes as geometry.",
        "the architectures that a READY has confirmed",
        sizes.model_known,
        drift=BOUND,
    ),
    _refuse(
        "bound.overflow",
        "a result bound beyond 2^64-1",
        "Lower n_batch or n_ubatch.",
        "the engine's formula",
        sizes.model_known,
        drift=BOUND,
    ),
    _refuse(
        "bound.result",
        "a model loaded whole, then unloaded because one result fits no store",
        "Take a pair of n_batch and n_ubatch that fits.",
        "the engine's formula",
        sizes.result,
        drift=BOUND,
    ),
)

_MEMORY = (
    _refuse("memory.short", "an end after the full load", "Lower context, add hosts.", "derived bounds", sizes.memory),
    _refuse(
        "ubatch.memory",
        "an engine that runs out of memory at its first long prompt",
        "Lower n_ubatch to the number given.",
        "the compute estimate",
        sizes.memory,
    ),
    _refuse(
        "memory.machine",
        "two agents that count the same free memory",
        "Name a host of another machine.",
        "boot ids and free memory",
        sizes.machine,
    ),
    _warn(
        "memory.mapped", "a slow load, or an end by the kernel", "Free memory.", "the mapped model file", sizes.mapped
    ),
    _refuse(
        "memory.limited",
        "a leader ended by the kernel (signal 9) for its page cache",
        "Raise MemoryMax of the unit.",
        "the memory limit of the unit or container",
        sizes.limited,
    ),
    _refuse(
        "memory.share",
        "an engine that ends before the weights",
        "Lower the share, or free the device.",
        "free against total memory",
        serving.share,
    ),
)

_OTHERS = (
    _warn("replica.loading", "one replica loaded twice", "Look at the other load.", "reservations", replicas.twice),
    _warn("protocol.skew", "words that one side drops", "Bring both to one release.", "agent versions", replicas.skew),
    _warn("catalog.stale", "a plan from an old catalog", "Correct the file.", "catalog.toml", replicas.stale_catalog),
    _refuse(
        "rendezvous.loopback",
        "ranks that wait for themselves for minutes",
        "Give rank 0's own address.",
        "advertise and options",
        serving.rendezvous,
        drift=LOOPBACK,
    ),
    _refuse(
        "address.unset",
        "an engine that guesses the wrong one of its addresses",
        "Leave host_address out.",
        "the interfaces of the host",
        serving.host_address,
        drift=LOOPBACK,
    ),
    _warn(
        "address.interface",
        "NCCL over the slow network",
        "Name the interface.",
        "the interfaces of the host",
        serving.host_address,
    ),
    _refuse("visible.twice", "devices filtered twice", "Remove one.", "options", serving.visible_devices),
    _warn("shutdown.zero", "a stop that cuts every stream", "Give it time.", "options", serving.shutdown),
)

_LATER = (
    _refuse(
        "load.target",
        "a LOAD sent to the node that it creates, which is forwarded into the void without a word",
        "Nothing to do: the command can only name an agent, and an agent refuses a node that it does not have.",
        "the type of the command",
        drift=TARGET,
    ),
    _refuse("plan.edited", "a plan nobody confirmed", "Plan again.", "the digest", step="recheck"),
    _refuse("plan.stale", "a plan on facts that moved", "Plan again.", "epochs and revisions", step="recheck"),
    _refuse("plan.incomplete", "a load of nothing, called done", "Plan again.", "the plan", step="recheck"),
    _refuse("replica.twice", "one replica id twice", "Plan again.", "what every host knows", step="recheck"),
    _refuse("model.differs", "another file than planned", "Plan again.", "size and digest at the leader", step="check"),
    _refuse(
        "release.moved", "a release changed since", "Plan again.", "the engine's version", step="check", drift=RELEASE
    ),
    _refuse(
        "address.unreachable",
        "a peer that is not reached, or that answers as another host",
        "Correct advertise, route or firewall.",
        "a dial with a nonce from rank 0's host",
        step="check",
        drift=LOOPBACK,
    ),
    _refuse(
        "address.unlistenable",
        "a worker that cannot bind, and ends with exit 0",
        "Free the port, or correct advertise.",
        "a listener on the reserved address",
        step="check",
        drift=LOOPBACK,
    ),
    _refuse("plan.role", "a rank that runs another program", "Plan again.", "the engine's rules", step="check"),
    _refuse("plan.unsound", "a shard without a command line", "Plan again.", "the engine's rules", step="check"),
    _refuse(
        "bound.guessed",
        "a reservation of less than what will be taken",
        "Plan again instead of editing.",
        "the geometry in the plan",
        step="check",
        drift=BOUND,
    ),
    _refuse("check.failed", "a load that one host never checked", "Look at its agent.", "the agents", step="check"),
    _refuse("check.unreadable", "a refusal that nobody reads", "Update the older side.", "the agents", step="check"),
    _refuse("phase.unbounded", "a wait without end", "Plan again.", "the plan", step="check"),
    _refuse(
        "protocol.differs",
        "a leader that misreads its workers",
        "Install one build.",
        "HELLO of every worker",
        step="start",
        drift=RELEASE,
    ),
    _refuse("worker.silent", "a leader that hangs with an empty log", "Read the worker's log.", "HELLO", step="start"),
    _refuse(
        "memory.engine_plan",
        "an end after the full load",
        "Lower context or n_ubatch.",
        "the breakdown that the engine prints before the weights",
        step="start",
    ),
    _refuse(
        "bound.differs",
        "a ring in another shape than was checked",
        "Compare release and model file.",
        "the engine's own numbers",
        step="start",
        drift=BOUND,
    ),
    _refuse("host.unreadable", "a start nobody follows", "Allow AF_NETLINK, /proc.", "the kernel", step="start"),
    _refuse("phase.overrun", "a start that hangs", "Read the rank's log.", "the phase's formula", step="load"),
    _refuse(
        "placement.differs",
        "layers that silently stay at rank 0",
        "Read the leader's log.",
        "the buffers that the engine reports",
        step="load",
    ),
    _refuse("canary.failed", "a ring called ready that answers nothing", "Read the logs.", "a completion", step="load"),
)

GUARDS: tuple[Guard, ...] = (
    *(*_HOSTS, *_DEVICES, *_ADDRESSES, *_NUMBERS, *_SHAPE, *_MODEL, *_MEMORY, *_OTHERS, *_LATER),
)
BY_ID = {guard.id: guard for guard in GUARDS}
CHECKS: tuple[Check, ...] = tuple(dict.fromkeys(guard.check for guard in GUARDS if guard.check is not None))
"""What runs at the plan, each once and in the order of the list."""
