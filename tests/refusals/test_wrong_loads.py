"""Wrong loads asked of the real command line and real agents: refused, nothing started, nothing left held."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.fleet import CATALOG, Fleet
from tests.refusals.conftest import left_behind, processes_of_runs, stand_in
from tests.refusals.rows import as_parameters

pytestmark = [pytest.mark.refusals, pytest.mark.e2e, pytest.mark.xdist_group("refusals-shared")]

OTHER_RELEASE = """import sys
print("version: 0.2.0-dev (build 2, commit 00c0ffe)")
"""


class WrongLoad(NamedTuple):
    """A command with what spoils it; ``words`` must be said, the finding's id or the code's reason among them."""

    title: str
    words: tuple[str, ...]
    spoil: Callable[[Fleet], tuple[str, ...]]
    code: int = 2


def profile(lines: str) -> Callable[[Fleet], tuple[str, ...]]:
    """``load tiny:wrong`` with these lines for a profile."""

    def spoil(fleet: Fleet) -> tuple[str, ...]:
        text = lines.replace("BELOW", str(fleet.first_port - 1))
        (fleet.home / "catalog.toml").write_text(f"{CATALOG}\n[models.tiny.profiles.wrong]\n{text}\n")
        return ("load", "tiny:wrong", "--yes")

    return spoil


def command(*args: str) -> Callable[[Fleet], tuple[str, ...]]:
    return lambda fleet: args


def catalog(text: str) -> Callable[[Fleet], tuple[str, ...]]:
    def spoil(fleet: Fleet) -> tuple[str, ...]:
        (fleet.home / "catalog.toml").write_text(text)
        return ("load", "tiny:two-host", "--yes")

    return spoil


def model(change: Callable[[Path], object]) -> Callable[[Fleet], tuple[str, ...]]:
    """``load tiny:two-host`` after something was done to the model file."""

    def spoil(fleet: Fleet) -> tuple[str, ...]:
        change(fleet.home / "models" / "tiny.gguf")
        return ("load", "tiny:two-host", "--yes")

    return spoil


def saved_plan(change: Callable[[dict[str, Any]], None]) -> Callable[[Fleet], tuple[str, ...]]:
    """``load --plan FILE`` of a plan that was made, saved, and changed."""

    def spoil(fleet: Fleet) -> tuple[str, ...]:
        path = fleet.home / "plan.json"
        planned = fleet.run("plan", "tiny:two-host", "-o", str(path))
        assert planned.returncode == 1, planned.stdout + planned.stderr
        tree = json.loads(path.read_text())
        change(tree)
        path.write_text(json.dumps(tree))
        return ("load", "--plan", str(path), "--yes")

    return spoil


def plan_file(text: str) -> Callable[[Fleet], tuple[str, ...]]:
    def spoil(fleet: Fleet) -> tuple[str, ...]:
        (fleet.home / "plan.json").write_text(text)
        return ("load", "--plan", str(fleet.home / "plan.json"), "--yes")

    return spoil


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def a_folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap_after_plan(fleet: Fleet) -> tuple[str, ...]:
    """A plan whose model file is another one by the time of its load: only the host can see that."""
    args = saved_plan(lambda tree: None)(fleet)
    with (fleet.home / "models" / "tiny.gguf").open("ab") as file:
        file.write(b"\0")
    return args


ROWS = [
    WrongLoad("a model with a typo", ("tinny", "did you mean 'tiny'"), command("load", "tinny", "--yes")),
    WrongLoad("a profile with a typo", ("two-hots", "two-host"), command("load", "tiny:two-hots", "--yes")),
    WrongLoad(
        "a host with a typo", ("host.unknown", "host-q"), command("load", "tiny:two-host", "--host", "host-q", "--yes")
    ),
    WrongLoad("nobody to confirm it", ("confirmed", "--yes"), command("load", "tiny:two-host")),
    WrongLoad("a read-only console", ("read-only",), command("--read-only", "load", "tiny:two-host", "--yes")),
    WrongLoad("a catalog that is no TOML", ("catalog.toml", "is not TOML"), catalog("[models.tiny\n")),
    WrongLoad("ranks = 0", ("catalog.toml", "ranks is 0"), profile("ranks = 0")),
    WrongLoad("an unknown key", ("rankz", "ranks"), profile("ranks = 2\nrankz = 3")),
    WrongLoad(
        "more workers than layers", ("ranks", "at most 5", "ranks = 6"), profile('ranks = 6\nhosts = ["host-a"]')
    ),
    WrongLoad(
        "a split that is one layer short",
        ("split.sum", "4 layers", "[2, 1]"),
        profile('ranks = 3\nhosts = ["host-a"]\nsplit = [2, 1]'),
    ),
    WrongLoad(
        "a device of another backend",
        ("device.missing", "CUDA0", "CPU"),
        profile('ranks = 2\nhosts = ["host-a"]\ndevice = "CUDA0"'),
    ),
    WrongLoad(
        "layers left on the leader by -ngl 0",
        ("options.refused", "n_gpu_layers", "offloads every layer"),
        profile('ranks = 2\nhosts = ["host-a"]\noptions = { n_gpu_layers = 0 }'),
    ),
    WrongLoad(
        "a port one below the range",
        ("port.outside",),
        profile('ranks = 2\nhosts = ["host-a"]\nport = BELOW'),
    ),
    WrongLoad(
        "a cache larger than the host's memory",
        ("memory.short", "CPU on host-a"),
        profile('ranks = 2\nhosts = ["host-a"]\ncontext = 2000000000'),
    ),
    WrongLoad(
        "a micro-batch of the whole, large context",
        ("memory.short",),
        profile('ranks = 2\nhosts = ["host-a"]\ncontext = 1000000\nn_batch = 4000000\nn_ubatch = 4000000'),
    ),
    WrongLoad(
        "quantized weights on this processor, or a quantized K cache",
        ("cpu.features", "q8_0", "avx_vnni"),
        profile('ranks = 2\nhosts = ["host-a"]\noptions = { cache_type_k = "q8_0" }'),
    ),
    WrongLoad("a model file that is missing", ("model.unreadable", "missing"), model(Path.unlink)),
    WrongLoad("a model file one byte short", ("model.truncated", "1 short"), model(lambda path: cut(path, -1))),
    WrongLoad("a model file of nothing", ("model.unreadable",), model(lambda path: cut(path, 0))),
    WrongLoad(
        "a folder in the model's place",
        ("model.unreadable", "no regular file"),
        model(a_folder_instead),
    ),
    WrongLoad(
        "a plan that was edited",
        ("it was edited", "its digest is", "Make a new plan"),
        saved_plan(lambda tree: tree.update(model="x")),
    ),
    WrongLoad(
        "a plan without its digest",
        ("its digest is missing", "Make a new plan"),
        saved_plan(lambda tree: tree.update(digest="")),
    ),
    WrongLoad("a plan file that is no plan", ("plan.json",), plan_file('{"plan": 1}')),
    WrongLoad("a plan file of nothing", ("plan.json",), plan_file("")),
    WrongLoad(
        "a plan file that is not there", ("nowhere.json",), command("load", "--plan", "/tmp/nowhere.json", "--yes")
    ),
    WrongLoad("a model file swapped after the plan", ("model.differs", "as planned"), swap_after_plan),
]


@contextlib.contextmanager
def put_back(fleet: Fleet) -> Iterator[None]:
    """Catalog and model as they were."""
    model_file, kept = fleet.home / "models" / "tiny.gguf", fleet.home / "tiny.kept"
    shutil.copy2(model_file, kept)
    try:
        yield
    finally:
        (fleet.home / "catalog.toml").write_text(CATALOG)
        if model_file.is_dir():
            model_file.rmdir()
        shutil.copy2(kept, model_file)


def assert_nothing_left(fleet: Fleet) -> None:
    assert processes_of_runs(fleet) == []
    assert left_behind(fleet) == {}


def assert_refused(fleet: Fleet, args: tuple[str, ...], words: tuple[str, ...], code: int = 2) -> None:
    done = fleet.run(*args)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}\n{said}"
    for word in words:
        assert word in said, f"{word!r} is not in:\n{said}"
    assert "Traceback" not in said
    assert_nothing_left(fleet)
    assert list((fleet.home).glob("host-?/runs/*/spawn.json")) == [], "an engine was started"


@pytest.mark.parametrize("row", as_parameters(ROWS))
def test_load(row: WrongLoad, shared: Fleet) -> None:
    """A wrong load ends with its code and words; no engine was started and no reservation is left."""
    if row.words[0] == "cpu.features" and "avx_vnni" in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has what the pinned engine needs")
    with put_back(shared):
        assert_refused(shared, row.spoil(shared), row.words, row.code)


def test_a_port_that_another_program_has(shared: Fleet) -> None:
    """A port that another program listens on is refused, and freed the same load is right."""
    port = shared.first_port + 7
    with put_back(shared):
        args = profile(f'ranks = 2\nhosts = ["host-a"]\nport = {port}')(shared)
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", port))
            holder.listen()
            assert_refused(shared, args, ("port.taken", str(port)))


def test_a_saved_plan_after_its_agent_was_restarted(fleet: Fleet) -> None:
    """A plan of an agent's former life is refused and says which fact moved."""
    args = saved_plan(lambda tree: None)(fleet)
    fleet.kill_agent("host-b")
    fleet.start("host-b")
    assert_refused(fleet, args, ("plan.stale", "host-b", "epoch"))


