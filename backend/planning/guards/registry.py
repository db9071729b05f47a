"""Every guard there is, by the id that its findings carry: what it prevents, what to do, and when it can first know."""

from __future__ import annotations

from backend.planning.guards import addresses, devices, hosts, numbers, replicas, residents, serving, shape, sizes
from backend.planning.guards.adopting import ADOPTING
from backend.planning.guards.later import LATER
from backend.planning.guards.recovering import RECOVERING
from backend.planning.guards.situation import Guard
from backend.planning.guards.table import (
    BOUND,
    DEVICE,
    GENERATION,
    JOURNAL,
    LOOPBACK,
    RELEASE,
    Check,
    refusing,
    warning,
)

_HOSTS = (
    refusing("host.unknown", "a load planned for a host nobody has", "Correct hosts.", "contexts.toml", hosts.unknown),
    refusing(
        "host.unreachable",
        "a load that waits for a host that does not answer",
        "Bring its agent back, or name others.",
        "the links",
        hosts.unreachable,
    ),
    refusing("hosts.none", "a plan without any host", "Change what speaks against each.", "placement", hosts.none),
    refusing(
        "host.refuses",
        "engines that die when their agent restarts or one of them runs out of memory",
        "Set KillMode=process and OOMPolicy=continue in the agent's unit.",
        "the agent's control group and unit",
        hosts.refuses,
    ),
    refusing(
        "host.cordoned",
        "new shards on a host that somebody keeps empty",
        "Load elsewhere, or take it back: ringtop uncordon HOST.",
        "the cordon at the host's agent",
        hosts.cordoned,
    ),
    refusing(
        "host.pool", "a load on a host that is kept for others", "Name another host.", "pool in agent.toml", hosts.pool
    ),
    refusing("host.fabric", "a ring over the slow network", "Name another host.", "fabric in agent.toml", hosts.fabric),
    warning(
        "fabric.differs",
        "every token crossing between two networks",
        "Set fabric.",
        "fabric in agent.toml",
        hosts.fabric,
    ),
    refusing(
        "host.cores",
        "more CPU promised than there is",
        "Unload something, or lower cpu_cores.",
        "load records against cores in agent.toml",
        hosts.budgets,
    ),
    refusing(
        "host.power",
        "a circuit that trips",
        "Unload something, or lower power.",
        "load records against power_w in agent.toml",
        hosts.budgets,
    ),
    warning(
        "host.unbudgeted",
        "watts promised to a host that nobody counts",
        "Set power_w in its agent.toml.",
        "power of the profile against agent.toml",
        hosts.budgets,
    ),
    refusing(
        "journal.unhealthy",
        "a load that nobody remembers after a restart",
        "Free space, or repair the journal on the host.",
        "the agent's journal",
        hosts.journal,
        drift=JOURNAL,
    ),
    refusing("engine.missing", "a load that no program can serve", "Install it there.", "agent.toml", hosts.engine),
    refusing(
        "release.differs",
        "ranks that misread each other, or hang",
        "Install one release on every host of the ring.",
        "the engine's own version on every host",
        hosts.release,
        drift=RELEASE,
    ),
    refusing(
        "cpu.features",
        "an engine that dies of signal 4 (illegal instruction) at its warm-up",
        "Use an f16 model and cache, a GPU, or another build.",
        "/proc/cpuinfo against the build",
        hosts.cpu,
    ),
)

_DEVICES = (
    refusing(
        "device.missing",
        "a whole load that ends at an unknown device name",
        "Name a device of the engine's own list.",
        "the engine's own device list",
        devices.missing,
        drift=DEVICE,
    ),
    warning(
        "device.unseen",
        "layers that silently stay on the CPU",
        "Install a build with this backend, or remove the mask.",
        "the driver's list against the engine's",
        devices.unseen,
        drift=DEVICE,
    ),
    warning(
        "device.unmeasured",
        "memory that nobody can compare",
        "Set its memory in agent.toml.",
        "the driver's list against the engine's",
        devices.unmeasured,
    ),
    refusing(
        "device.taken", "two replicas on one GPU", "Unload one, or set share_device.", "shards and holds", devices.taken
    ),
    refusing(
        "device.index",
        "a shard on another device than the one planned",
        "Plan again; tie devices to uuids.",
        "the driver's uuids",
        devices.index,
    ),
)

