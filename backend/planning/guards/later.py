"""The guards that can only know after the plan: before the first command, at the agents, or while engines start.

They run where their ``step`` says; here they are described.
"""

from __future__ import annotations

from backend.planning.guards.situation import Guard
from backend.planning.guards.table import BOUND, LOOPBACK, RELEASE, TARGET, refusing

LATER: tuple[Guard, ...] = (
    refusing(
        "load.target",
        "a LOAD sent to the node that it creates, which is forwarded into the void without a word",
        "Nothing to do: the command can only name an agent, and an agent refuses a node that it does not have.",
        "the type of the command",
        drift=TARGET,
    ),
    refusing("plan.edited", "a plan nobody confirmed", "Plan again.", "the digest", step="recheck"),
    refusing("plan.stale", "a plan on facts that moved", "Plan again.", "epochs and revisions", step="recheck"),
    refusing(
        "address.moved",
        "events sent to an address that is nobody's any more",
        "Plan again.",
        "what the engine's own agent advertises",
        step="recheck",
        drift=LOOPBACK,
    ),
    refusing("plan.incomplete", "a load of nothing, called done", "Plan again.", "the plan", step="recheck"),
    refusing("replica.twice", "one replica id twice", "Plan again.", "what every host knows", step="recheck"),
    refusing(
        "model.differs", "another file than planned", "Plan again.", "size and digest at the leader", step="check"
    ),
    refusing(
        "release.moved", "a release changed since", "Plan again.", "the engine's version", step="check", drift=RELEASE
    ),
    refusing(
        "address.unreachable",
        "a peer that is not reached, or that answers as another host",
        "Correct advertise, route or firewall.",
        "a dial with a nonce from rank 0's host",
        step="check",
        drift=LOOPBACK,
    ),
    refusing(
        "address.unlistenable",
        "a worker that cannot bind, and ends with exit 0",
        "Free the port, or correct advertise.",
        "a listener on the reserved address",
        step="check",
        drift=LOOPBACK,
    ),
    refusing("plan.role", "a rank that runs another program", "Plan again.", "the engine's rules", step="check"),
    refusing("plan.unsound", "a shard without a command line", "Plan again.", "the engine's rules", step="check"),
    refusing(
        "bound.guessed",
        "a reservation of less than what will be taken",
        "Plan again instead of editing.",
        "the geometry in the plan",
        step="check",
        drift=BOUND,
    ),
    refusing("check.failed", "a load that one host never checked", "Look at its agent.", "the agents", step="check"),
    refusing("check.unreadable", "a refusal that nobody reads", "Update the older side.", "the agents", step="check"),
    refusing("phase.unbounded", "a wait without end", "Plan again.", "the plan", step="check"),
    refusing(
        "protocol.differs",
        "a leader that misreads its workers",
        "Install one build.",
        "HELLO of every worker",
        step="start",
        drift=RELEASE,
    ),
    refusing("worker.silent", "a leader that hangs with an empty log", "Read the worker's log.", "HELLO", step="start"),
    refusing(
        "memory.engine_plan",
        "an end after the full load",
        "Lower context or n_ubatch.",
        "the breakdown that the engine prints before the weights",
        step="start",
    ),
    refusing(
        "bound.differs",
        "a ring in another shape than was checked",
        "Compare release and model file.",
        "the engine's own numbers",
        step="start",
        drift=BOUND,
    ),
    refusing("host.unreadable", "a start nobody follows", "Allow AF_NETLINK, /proc.", "the kernel", step="start"),
    refusing("phase.overrun", "a start that hangs", "Read the rank's log.", "the phase's formula", step="load"),
    refusing(
        "placement.differs",
        "layers that silently stay at rank 0",
        "Read the leader's log.",
        "the buffers that the engine reports",
        step="load",
    ),
    refusing(
        "load.refused",
        "a stage that its engine's agent did not load",
        "Do what the engine's words ask for.",
        "the result of the LOAD",
        step="load",
    ),
    refusing(
        "session.silent",
        "a ring whose stages never heard of each other",
        "Correct the addresses that the agents advertise.",
        "a session on every stage",
        step="load",
        drift=LOOPBACK,
    ),
    refusing(
        "canary.failed", "a ring called ready that answers nothing", "Read the logs.", "a completion", step="load"
    ),
)