def test_two_releases(make_fleet: Callable[..., Fleet]) -> None:
    """Agents with engines of two releases: refused with both."""
    fleet = make_fleet()
    folder = fleet.home / "stand-in-of-another-release"
    folder.mkdir()
    for name in ("llama-server", "ggml-rpc-server"):
        stand_in(folder, name, OTHER_RELEASE)
    fleet.write_agent("host-b", 1, engine_folder=str(folder))
    fleet.start()
    assert_refused(
        fleet, ("load", "tiny:two-host", "--yes"), ("release.differs", "2-00c0ffe on host-b", "1-7e4c0a9, as on host-a")
    )


def test_memory_one_byte_short_and_exactly_enough(make_fleet: Callable[..., Fleet]) -> None:
    """A cap one byte below what the plan needs is refused with both numbers; the cap itself is right."""
    fleet = make_fleet()
    fleet.start()
    planned = fleet.json("plan", "tiny:two-host", code=1)
    bounds = [shard["bound"] for shard in planned["shards"] if shard["host"] == "host-b"]
    need = sum(bound["weights"] + bound["kv"] + bound["compute"] for bound in bounds)
    fleet.kill_agent("host-b")
    fleet.write_agent("host-b", 1, extra=f'[devices.CPU]\nmemory = "{need - 1}B"')
    fleet.start("host-b")
    assert_refused(fleet, ("load", "tiny:two-host", "--yes"), ("memory.short", "CPU on host-b"))
    fleet.kill_agent("host-b")
    fleet.write_agent("host-b", 1, extra=f'[devices.CPU]\nmemory = "{need}B"')
    fleet.start("host-b")
    assert fleet.load()["state"] == "ready"


