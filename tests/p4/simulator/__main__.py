"""``python -m tests.p4.simulator LISTEN_HOST:PORT [tcp://ADVERTISED] [--config FILE] [--control SOCKET]``.

Prints ``P4_EVENT_AGENT_READY address=…`` when it serves. The control socket takes one JSON object per line:
``{"set": {"hold_tokens": true}}`` changes switches, ``{}`` only asks; both are answered with one line that says
what the agent holds: slots, connections, nodes, journal, switches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.p4.simulator.agent import SimulatedAgent
from tests.p4.simulator.control import Control
from tests.p4.simulator.journal import Journal, JournalRefused
from tests.p4.simulator.switches import MIB, Switches, read_switches
from tests.p4.simulator.wire import Address, parse_address

JOURNAL_VARIABLE = "P4_EVENT_OUTBOUND_JOURNAL_DIR"
_LIMITS = {
    "P4_EVENT_RETAINED_BYTES": ("retained_bytes", 256 * MIB),
    "P4_EVENT_HOP_RECEIPT_BYTES": ("receipt_bytes", 64 * MIB),
    "P4_EVENT_HOP_OUTSTANDING": ("outstanding", 256),
}


def main() -> int:
    """Run one simulated agent until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.p4.simulator", description=__doc__)
    parser.add_argument("listen", help="host:port; port 0 binds a free one")
    parser.add_argument("advertised", nargs="?", default="", help="tcp://host:port; default: what was bound")
    parser.add_argument("--config", type=Path, help="a JSON object of switches")
    parser.add_argument("--control", type=Path, help="a unix socket to change switches and to ask")
    parser.add_argument("--switch", action="append", default=[], metavar="NAME=JSON", help="one switch")
    arguments = parser.parse_args()
    switches = read_switches(arguments.config)
    for variable, (name, default) in _LIMITS.items():
        if variable in os.environ and getattr(switches, name) == default:
            setattr(switches, name, int(os.environ[variable]))
    switches.set({name: json.loads(text) for name, _, text in (word.partition("=") for word in arguments.switch)})
    try:
        return asyncio.run(_run(arguments.listen, arguments.advertised, arguments.control, switches))
    except JournalRefused as refusal:
        print(f"P4_EVENT_AGENT_FAILED error={refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _run(listen: str, advertised: str, control: Path | None, switches: Switches) -> int:
    host, _, port = listen.rpartition(":")
    listener = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host.strip("[]"), int(port)))
    listener.listen(128)
    listener.setblocking(False)
    bound = host, listener.getsockname()[1]
    text = switches.advertised or advertised
    address = parse_address(text) if text else Address(*bound)
    folder = switches.journal or os.environ.get(JOURNAL_VARIABLE, "")
    journal = Journal(Path(folder), switches.journal_max_bytes) if folder else None
    agent = SimulatedAgent(switches, address, journal)
    broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: _break(broken, context))
    agent.spawn(agent.accept(listener))
    agent.spawn(Control(agent).run())
    if control is not None:
        await asyncio.start_unix_server(lambda *streams: _serve_control(agent, bound, *streams), control)
    agent.log(f"P4_EVENT_RETAINED_LIMITS bytes={switches.retained_bytes} receipts={switches.receipt_bytes}")
    print(f"P4_EVENT_AGENT_READY address={address}", flush=True)
    await broken
    return 0


def _break(broken: asyncio.Future[None], context: dict[str, Any]) -> None:
    error = context.get("exception") or RuntimeError(str(context.get("message")))
    if not broken.done():
        broken.set_exception(error)


async def _serve_control(
    agent: SimulatedAgent, listening: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while line := await reader.readline():
        try:
            agent.switches.set(json.loads(line).get("set", {}))
            agent.broker.rule, agent.slots.limit = agent.switches.broker, agent.switches.slots
            said = status(agent) | {"listening": "{}:{}".format(*listening)}
        except ValueError as error:
            said = {"error": str(error)}
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
    writer.close()


def status(agent: SimulatedAgent) -> dict[str, Any]:
    """What a test may ask of an agent beside the contract."""
    journal = agent.journal
    return {
        "address": str(agent.address),
        "slots": {"used": agent.slots.used, "limit": agent.slots.limit, "leaked": agent.leaked},
        "accepted": agent.accepted,
        "connections": len(agent.connections),
        "outer_missing": agent.outer_missing,
        "forwarded_outward": agent.broker.counts.forwarded_outward,
        "duplicates": agent.broker.counts.duplicates,
        "failures": {key: [failure.state, failure.detail] for key, failure in agent.failures.items()},
        "nodes": {
            node.node_id: {
                "generation": node.generation,
                "phase": node.phase,
                "state": node.state,
                "stopped": node.stopped,
                "queued": node.queue.qsize(),
                "census": node.stage.census() if node.stage else None,
            }
            for node in agent.nodes.values()
        },
        "journal": {"files": journal.files, "bytes": journal.bytes} if journal else None,
        "switches": agent.switches.as_dict(),
    }


if __name__ == "__main__":
    sys.exit(main())