_ADDRESSES = (
    refusing(
        "address.loopback",
        "a peer that dials itself",
        "Set advertise in agent.toml.",
        "advertise and boot ids",
        addresses.loopback,
        drift=LOOPBACK,
    ),
    refusing(
        "address.wildcard",
        "an address that cannot be dialled, and an engine open to everybody",
        "Set advertise in agent.toml.",
        "advertise",
        addresses.wildcard,
        drift=LOOPBACK,
    ),
    refusing(
        "address.linklocal",
        "an address that is another interface on every host",
        "Set advertise in agent.toml.",
        "advertise",
        addresses.linklocal,
        drift=LOOPBACK,
    ),
    warning(
        "address.container",
        "an address that only its own machine knows",
        "Set advertise in agent.toml.",
        "advertise against default bridges",
        addresses.container,
        drift=LOOPBACK,
    ),
    refusing(
        "address.foreign",
        "an engine that cannot listen, which llama.cpp's worker calls success (exit 0)",
        "Set advertise in agent.toml.",
        "the interfaces of the host",
        addresses.foreign,
    ),
    refusing(
        "address.same",
        "a peer that answers for another host",
        "Give each host its own advertise.",
        "advertise and boot ids",
        addresses.same,
    ),
    refusing(
        "port.taken", "a bind that fails", "Free it, or leave port out.", "the agent's ports", addresses.port_taken
    ),
    refusing("port.outside", "a port the host may not use", "Leave port out.", "agent.toml", addresses.port_outside),
    refusing(
        "ports.none", "a shard without a port", "Dismiss ended replicas.", "the agent's ports", addresses.ports_none
    ),
    warning(
        "port.ephemeral",
        "a port that the kernel gives away just before the engine binds it",
        "Move ports below the range, or reserve them by sysctl.",
        "ip_local_port_range",
        addresses.ephemeral,
    ),
    refusing("port.clash", "two shards on one endpoint", "Plan again.", "the plan", shape.endpoints),
)

_NUMBERS = (
    refusing(
        "generation.differs",
        "a leader that stops at its first release, after one right answer",
        "Plan again, with one number.",
        "the plan",
        numbers.differs,
        drift=GENERATION,
    ),
    refusing(
        "generation.not_above",
        "a load that an agent takes for an older one",
        "Plan again.",
        "the generations stored at the plan's hosts",
        numbers.not_above,
        drift=GENERATION,
    ),
    warning(
        "generation.ahead",
        "a number from a broken clock that all later ones would follow",
        "Look at that host's clock.",
        "the generations stored anywhere",
        numbers.ahead,
        drift=GENERATION,
    ),
    refusing(
        "clock.off",
        "a generation that is wrong for everybody",
        "Set this machine's clock.",
        "the clock pairs of the hellos",
        numbers.clock_off,
        drift=GENERATION,
    ),
    warning("clock.offset", "journals that do not line up", "Set its clock.", "the clock pairs", numbers.clock_offset),
)

_SHAPE = (
    refusing("split.length", "a rank without layers", "One count per rank that holds any.", "the profile", sizes.shape),
    refusing("split.sum", "layers nobody holds", "Add up to the model's layers.", "the header", sizes.shape),
    refusing(
        "split.engine", "another split than planned", "Choose another split.", "the engine's rounding", sizes.shape
    ),
    refusing("ranks", "a rank that holds nothing", "Lower ranks, or add hosts.", "layers, hosts, devices", sizes.ranks),
    refusing(
        "ranks.devices", "devices that nobody would use", "Raise ranks instead.", "the engine's rules", sizes.options
    ),
    refusing(
        "ranks.parallel",
        "ranks that wait for each other for minutes without a word",
        "tensor × pipeline = ranks × devices.",
        "the profile",
        sizes.shape,
    ),
    refusing("ranks.order", "a ring with a rank twice or missing", "Plan again.", "the plan", shape.ranks),
    refusing("layers.window", "a layer computed twice, or by nobody", "Plan again.", "the plan", shape.layers),
    refusing("options.unknown", "an option without effect", "Correct its name.", "the allowlist", sizes.options),
    refusing("options.refused", "a plan undone by an option", "Remove it.", "the allowlist", sizes.options),
    refusing(
        "options.value", "an engine that exits at its start", "Give a legal value.", "the allowlist", sizes.options
    ),
    refusing(
        "batch.order", "a micro-batch that is cut, or refused", "n_ubatch ≤ n_batch.", "the profile", sizes.options
    ),
    warning("batch.unbounded", "activations without a limit", "Give a chunk size.", "the profile", sizes.options),
    warning(
        "threads.spin",
        "idle stages that starve their agent",
        "Leave wait_policy out (passive).",
        "options of a p4 profile",
        sizes.options,
    ),
)

_MODEL = (
    refusing("model.unreadable", "a load of nothing", "Put the file there.", "the model's header", sizes.model_file),
    refusing(
        "model.truncated", "a load that ends in the file", "Copy it again.", "size against header", sizes.model_file
    ),
    warning(
        "model.architecture",
        "a size taken for derived that is not",
        "Read its sizes as estimates.",
        "the architectures that were tried",
        sizes.model_known,
        drift=BOUND,
    ),
    warning("context.training", "KV that no token uses", "Lower context.", "the model's header", sizes.model_known),
    warning(
        "bound.unverified",
        "a result bound that READY will not equal",
        "Give cut_tensors and cut_row_bytes as geometry.",
        "the architectures that a READY has confirmed",
        sizes.model_known,
        drift=BOUND,
    ),
    warning(
        "bound.reported",
        "a guess where an earlier READY said the number",
        "Put the numbers offered into the model's geometry.",
        "load records and ledger: what a READY reported, also of a load that failed",
        sizes.reported,
        drift=BOUND,
    ),
    refusing(
        "bound.overflow",
        "a result bound beyond 2^64-1",
        "Lower n_batch or n_ubatch.",
        "the engine's formula",
        sizes.model_known,
        drift=BOUND,
    ),
    refusing(
        "bound.result",
        "a model loaded whole, then unloaded because one result fits no store",
        "Take a pair of n_batch and n_ubatch that fits.",
        "the engine's formula",
        sizes.result,
        drift=BOUND,
    ),
)