def test_a_silent_agent(make_fleet: Callable[..., Fleet]) -> None:
    """One of two agents that does not answer is named, and nothing is asked of the other."""
    fleet = make_fleet()
    fleet.start("host-a")
    done = fleet.run("load", "tiny:two-host", "--yes")
    assert done.returncode in (2, 4), done.stdout + done.stderr
    assert re.search(r"host\.unreachable.*host-b", done.stdout + done.stderr)
    assert processes_of_runs(fleet) == []


def test_an_agent_of_another_name(make_fleet: Callable[..., Fleet]) -> None:
    """An address at which another host's agent answers is refused with both names."""
    fleet = make_fleet()
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}", "host-c": f"unix:{fleet.socket('host-b')}"})
    fleet.start()
    done = fleet.run("load", "tiny:two-host", "--host", "host-a", "--host", "host-c", "--yes")
    said = done.stdout + done.stderr
    assert done.returncode in (2, 4), said
    assert "this agent is host-b; the console expected host-c" in said
    assert processes_of_runs(fleet) == []


def test_a_second_replica_beside_the_first(fleet: Fleet) -> None:
    """A second replica of the same model gets ports of its own and is ready beside the first."""
    fleet.load("tiny:one-worker")
    done = fleet.run("load", "tiny:one-worker", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    replicas = {each["id"]: each for each in fleet.json("ls", "replicas")}
    assert {name: each["state"] for name, each in replicas.items()} == {"tiny-1": "ready", "tiny-2": "ready"}
    ports = [port for each in replicas.values() for shard in each["shards"] for port in shard["ports"]]
    assert len(set(ports)) == 4
