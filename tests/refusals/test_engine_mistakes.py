"""The mistakes that llama.cpp finds only after a full load, or never: tried with the real engine behind real agents.

Each spoils one program of an engine folder of the operator's own. The stand-ins are named after what they do; those of
the leader end by becoming the real ``llama-server`` with other arguments than the agent gave.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from backend.engines.llamacpp.installation import pinned_folder
from tests.e2e.fleet import Fleet
from tests.refusals.conftest import left_behind, processes_of_runs, stand_in
from tests.refusals.rows import as_parameters

pytestmark = [pytest.mark.refusals, pytest.mark.e2e, pytest.mark.engine]

QUESTIONS = ("--version", "--list-devices", "--help")
"""What an agent asks of a program when it looks at its folder: always answered by the real one."""

BECOME = f"""import os, socket, sys
real = {str(pinned_folder())!r} + "/" + os.path.basename(sys.argv[0])
args = sys.argv[1:]
def become(*args):
    os.execv(real, [real, *args])
if args and args[0] in {QUESTIONS!r}:
    become(*args)
def value(flag):
    return args[args.index(flag) + 1]
def put(flag, value):
    args[args.index(flag) + 1] = value
def without(flag):
    at = args.index(flag)
    del args[at:at + 2]
"""

LISTEN = """listener = socket.create_server((value("-H"), int(value("-p"))))
kept = []
def greet(client, major):
    if len(client.recv(64)) >= 9:
        client.sendall((28).to_bytes(8, "little") + bytes([major, 0, 0, 0]) + bytes(24))
"""

SAYS_NOTHING = f"""{BECOME}{LISTEN}while True:
    kept.append(listener.accept())
"""
SPEAKS_9 = f"""{BECOME}{LISTEN}while True:
    client, _ = listener.accept()
    greet(client, 9)
    client.close()
"""
HANGS_AFTER_ITS_GREETING = f"""{BECOME}{LISTEN}greet(listener.accept()[0], 5)
while True:
    kept.append(listener.accept())
"""
HANGS_ONCE_THE_LEADER_COMES = f"""{BECOME}{LISTEN}for _ in range(2):
    greet(listener.accept()[0], 5)
while True:
    kept.append(listener.accept())
"""
EXITS_WITH_0 = BECOME
BUSY_WITH_ANOTHER_CLIENT = f"""{BECOME}import time
if os.fork() == 0:
    while True:
        try:
            kept = socket.create_connection((value("-H"), int(value("-p"))))
            break
        except OSError:
            time.sleep(0.001)
    while kept.recv(1):
        pass
    os._exit(0)
become(*args)
"""
NEVER_LISTENS = f"""{BECOME}import time
while True:
    time.sleep(60)
