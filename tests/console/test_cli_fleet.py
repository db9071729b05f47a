"""The one-shot commands against two real agents, and a real engine where something is loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.local.fleet import LocalFleet
from backend.local.layout import Layout
from backend.local.processes import is_alive, read_record, send_signal

DEADLINE = 60.0


class Home:
    """One home with its fleet, and the command line on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {**os.environ, "RINGTOP_HOME": str(path), "LC_ALL": "C.UTF-8"}

    def ringtop(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, without a terminal."""
        return subprocess.run(
            [sys.executable, "-I", "-m", "console.cli", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE * 2,
            check=False,
            env=self.environment,
        )

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command whose output is read as it comes."""
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "console.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
        )

    def facts(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        done = self.ringtop(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A fleet of two agents, stopped by its own command; what that leaves is ended by its identity."""
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        path = Path(folder)
        fleet = LocalFleet(path)
        fleet.start(DEADLINE)
        yield Home(path)
        stopped = Home(path).ringtop("down")
        record = read_record(Layout(path).record)
        for process in (record.caretaker, *record.agents.values()) if record else ():
            send_signal(process, signal.SIGKILL)
            wait_until(lambda process=process: not is_alive(process))  # type: ignore[misc]
        assert stopped.returncode == 0, stopped.stderr
        assert not fleet.is_left


@pytest.fixture
def replica(home: Home) -> Iterator[str]:
    """A replica of the tiny model on one host, gone again afterwards."""
    done = home.ringtop("load", "tiny:one-host", "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    name = json.loads(done.stdout)["replica"]["id"]
    yield name
    home.ringtop("unload", name, "--yes")
    assert name not in {each["id"] for each in home.facts("ls", "replicas")}


def wait_until(holds: Callable[[], object], seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def end(command: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = command.communicate(timeout=DEADLINE)
    return command.returncode, out, err


def test_hosts_and_models_are_listed_for_people_and_for_programs(home: Home) -> None:
    done = home.ringtop("ls", "hosts")
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["host-a", "live"], ["host-b", "live"]]
    hosts = home.facts("ls", "hosts")
    assert [host["state"] for host in hosts] == ["live", "live"]
    assert hosts[0]["engines"][0]["engine"] == "llamacpp"
    models = home.facts("ls", "models")
    assert set(models[0]["profiles"]) == {"two-host", "one-host"}
    assert "tiny:two-host" in home.ringtop("ls", "models").stdout


def test_where_nothing_drifts_the_exit_code_says_so(home: Home) -> None:
    done = home.ringtop("drift")
    assert done.returncode == 0
    assert done.stdout.strip().startswith("Nothing differs that should be equal.  ")
    assert home.facts("drift") == []


def test_a_plan_that_can_be_loaded_is_a_pending_change(home: Home, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    done = home.ringtop("plan", "tiny:two-host", "-o", str(saved))
    assert done.returncode == 1, done.stderr
    assert f"ringtop load --plan {saved}" in done.stdout
    plan = json.loads(saved.read_text())
    assert [shard["rank"] for shard in plan["shards"]] == [0, 1, 2]
    assert {shard["host"] for shard in plan["shards"]} == {"host-a", "host-b"}


def test_a_plan_that_a_guard_refuses_ends_with_2_and_both_values(home: Home) -> None:
    done = home.ringtop("plan", "tiny:two-host", "--host", "host-c")
    assert done.returncode == 2
    assert "host-c" in done.stdout + done.stderr


def test_an_unknown_model_is_answered_with_those_that_exist(home: Home) -> None:
    done = home.ringtop("plan", "tinny")
    assert done.returncode == 2
    assert "tinny" in done.stderr
    assert "tiny" in done.stderr.replace("tinny", "")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("drain", "tiny-9"), "replica"),
        (("unload", "tiny-9", "--yes"), "replica"),
        (("test", "tiny-9"), "replica"),
        (("logs", "tiny-9/0"), "shard"),
        (("op", "show", "load-nothing"), "operation"),
    ],
)
def test_an_unknown_name_ends_with_2_and_is_named(home: Home, arguments: tuple[str, ...], what: str) -> None:
    done = home.ringtop(*arguments, "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "refused"
    assert f"no {what} '{error['asked']}'" in error["words"]


def test_a_load_without_a_terminal_must_be_confirmed_by_an_option(home: Home) -> None:
    done = home.ringtop("load", "tiny:one-host")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert home.facts("ls", "replicas") == []


def test_a_plan_that_was_edited_is_not_loaded(home: Home, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    home.ringtop("plan", "tiny:one-host", "-o", str(saved))
    plan = json.loads(saved.read_text())
    plan["shards"][0]["layers"] = [0, 2]
    saved.write_text(json.dumps(plan))
    done = home.ringtop("load", "--plan", str(saved), "--yes")
    assert done.returncode == 2
    assert "edited" in done.stderr
    assert home.facts("ls", "replicas") == []


def test_read_only_refuses_every_write_and_lets_everything_else_pass(home: Home) -> None:
    done = home.ringtop("--read-only", "load", "tiny:one-host", "--yes")
    assert done.returncode == 2
    assert "read-only" in done.stderr
    assert home.ringtop("--read-only", "ls", "hosts").returncode == 0
    assert home.facts("ls", "replicas") == []


def test_the_journal_ends_with_the_newest_record_of_every_host(home: Home) -> None:
    lines = home.facts("journal", "--tail", "500")
    assert {line["host"] for line in lines} == {"host-a", "host-b"}
    assert [line["at_unix_ms"] for line in lines] == sorted(line["at_unix_ms"] for line in lines)
    assert len(home.facts("journal", "--tail", "1")) == 1
    done = home.ringtop("journal", "--tail", "0")
    assert (done.returncode, done.stdout) == (0, "")


def test_following_the_journal_ends_with_ctrl_c(home: Home) -> None:
    command = home.begin("journal", "--follow", "--tail", "1")
    assert command.stdout is not None
    assert command.stdout.readline()
    command.send_signal(signal.SIGINT)
    code, _, err = end(command)
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.engine
def test_a_loaded_replica_is_listed_answers_and_shows_what_it_printed(home: Home, replica: str) -> None:
    (facts,) = home.facts("ls", "replicas")
    assert (facts["id"], facts["state"], facts["ranks_ready"], facts["world_size"]) == (replica, "ready", 1, 1)
    (shard,) = facts["shards"]
    assert shard["pid"] > 0
    assert shard["exit"] is None
    assert shard["bound"]["agrees"] is True
    assert shard["bound"]["unit"] == "bytes"
    assert replica in home.ringtop("ls", "replicas").stdout
    assert f"{replica}/0" in home.ringtop("ls", "shards").stdout

    answer = home.facts("test", replica, "--max-tokens", "4")
    assert answer["text"]
    assert answer["seconds"] > 0

    log = home.ringtop("logs", f"{replica}/0", "--tail", "1000000")
    assert log.returncode == 0
    assert "llama" in log.stdout
    assert home.facts("logs", f"{replica}/0", "--tail", "100")["text"]

    loaded = facts["load_generation"]
    (operation,) = [each for each in home.facts("ls", "operations") if each["load_generation"] == loaded]
    assert (operation["kind"], operation["state"], operation["exit_code"]) == ("load", "succeeded", 0)
    assert home.facts("op", "show", operation["id"])["steps"]
    assert operation["id"] in home.ringtop("op", "show", operation["id"]).stdout


@pytest.mark.engine
def test_ctrl_c_ends_the_watching_of_a_drain_and_never_the_drain(home: Home, replica: str) -> None:
    command = home.begin("drain", replica, "--deadline", "60s", "--admission-closed-by", "the test")
    assert command.stdout is not None
    seen = ""
    while "in flight" not in seen:
        line = command.stdout.readline()
        assert line, f"it ended early: {seen}"
        seen += line
    command.send_signal(signal.SIGINT)
    code, _, err = end(command)
    assert code == 130, err
    assert f"ringtop drain {replica} --cancel" in err
    wait_until(lambda: not home.facts("ls", "replicas"))


@pytest.mark.engine
def test_a_drain_is_followed_in_three_numbers_until_the_replica_is_gone(home: Home, replica: str) -> None:
    done = home.ringtop("drain", replica, "--deadline", "60s", "--why", "a test")
    assert done.returncode == 0, done.stderr
    numbers = next(line for line in done.stdout.splitlines() if "in flight" in line)
    assert "oldest" in numbers
    assert "left" in numbers
    again = home.ringtop("drain", replica)
    assert again.returncode == 2
    assert replica in again.stderr


def test_a_silent_fleet_is_unreachable_and_says_which_host_and_why(tmp_path: Path) -> None:
    (tmp_path / "contexts.toml").write_text(f'[contexts.test.hosts]\nhost-a = "unix:{tmp_path}/none.sock"\n')
    silent = Home(tmp_path)
    for arguments in (("ls", "replicas"), ("plan", "tiny"), ("journal",), ("drift",), ("test", "tiny-1")):
        done = silent.ringtop(*arguments)
        assert done.returncode == 4, (arguments, done.stderr)
        assert "host-a" in done.stderr
        assert "none.sock" in done.stderr


def test_a_missing_contexts_file_is_refused_with_the_way_to_get_one(tmp_path: Path) -> None:
    done = Home(tmp_path).ringtop("ls", "hosts", "--json")
    assert done.returncode == 2
    assert "ringtop up" in json.loads(done.stdout)["error"]["words"]


def test_down_with_nothing_up_has_nothing_to_stop(tmp_path: Path) -> None:
    done = Home(tmp_path).ringtop("down")
    assert (done.returncode, done.stdout) == (0, "nothing to stop\n")


def test_doctor_names_each_check_and_a_folder_that_is_no_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    checks = {check["name"]: check["verdict"] for check in home.facts("doctor")["checks"]}
    assert checks["python"] == checks["packages"] == checks["home"] == "ok"
    assert checks["contexts"] == "warn"
    (tmp_path / "file").write_text("")
    home.environment["RINGTOP_HOME"] = str(tmp_path / "file")
    done = home.ringtop("doctor")
    assert done.returncode == 5
    assert "is no folder" in done.stdout