_MEMORY = (
    refusing("memory.short", "an end after the full load", "Lower context, add hosts.", "derived bounds", sizes.memory),
    refusing(
        "ubatch.memory",
        "an engine that runs out of memory at its first long prompt",
        "Lower n_ubatch to the number given.",
        "the compute estimate",
        sizes.memory,
    ),
    refusing(
        "memory.machine",
        "two agents that count the same free memory",
        "Name a host of another machine.",
        "boot ids and free memory",
        sizes.machine,
    ),
    warning(
        "memory.mapped", "a slow load, or an end by the kernel", "Free memory.", "the mapped model file", sizes.mapped
    ),
    refusing(
        "memory.limited",
        "a leader ended by the kernel (signal 9) for its page cache",
        "Raise MemoryMax of the unit.",
        "the memory limit of the unit or container",
        sizes.limited,
    ),
    refusing(
        "memory.share",
        "an engine that ends before the weights",
        "Lower the share, or free the device.",
        "free against total memory",
        serving.share,
    ),
)

_RESIDENTS = (
    refusing(
        "resident.loopback",
        "stages that are looked for at themselves, in silence",
        "Advertise an address that the others reach.",
        "what the engine's own agent advertises",
        residents.address,
        drift=LOOPBACK,
    ),
    refusing("resident.same", "a stage looked for elsewhere", "Give each its own.", "its address", residents.address),
    refusing(
        "resident.journal",
        "a LOAD refused after every other stage is up",
        "Start the engine's agent with a journal.",
        "the environment of its process, and its folder",
        residents.journal,
        drift=JOURNAL,
    ),
    warning(
        "resident.restart",
        "an agent that refuses to start again",
        "Move its journal aside in time.",
        "the records in its journal's folder",
        residents.journal,
    ),
    warning(
        "resident.slots",
        "an agent that takes no connection and says nothing",
        "Start it again in time.",
        "the sockets of its process",
        residents.slots,
    ),
    refusing("resident.name", "a LOAD of a name that is taken", "Unload it.", "its nodes", residents.names),
    warning(
        "resident.untold",
        "requests refused as stale after a good load",
        "Set record or hook of the bridge.",
        "agent.toml of the head's host",
        residents.bridge,
    ),
)

_OTHERS = (
    warning("replica.loading", "one replica loaded twice", "Look at the other load.", "reservations", replicas.twice),
    warning(
        "replica.held",
        "a load of what a person holds down",
        "Ask who holds it, or release it: ringtop resume NAME.",
        "what people decided, as the agents keep it",
        replicas.held,
    ),
    warning(
        "host.draining",
        "new shards on a host that somebody is emptying",
        "Ask whether the host is wanted empty.",
        "the drains at the plan's hosts",
        replicas.draining,
    ),
    warning(
        "protocol.skew", "words that one side drops", "Bring both to one release.", "agent versions", replicas.skew
    ),
    warning("catalog.stale", "a plan from an old catalog", "Correct the file.", "catalog.toml", replicas.stale_catalog),
    refusing(
        "rendezvous.loopback",
        "ranks that wait for themselves for minutes",
        "Give rank 0's own address.",
        "advertise and options",
        serving.rendezvous,
        drift=LOOPBACK,
    ),
    refusing(
        "address.unset",
        "an engine that guesses the wrong one of its addresses",
        "Leave host_address out.",
        "the interfaces of the host",
        serving.host_address,
        drift=LOOPBACK,
    ),
    warning(
        "address.interface",
        "NCCL over the slow network",
        "Name the interface.",
        "the interfaces of the host",
        serving.host_address,
    ),
    refusing("visible.twice", "devices filtered twice", "Remove one.", "options", serving.visible_devices),
    warning("shutdown.zero", "a stop that cuts every stream", "Give it time.", "options", serving.shutdown),
)

GUARDS: tuple[Guard, ...] = (
    *(*_HOSTS, *_DEVICES, *_ADDRESSES, *_NUMBERS, *_SHAPE, *_MODEL, *_MEMORY, *_RESIDENTS, *_OTHERS, *LATER),
    *ADOPTING,
    *RECOVERING,
)
BY_ID = {guard.id: guard for guard in GUARDS}
CHECKS: tuple[Check, ...] = tuple(dict.fromkeys(guard.check for guard in GUARDS if guard.check is not None))
"""What runs at the plan, each once and in the order of the list."""