"""
NO_LAYER_OFFLOADED = f"""{BECOME}put("-ngl", "0")
become(*args)
"""
HALF_THE_LAYERS_OFFLOADED = f"""{BECOME}put("-ngl", "2")
become(*args)
"""
NO_DEVICE_AND_A_DEAD_PEER = f"""{BECOME}without("--device")
without("-ts")
dead = socket.socket()
dead.bind(("127.0.0.1", 0))
put("--rpc", "127.0.0.1:%d" % dead.getsockname()[1])
become(*args)
"""
A_DEAD_PEER = f"""{BECOME}dead = socket.socket()
dead.bind(("127.0.0.1", 0))
put("--rpc", value("--rpc").split(",")[0] + ",127.0.0.1:%d" % dead.getsockname()[1])
become(*args)
"""
ONE_WORKER_LEFT_OUT = f"""{BECOME}put("--rpc", value("--rpc").split(",")[0])
put("--device", "RPC0")
without("-ts")
become(*args)
"""
A_CACHE_OF_MANY_GIB = f"""{BECOME}put("-c", "40000000")
become(*args)
"""
TWICE_THE_CONTEXT = f"""{BECOME}put("-c", str(2 * int(value("-c"))))
become(*args)
"""
A_HUGE_MICRO_BATCH = f"""{BECOME}put("-ub", "65536")
put("-b", "65536")
become(*args)
"""
ANOTHER_SPLIT = f"""{BECOME}put("-ts", "1,4")
become(*args)
"""
ANSWERS_NOBODY = f"""{BECOME}become(*args, "--api-key", "of somebody else")
"""
LEADER_THAT_NEVER_BINDS = NEVER_LISTENS


class Mistake(NamedTuple):
    """A spoilt program of a ring, the finding it must end with, and the phase whose bound it may take at most.

    An ``id`` with a bar names two: which of two looks comes first is not in our hands, and each is right.
    """

    title: str
    id: str
    words: tuple[str, ...]
    program: str
    stand_in: str
    phase: str = "connecting"
    target: str = "tiny:two-host"
    slow: bool = False


WORKER, LEADER = "ggml-rpc-server", "llama-server"
MISTAKES = [
    Mistake(
        "a worker that accepts and says nothing", "phase.overrun", ("rank 2", "says nothing"), WORKER, SAYS_NOTHING
    ),
    Mistake("a worker that speaks another version", "protocol.differs", ("rank 2", "9.0.0", "5.0.0"), WORKER, SPEAKS_9),
    Mistake(
        "a worker that hangs after its greeting",
        "worker.silent",
        ("rank 2", "answer to HELLO"),
        WORKER,
        HANGS_AFTER_ITS_GREETING,
    ),
    Mistake(
        "a worker that hangs once the leader comes",
        "phase.overrun",
        ("rank 0", "HTTP port is not bound"),
        WORKER,
        HANGS_ONCE_THE_LEADER_COMES,
        slow=True,
    ),
    Mistake("a worker that exits with 0", "", ("rank 2", "exit code 0"), WORKER, EXITS_WITH_0),
    Mistake(
        "a worker that serves another client",
        "phase.overrun|worker.silent",
        ("rank 2", "another"),
        WORKER,
        BUSY_WITH_ANOTHER_CLIENT,
        slow=True,
    ),
    Mistake(
        "a worker that never listens", "phase.overrun", ("rank 2", "listens on port"), WORKER, NEVER_LISTENS, slow=True
    ),
    Mistake(
        "a leader that never binds its port",
        "phase.overrun",
        ("rank 0", "HTTP port is not bound"),
        LEADER,
        LEADER_THAT_NEVER_BINDS,
        slow=True,
    ),
    Mistake(
        "a leader whose peer is missing",
        "",
        ("rank 0", "exit code 1", "Failed to connect to 127.0.0.1"),
        LEADER,
        A_DEAD_PEER,
    ),
    Mistake(
        "a leader that serves from its own memory, its peer missing and no --device",
        "bound.differs",
        ("rank 0",),
        LEADER,
        NO_DEVICE_AND_A_DEAD_PEER,
        "loading",
    ),
    Mistake(
        "a leader that offloads no layer (-ngl 0)", "bound.differs", ("rank 0",), LEADER, NO_LAYER_OFFLOADED, "loading"
    ),
    Mistake(
        "a leader that offloads half the layers (-ngl 2)",
        "bound.differs",
        ("rank 0",),
        LEADER,
        HALF_THE_LAYERS_OFFLOADED,
        "loading",
    ),
    Mistake("a leader that leaves a worker out", "bound.differs", ("rank",), LEADER, ONE_WORKER_LEFT_OUT, "loading"),
    Mistake("a leader that splits otherwise", "bound.differs", ("MiB",), LEADER, ANOTHER_SPLIT, "loading"),
    Mistake("a KV cache of many GiB", "memory.engine_plan", ("too much",), LEADER, A_CACHE_OF_MANY_GIB, "loading"),
    Mistake("twice the planned context", "bound.differs", ("MiB KV",), LEADER, TWICE_THE_CONTEXT, "loading"),
    Mistake(
        "a leader that loads it all and answers nobody",
        "canary.failed",
        ("rank 0", "one token through every rank"),
        LEADER,
        ANSWERS_NOBODY,
        "warming",
    ),
    Mistake("a huge n_ubatch", "memory.engine_plan", ("compute",), LEADER, A_HUGE_MICRO_BATCH, "loading", "tiny:long"),
]

LONG = """
[models.tiny.profiles.long]
ranks = 3
hosts = ["host-a", "host-b"]
context = 65536
"""


@pytest.mark.parametrize("row", as_parameters(MISTAKES))
def test_mistake(row: Mistake, make_fleet: Callable[..., Fleet]) -> None:
    """Refused within the start's deadline, none served, everything rolled back, and the cause named."""
    fleet = make_fleet()
    with (fleet.home / "catalog.toml").open("a") as catalog:
        catalog.write(LONG)
    folder = fleet.home / "stand-in"
    folder.mkdir()
    for name in (WORKER, LEADER):
        stand_in(folder, name, row.stand_in if name == row.program else f"{BECOME}become(*args)\n")
    spoilt = "host-b" if row.program == WORKER else "host-a"
    fleet.write_agent(spoilt, ["host-a", "host-b"].index(spoilt), engine_folder=str(folder))
    fleet.start()
    began = time.monotonic()
    done = fleet.run("load", row.target, "--yes", "--json", seconds=100)
    took = time.monotonic() - began
    said = done.stdout + done.stderr
    assert done.returncode == 5, f"exit {done.returncode}\n{said}"
    error = json.loads(done.stdout)["error"]
    words = str(error["words"])
    assert any(each in words for each in row.id.split("|")), f"{row.id!r} is not in:\n{words}"
    for word in row.words:
        assert word in words, f"{word!r} is not in:\n{words}"
    assert "every rank is proven absent" in words
    assert took < limit(fleet, row) + 15, f"{took:.1f} s"
    assert [each for each in fleet.json("ls", "replicas") if each["state"] == "ready"] == []
    assert processes_of_runs(fleet) == []
    assert left_behind(fleet) == {}


def limit(fleet: Fleet, row: Mistake) -> float:
    """The plan's own bound of the phase in which the mistake must be seen."""
    planned = json.loads(fleet.run("plan", row.target, "--json").stdout)
    return float(next(phase["seconds"] for phase in planned["phases"] if phase["phase"] == row.phase))


def test_the_stand_ins_leave_the_engine_as_it_is(make_fleet: Callable[..., Fleet]) -> None:
    """The same folder without a mistake in it loads: what the rows above find is the mistake, not the stand-in."""
    fleet = make_fleet()
    folder = fleet.home / "stand-in"
    folder.mkdir()
    for name in (WORKER, LEADER):
        stand_in(folder, name, f"{BECOME}become(*args)\n")
    for index, host in enumerate(("host-a", "host-b")):
        fleet.write_agent(host, index, engine_folder=str(folder))
    fleet.start()
    assert fleet.load()["state"] == "ready"


def test_the_pinned_engine_is_there() -> None:
    """The rows above run the pinned build."""
    assert (Path(pinned_folder()) / LEADER).is_file()
