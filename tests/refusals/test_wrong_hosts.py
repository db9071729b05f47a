"""What only the host itself can find out: its own check of a plan, with its real engine, model file and ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from backend.agent.checks import check_plan
from backend.contract.entities import Entities
from backend.contract.findings import Finding
from backend.contract.plans import Plan, sealed
from backend.contract.words import Bytes, HostId, LoadGeneration, OpId, Port
from backend.engines.driver import Driver
from backend.engines.llamacpp.drive import LlamaCpp
from backend.engines.llamacpp.model_file import read_header
from backend.local.tiny_model import write_tiny_model
from tests.planning.worlds import RELEASE, a_cordon, a_fleet, a_host, a_plan, a_reservation, an_engine, holding
from tests.refusals.rows import as_parameters, assert_refuses

pytestmark = [pytest.mark.refusals, pytest.mark.engine]

HOST = HostId("host-a")


class Host:
    """One host with the pinned engine and a real model; a row spoils one thing of it."""

    def __init__(self, folder: Path, first_port: int) -> None:
        self.root = folder
        self.model = folder / "tiny.gguf"
        write_tiny_model(self.model)
        self.first_port = first_port
        self.journal = "ok"
        self.entities = Entities()
        self.drivers: dict[str, Driver] = {"llamacpp": LlamaCpp(None)}
        self.facts = msgspec.structs.replace(a_host("host-a").facts, advertise="127.0.0.1")
        model = read_header(self.model)
        report = msgspec.structs.replace(a_host("host-a"), facts=self.facts)
        made = a_plan(a_fleet(report), hosts=("host-a",), profile={"ranks": 2}, model=model)
        ports = (first_port, first_port + 1)
        shards = tuple(msgspec.structs.replace(s, ports=(Port(ports[s.rank]),)) for s in made.shards)
        self.plan = sealed(msgspec.structs.replace(made, shards=shards))

    def replan(self, **changes: object) -> None:
        self.plan = sealed(msgspec.structs.replace(self.plan, **changes))

    def check(self) -> Awaitable[tuple[Finding, ...]]:
        return check_plan(self.plan, self.facts, self.entities, self.drivers, (str(self.root),), self.journal)


@pytest.fixture
def port() -> Iterator[int]:
    """A port whose neighbour is free as well; both are given back before they are used."""
    start = 2 * (os.getpid() % 800)  # processes of one test run begin at different ones
    for first in (31_000 + (start + step) % 1_600 for step in range(0, 1_600, 2)):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", first))
                two.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
        yield first
        return
    raise AssertionError("no two ports are free between 31000 and 32600")


class WrongHost(NamedTuple):
    """What is spoilt, and the finding that must say so."""

    title: str
    id: str
    words: tuple[str, ...]
    spoil: Callable[[Host], None]


def no_engine(host: Host) -> None:
    host.drivers = {}


def bad_journal(host: Host) -> None:
    host.journal = "disk full since 12:00"


def refuses_loads(host: Host) -> None:
    host.facts = msgspec.structs.replace(host.facts, refuses_loads="KillMode=control-group")


def cordoned(host: Host) -> None:
    host.entities = holding(cordon=a_cordon())


def engine_gone(host: Host) -> None:
    host.facts = msgspec.structs.replace(host.facts, engines=())


def other_release(host: Host) -> None:
    host.facts = msgspec.structs.replace(host.facts, engines=(an_engine("CPU", release="2-00c0ffe"),))


def other_flavour(host: Host) -> None:
    """The plan wants the very build that it saw; another one of the same release is there now."""
    profile = msgspec.structs.replace(host.plan.profile, exact_build=True)
    facts = tuple(msgspec.structs.replace(fact, flavour=f"{RELEASE} for cpu") for fact in host.plan.facts)
    host.replan(profile=profile, facts=facts)
    host.facts = msgspec.structs.replace(host.facts, engines=(an_engine("CPU", flavour="cpu vulkan"),))


def other_device(host: Host) -> None:
    shards = tuple(msgspec.structs.replace(shard, device="ROCm0") for shard in host.plan.shards)
    host.replan(shards=shards)


def reserved_port(host: Host) -> None:
    other = msgspec.structs.replace(
        a_reservation(ports=(host.first_port + 1,)), op_id=OpId("op-bob"), load_generation=LoadGeneration(5)
    )
    host.entities = holding(reservation=other)


def foreign_address(host: Host) -> None:
    shards = tuple(msgspec.structs.replace(shard, advertise="203.0.113.7") for shard in host.plan.shards)
    host.replan(shards=shards)


def no_model(host: Host) -> None:
    host.model.unlink()


def model_outside(host: Host) -> None:
    host.replan(model_path="/etc/passwd")


def model_by_symlink(host: Host) -> None:
    host.model.unlink()
    host.model.symlink_to("/etc/passwd")


def model_is_folder(host: Host) -> None:
    host.model.unlink()
    host.model.mkdir()


def not_gguf(host: Host) -> None:
    host.model.write_bytes(b"not a model at all" * 100)


def empty_file(host: Host) -> None:
    host.model.write_bytes(b"")


def one_byte_short(host: Host) -> None:
    host.model.write_bytes(host.model.read_bytes()[:-1])


def one_byte_longer(host: Host) -> None:
    with host.model.open("ab") as file:
        file.write(b"\0")


def another_model(host: Host) -> None:
    facts = host.plan.model_facts
    assert facts is not None
    host.replan(model_facts=msgspec.structs.replace(facts, header_digest="0" * 64, file_bytes=Bytes(7)))


ROWS = [
    WrongHost("an agent without the engine", "engine.missing", ("llamacpp", "none"), no_engine),
    WrongHost("a journal that cannot be written", "journal.unhealthy", ("disk full",), bad_journal),
    WrongHost("a host whose restart kills engines", "host.refuses", ("KillMode=control-group",), refuses_loads),
    WrongHost("a host that was cordoned since the plan", "host.cordoned", ("cordoned by alice@ops-1",), cordoned),
    WrongHost("an engine that was removed since the plan", "engine.missing", ("host-a", "none"), engine_gone),
    WrongHost("an engine that was replaced since the plan", "release.moved", (RELEASE, "2-00c0ffe"), other_release),
    WrongHost(
        "an engine of the same release built otherwise, with exact_build",
        "release.moved",
        ("cpu vulkan", "exact_build"),
        other_flavour,
    ),
    WrongHost("a device of another backend", "device.missing", ("ROCm0", "CPU"), other_device),
    WrongHost("a port that another load has reserved", "port.taken", ("reserved for qwen-1 by bob",), reserved_port),
    WrongHost("an advertised address that is not the host's", "port.taken", ("203.0.113.7",), foreign_address),
    WrongHost("a model file that is gone", "model.unreadable", ("tiny.gguf", "missing"), no_model),
    WrongHost("a model outside the model roots", "model.unreadable", ("/etc/passwd", "model roots"), model_outside),
    WrongHost("a model that leads out of its root", "model.unreadable", ("/etc/passwd", "outside"), model_by_symlink),
    WrongHost("a folder in the model's place", "model.unreadable", ("no regular file",), model_is_folder),
    WrongHost("a file that is no model", "model.unreadable", ("GGUF",), not_gguf),
    WrongHost("an empty file", "model.unreadable", ("tiny.gguf",), empty_file),
    WrongHost("a file one byte short", "model.truncated", ("bytes by its header",), one_byte_short),
    WrongHost("a file one byte longer than planned", "model.differs", ("as planned",), one_byte_longer),
    WrongHost("another model than planned", "model.differs", ("header 00000000, 7 bytes",), another_model),
]


@pytest.mark.parametrize("row", as_parameters(ROWS))
async def test_check(row: WrongHost, tmp_path: Path, port: int) -> None:
    """The host's own check refuses, by id, with both values and a remedy."""
    host = Host(tmp_path, port)
    row.spoil(host)
    assert_refuses(await host.check(), row.id, row.words)


async def test_a_port_that_something_listens_on(tmp_path: Path, port: int) -> None:
    """A port that another program took since the plan is refused by the host's check."""
    host = Host(tmp_path, port)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        assert_refuses(await host.check(), "port.taken", (str(port), "tiny-1/0 on host-a"))


async def test_a_host_as_planned(tmp_path: Path, port: int) -> None:
    """A host that is as it was planned has nothing against the load, its own reservation included."""
    host = Host(tmp_path, port)
    ours = msgspec.structs.replace(a_reservation(ports=(port, port + 1)), load_generation=host.plan.load_generation)
    host.entities = holding(reservation=ours)
    assert await host.check() == ()


def test_the_plan_of_these_rows_names_two_ports(tmp_path: Path) -> None:
    """The rows above look at both ranks of the host."""
    plan: Plan = Host(tmp_path, 31_000).plan
    assert [shard.ports for shard in plan.on_host(HOST)] == [(Port(31_000),), (Port(31_001),)]
