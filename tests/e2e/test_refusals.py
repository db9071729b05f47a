"""Mistakes are refused before any engine starts: both values, the remedy, nothing left behind."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tests.e2e.fleet import CATALOG, Fleet

pytestmark = [pytest.mark.e2e]


def assert_refused(fleet: Fleet, *args: str, code: int = 2, words: tuple[str, ...]) -> None:
    """The command ends with this code and these words, and leaves neither process nor replica nor reservation."""
    done = fleet.run(*args)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}\n{said}"
    for word in words:
        assert word in said, f"{word!r} is not in:\n{said}"
    assert "Traceback" not in said
    assert fleet.engines() == []
    if code != 4:
        assert fleet.json("ls", "replicas") == []
        assert [host["reservations"] for host in fleet.json("ls", "hosts") if host["state"] == "live"] == [[], []]


def profile(fleet: Fleet, lines: str) -> None:
    (fleet.home / "catalog.toml").write_text(CATALOG + "\n[models.tiny.profiles.wrong]\n" + lines)


def test_an_unknown_model_is_named_beside_the_known_ones(fleet: Fleet) -> None:
    assert_refused(fleet, "load", "tinny", "--yes", words=("tinny", "tiny"))


def test_an_unknown_profile_is_named_beside_the_known_ones(fleet: Fleet) -> None:
    assert_refused(fleet, "load", "tiny:twohost", "--yes", words=("twohost", "two-host"))


def test_an_unknown_host_is_named_beside_the_known_ones(fleet: Fleet) -> None:
    profile(fleet, 'ranks = 2\nhosts = ["host-q"]\n')
    assert_refused(fleet, "load", "tiny:wrong", "--yes", words=("host.unknown", "host-q", "host-a"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("ranks = 3\nrankz = 4\n", ("rankz", "ranks", "catalog.toml")),
        ('ranks = "three"\n', ("ranks", "three", "catalog.toml")),
        ("ranks = 0\n", ("ranks", "0", "catalog.toml")),
    ],
)
def test_a_catalog_with_an_unknown_key_or_a_wrong_type_is_refused(
    fleet: Fleet, lines: str, words: tuple[str, ...]
) -> None:
    profile(fleet, lines)
    assert_refused(fleet, "load", "tiny:two-host", "--yes", words=words)


def test_a_missing_model_file_is_refused_with_the_place_that_was_looked_at(fleet: Fleet) -> None:
    (fleet.home / "models" / "tiny.gguf").unlink()
    assert_refused(fleet, "load", "tiny:two-host", "--yes", words=("missing", f"{fleet.home}/models/tiny.gguf"))


def test_a_truncated_model_file_is_refused_with_both_sizes(fleet: Fleet) -> None:
    path = fleet.home / "models" / "tiny.gguf"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    assert_refused(
        fleet, "load", "tiny:two-host", "--yes", words=("model.truncated", str(len(whole)), str(len(whole) - 1000))
    )


def test_a_file_that_is_no_model_is_refused(fleet: Fleet) -> None:
    (fleet.home / "models" / "tiny.gguf").write_bytes(b"not a model at all" * 100)
    assert_refused(fleet, "load", "tiny:two-host", "--yes", words=("GGUF",))


def test_a_device_that_the_engine_does_not_have_is_refused_with_those_it_has(fleet: Fleet) -> None:
    profile(fleet, 'ranks = 2\nhosts = ["host-a"]\ndevice = "CUDA0"\n')
    assert_refused(fleet, "load", "tiny:wrong", "--yes", words=("device.missing", "CUDA0", "CPU"))


def test_a_taken_port_is_refused(fleet: Fleet) -> None:
    port = fleet.first_port + 7
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        profile(fleet, f'ranks = 2\nhosts = ["host-a"]\nport = {port}\n')
        assert_refused(fleet, "load", "tiny:wrong", "--yes", words=("port.taken", str(port)))


def test_an_agent_that_does_not_answer_is_refused_with_exit_code_4(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    assert_refused(fleet, "load", "tiny:two-host", "--yes", code=4, words=("host-a",))


def test_one_agent_that_does_not_answer_is_named(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.start("host-a")
    done = fleet.run("load", "tiny:two-host", "--yes")
    assert done.returncode in (2, 4), done.stdout + done.stderr
    assert "host-b" in done.stdout + done.stderr
    assert "host.unreachable" in done.stdout + done.stderr
    assert fleet.engines() == []


def test_a_worker_of_another_release_is_refused_with_both_releases(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    folder = fleet.home / "other-build"
    folder.mkdir()
    for name in ("llama-server", "ggml-rpc-server"):
        # A stand-in that says another release, as a second real build would take minutes to compile.
        (folder / name).write_text('#!/bin/sh\necho "version: 0.2.0-dev (build 2, commit 00c0ffe)"\n')
        (folder / name).chmod(0o755)
    fleet.write_agent("host-b", 1, engine_folder=str(folder))
    fleet.start()
    assert_refused(
        fleet, "load", "tiny:two-host", "--yes", words=("release.differs", "2-00c0ffe", "1-7e4c0a9", "host-b")
    )


def test_an_engine_folder_without_the_engine_is_refused_and_named(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.write_agent("host-b", 1, engine_folder=str(fleet.home / "nothing-here"))
    fleet.start()
    assert_refused(fleet, "load", "tiny:two-host", "--yes", words=("engine.missing", "host-b", "nothing-here"))


def test_more_memory_than_there_is_is_refused_with_both_numbers(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.write_agent("host-b", 1, extra='[devices.CPU]\nmemory = "4MiB"')
    fleet.start()
    assert_refused(fleet, "load", "tiny:two-host", "--yes", words=("memory.short", "host-b"))


def test_a_context_that_does_not_exist_is_named_beside_the_known_ones(fleet: Fleet) -> None:
    done = fleet.run("--context", "prood", "ls", "hosts")
    assert done.returncode == 2
    assert "prood" in done.stdout + done.stderr
    assert "test" in done.stdout + done.stderr


@pytest.mark.parametrize("args", [("drain", "nope-1"), ("unload", "nope-1", "--yes"), ("test", "nope-1")])
def test_an_unknown_replica_is_named(fleet: Fleet, args: tuple[str, ...]) -> None:
    assert_refused(fleet, *args, words=("nope-1",))


def test_a_saved_plan_is_refused_once_a_fact_that_it_used_has_moved(fleet: Fleet) -> None:
    saved = fleet.home / "plan.json"
    assert fleet.run("plan", "tiny:two-host", "-o", str(saved)).returncode == 1
    fleet.kill_agent("host-b")
    fleet.start("host-b")
    assert_refused(fleet, "load", "--plan", str(saved), "--yes", words=("plan.stale", "host-b"))


def test_an_edited_plan_is_refused(fleet: Fleet) -> None:
    saved = fleet.home / "plan.json"
    assert fleet.run("plan", "tiny:two-host", "-o", str(saved)).returncode == 1
    saved.write_text(saved.read_text().replace('"threads":1', '"threads":2').replace('"threads": 1', '"threads": 2'))
    assert_refused(fleet, "load", "--plan", str(saved), "--yes", words=("it was edited", "Make a new plan"))


def test_read_only_refuses_writes_by_name(fleet: Fleet) -> None:
    done = fleet.run("--read-only", "load", "tiny:two-host", "--yes")
    assert done.returncode == 2
    assert "read-only" in done.stdout + done.stderr
    assert fleet.engines() == []
