"""Odd input from outside: closed streams, odd homes and files, odd names, and commands that cross each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from backend.engines.llamacpp.installation import pinned_folder
from tests.e2e.fleet import Fleet, until
from tests.ports import claim_block

pytestmark = [pytest.mark.e2e]

HOMES = [
    ("~nosuchuser/x", "a user whom this machine does not know"),
    ("/etc/passwd/x", "Not a directory"),
    ("/tmp/" + "x" * 300, "File name too long"),
    ("/tmp/no such ☃ home", "there is no such file"),
]
WRONG_USES = [
    ("bogus",),
    ("ls", "bogus"),
    ("plan",),
    ("plan", ""),
    ("plan", "tiny:"),
    ("plan", "☃"),
    ("plan", "tiny\x1b[31m"),
    ("plan", "x" * 100_000),
    ("plan", "tiny:two-host", "-o", "/dev/full"),
    ("load",),
    ("load", "tiny", "--plan", "x"),
    ("load", "--plan", "/dev/null", "--yes"),
    ("load", "tiny:two-host"),
    ("drain", "tiny-1", "--deadline", "nan"),
    ("drain", "tiny-1", "--cancel", "--force"),
    ("drain", "../../x"),
    ("unload", "tiny-1", "--yes"),
    ("test", "tiny-1", "--max-tokens", "99999999999999999999"),
    ("logs", "../../etc/passwd"),
    ("journal", "--tail", "-1"),
    ("op", "show", "../../etc/passwd"),
    ("op", "resume", ""),
    ("ls", "hosts", "--context", "☃"),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    """Two running agents for every test that changes nothing of them."""
    made = Fleet(claim_block())
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def home() -> Iterator[Path]:
    """A home for `up`, of which nothing is left afterwards."""
    path = Path(tempfile.mkdtemp(prefix="ro", dir="/tmp"))
    yield path
    ringtop(path, "down")
    for process in left_of(path):
        process.kill()
    shutil.rmtree(path, ignore_errors=True)


def environment(home: str | Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "HOME")}
    return {**kept, "RINGTOP_HOME": str(home), "TERM": "xterm-256color", **more}


def start(home: str | Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "console.cli", *args],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ringtop(home: str | Path, *args: str) -> tuple[int, str]:
    running = start(home, *args)
    out, err = running.communicate(timeout=100)
    return running.returncode, out + err


def shell(fleet: Fleet, line: str) -> tuple[str, str]:
    """What a line of bash prints, with ``$R`` for the command, and what it complains of."""
    env = {**fleet.env(), "R": " ".join(fleet.command())}
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout, done.stderr


def left_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            where = [*process.cmdline(), process.cwd(), process.environ().get("RINGTOP_HOME", "")]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(home) in text for text in where):
            found.append(process)
    return found


@pytest.mark.parametrize("command", ["ls hosts", "ls hosts --json", "plan tiny:two-host", "--help"])
def test_a_reader_that_leaves_ends_the_command_without_a_word(shared: Fleet, command: str) -> None:
    out, err = shell(shared, f"$R {command} | true; echo ${{PIPESTATUS[0]}}")
    # 0 or 1 when everything was in the pipe before its reader left
    assert out.strip() in ("130", "1" if command.startswith("plan") else "0")
    assert err == ""


@pytest.mark.parametrize("command", ["ls hosts", "ls hosts --json", "--version"])
@pytest.mark.parametrize("python", ["-I", "-I -u"], ids=["buffered", "unbuffered"])
def test_a_full_disk_behind_standard_output_is_said_and_no_success(shared: Fleet, command: str, python: str) -> None:
    out, err = shell(shared, f"{sys.executable} {python} -m console.cli {command} >/dev/full; echo $?")
    assert out.strip() == "3"
    assert "standard output cannot be written: No space left on device" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_bug(shared: Fleet, streams: str) -> None:
    out, err = shell(shared, f"$R ls hosts {streams}; echo $?")
    assert out.split()[-1] == "0"
    assert err == ""


@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", "--json >/dev/full", "--json >&-"])
def test_an_error_that_nobody_can_read_keeps_its_exit_code(shared: Fleet, streams: str) -> None:
    out, err = shell(shared, f"$R ls bogus {streams}; echo $?")
    assert out.strip() == "2"
    assert err == ""


@pytest.mark.parametrize("args", WRONG_USES, ids=lambda args: " ".join(args)[:40])
def test_every_error_is_one_json_object_with_words(shared: Fleet, args: tuple[str, ...]) -> None:
    done = shared.run(*args, "--json")
    assert done.returncode == 2, done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["exit_code"], error["kind"]) == (2, "refused")
    assert error["words"]
    assert len(error["words"]) < 2_000
    assert done.stderr == ""


@pytest.mark.parametrize("args", WRONG_USES, ids=lambda args: " ".join(args)[:40])
def test_no_error_steers_the_terminal(shared: Fleet, args: tuple[str, ...]) -> None:
    said = shared.run(*args).stderr
    assert said
    assert "\x1b" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("home", "words"), HOMES, ids=[home[:20] for home, _ in HOMES])
@pytest.mark.parametrize("command", ["ls hosts", "load tiny --yes"])
def test_a_home_that_cannot_be_is_refused_by_name(home: str, words: str, command: str) -> None:
    code, said = ringtop(home, *command.split())
    assert code == 2, said
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize("home", ["/etc/passwd/x", "/proc/x", "/tmp/" + "x" * 300])
def test_up_in_a_home_that_cannot_be_is_refused(home: str) -> None:
    code, said = ringtop(home, "up", "--once", "--json")
    assert code == 2, said
    assert json.loads(said)["error"]["words"]


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_a_locale_without_utf8_gets_ascii(shared: Fleet, locale: str) -> None:
    done = shared.run("plan", "tiny:two-host", env={"LC_ALL": locale, "LANG": locale})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tiny-1" in done.stdout
    assert done.stdout.isascii()
    assert done.stderr == ""
    refused = shared.run("plan", "☃", env={"LC_ALL": locale, "LANG": locale})
    assert (refused.returncode, refused.stderr.isascii()) == (2, True), refused.stderr


@pytest.mark.parametrize("env", [{"HOME": ""}, {"COLUMNS": "abc"}, {"COLUMNS": "1"}, {"TERM": ""}, {"USER": ""}])
def test_an_odd_environment_changes_no_answer(shared: Fleet, env: dict[str, str]) -> None:
    done = shared.run("ls", "hosts", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "host-b" in done.stdout


def test_two_hosts_behind_one_socket_are_told_apart(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}", "host-b": f"unix:{fleet.home}/./host-a.sock"})
    fleet.start("host-a")
    done = fleet.run("ls", "hosts")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "host id 'host-a' comes from two places" in done.stderr
    assert f"unix:{fleet.home}/./host-a.sock" in done.stderr


def test_a_symlink_for_a_home_works(home: Path) -> None:
    link = home.with_name(home.name + "-link")
    link.symlink_to(home)
    try:
        code, said = ringtop(link, "up", "--once")
    finally:
        link.unlink()
    assert code == 0, said
    until("no process left", lambda: not left_of(home) or None)


@pytest.mark.xdist_group("up")
def test_two_at_once_do_not_stop_each_other(home: Path) -> None:
    both = [start(home, "up", "--once", "--json") for _ in range(2)]
    ends = [running.communicate(timeout=100)[0] for running in both]
    codes = sorted(running.returncode for running in both)
    assert codes in ([0, 2], [0, 0]), ends  # both, when the second began after the first had ended
    if codes == [0, 2]:
        refused = next(json.loads(out) for out in ends if "error" in json.loads(out))
        assert "another ringtop up --once is at work" in refused["error"]["words"]
    until("no process left", lambda: not left_of(home) or None)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("local/host-a/agent.toml", "host = 3\n", "the agent's own"),
        ("contexts.toml", "x = [", "is not TOML"),
        ("catalog.toml", "", "no model named tiny"),
        ("ledger", "", "ledger: File exists"),
        ("local/models", "", "models: File exists"),
        ("local/caretaker.json", "{}", "ringtop down"),
    ],
)
def test_an_odd_file_in_the_home_is_refused_before_anything_starts(
    home: Path, name: str, text: str, words: str
) -> None:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    code, said = ringtop(home, "up", "--once")
    assert code in (2, 5), said
    if words != "the agent's own":
        assert code == 2, said
        assert words in said
    assert "Traceback" not in said
    assert left_of(home) == []


def test_an_agent_that_cannot_start_is_quoted_and_nothing_is_left(home: Path) -> None:
    state = home / "local" / "host-a" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("no folder")
    code, said = ringtop(home, "up", "--once")
    assert code == 5, said
    assert "Not a directory" in said
    assert "Stopped: agent host-b, caretaker" in said
    until("no process left", lambda: not left_of(home) or None)


def test_down_with_a_record_that_no_caretaker_wrote_names_the_file(home: Path) -> None:
    record = home / "local" / "caretaker.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    code, said = ringtop(home, "down")
    assert code == 2, said
    assert f"{record} is not what a caretaker writes" in said
    assert "Traceback" not in said
    record.unlink()


def test_an_unload_during_a_load_wins_and_nothing_is_left(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    folder = fleet.home / "stand-in-that-starts-late"
    folder.mkdir()
    for name in ("llama-server", "ggml-rpc-server"):
        program = folder / name
        late = 'if sys.argv[1] == "-m":\n    time.sleep(6)\n'
        program.write_text(
            f"#!{sys.executable} -I\nimport os, sys, time\n{late}"
            f"os.execv({str(pinned_folder() / name)!r}, [sys.argv[0], *sys.argv[1:]])\n"
        )
        program.chmod(0o755)
    fleet.write_agent("host-a", 0, engine_folder=str(folder))
    fleet.start()
    loading = subprocess.Popen(
        fleet.command("load", "tiny:two-host", "--yes", "--json"),
        env=fleet.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def has_leader() -> bool | None:
        seen = fleet.replica()
        return True if seen and any(shard["rank"] == 0 for shard in seen["shards"]) else None

    until("the leader's start", has_leader)
    unloaded = fleet.run("unload", "tiny-1", "--yes")
    assert unloaded.returncode == 0, unloaded.stdout + unloaded.stderr
    out, err = loading.communicate(timeout=60)
    assert loading.returncode in (2, 5), out + err
    assert "unloaded by" in out
    assert fleet.json("ls", "replicas") == []
    assert fleet.engines() == []


def test_drained_twice_at_once_one_drain_runs(fleet: Fleet) -> None:
    fleet.load("tiny:one-worker")
    first = subprocess.Popen(
        fleet.command("drain", "tiny-1", "--deadline", "60s"),
        env=fleet.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    second = fleet.run("drain", "tiny-1", "--deadline", "60s")
    said, _ = first.communicate(timeout=100)
    codes = sorted((first.returncode, second.returncode))
    assert codes == [0, 2], said + second.stdout + second.stderr
    until("no engine", lambda: not fleet.engines() or None)
    assert fleet.json("ls", "replicas") == []
