"""A scope per engine where systemd runs. It does not run here, so its program is a stand-in, and tests say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.agent import facts, scopes, supervisor
from backend.agent.process_identity import open_identity
from backend.agent.run_folder import RunFolder
from tests.agent.run_world import python, runs, said, seen, until

__all__ = ["runs"]

PRINTS_ITS_ENVIRONMENT = python("import os, time; print(sorted(os.environ), 'up', flush=True); time.sleep(600)")


@pytest.fixture
def stand_in_systemd_run(tmp_path: Path) -> Path:
    """Writes down how it was called and then, as the real one does, becomes the command after ``--``."""
    program = tmp_path / "stand-in-systemd-run"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" > {tmp_path}/asked\n'
        f'echo "$XDG_RUNTIME_DIR" >> {tmp_path}/asked\n'
        'while [ "$1" != "--" ]; do shift; done\n'
        'shift\nexec "$@"\n'
    )
    program.chmod(0o755)
    return program


def test_no_scope_is_had_where_systemd_does_not_run(stand_in_systemd_run: Path, tmp_path: Path) -> None:
    programs = (stand_in_systemd_run,)
    assert scopes.own_scope("a", uid=0, systemd_runs=tmp_path / "absent", programs=programs) is None
    assert scopes.own_scope("a", uid=0, systemd_runs=tmp_path, programs=(tmp_path / "absent",)) is None


def test_root_asks_the_systems_manager_with_an_empty_environment(stand_in_systemd_run: Path, tmp_path: Path) -> None:
    scope = scopes.own_scope("tiny-1_0-17", uid=0, systemd_runs=tmp_path, programs=(stand_in_systemd_run,))
    assert scope is not None
    assert scope.argv[1:] == ("--scope", "--quiet", "--collect", "--unit=ringtop-engine-tiny-1_0-17.scope", "--")
    assert scope.environment == {}


def test_a_user_asks_their_own_manager_where_it_has_a_bus(stand_in_systemd_run: Path, tmp_path: Path) -> None:
    def ask(environment: dict[str, str]) -> scopes.Scope | None:
        programs = (stand_in_systemd_run,)
        return scopes.own_scope("a", uid=1000, environment=environment, systemd_runs=tmp_path, programs=programs)

    assert ask({}) is None
    assert ask({"XDG_RUNTIME_DIR": str(tmp_path)}) is None
    (tmp_path / "bus").touch()
    scope = ask({"XDG_RUNTIME_DIR": str(tmp_path), "SECRET": "x"})
    assert scope is not None
    assert scope.argv[-2:] == ("--user", "--")
    assert scope.environment == {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_a_name_that_systemd_would_not_take_is_changed() -> None:
    assert scopes.scope_name("a b@c/d-17") == "ringtop-engine-a_b_c_d-17.scope"
    assert len(scopes.scope_name("x" * 500)) < 255


async def test_an_engine_starts_through_a_stand_in_systemd_run_and_is_the_same_process(
    runs: Path, tmp_path: Path, stand_in_systemd_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bus").touch()
    monkeypatch.setattr(scopes, "SYSTEMD_RUNS", tmp_path)
    monkeypatch.setattr(scopes, "SYSTEMD_RUN", (stand_in_systemd_run,))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    identity = await supervisor.spawn(runs / "tiny-1_0-17", "nonce-1", PRINTS_ITS_ENVIRONMENT, {"ONLY": "this"})
    until(lambda: "up" in said(runs / "tiny-1_0-17"), "it is up")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0].startswith("--scope --quiet --collect --unit=ringtop-engine-tiny-1_0-17.scope --user -- ")
    assert asked[1] == str(tmp_path)
    assert "XDG_RUNTIME_DIR" not in said(runs / "tiny-1_0-17")
    record = RunFolder(runs / "tiny-1_0-17").read_spawn()
    assert record is not None
    assert (record.pid, seen(record.pid).parent, seen(record.pid).session) == (
        identity.pid,
        record.shim_pid,
        identity.pid,
    )
    assert open_identity(identity) is not None


async def test_a_stand_in_systemd_run_that_refuses_is_said_and_nothing_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "stand-in-systemd-run"
    program.write_text("#!/bin/sh\necho 'Failed to start transient scope unit: Access denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(scopes, "SYSTEMD_RUNS", tmp_path)
    monkeypatch.setattr(scopes, "SYSTEMD_RUN", (program,))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(supervisor.SpawnFailed, match="It said: Failed to start transient scope unit: Access denied"):
        await supervisor.spawn(runs / "tiny-1_0-17", "nonce-1", ["/bin/true"], {})
    assert supervisor.adopt(runs / "tiny-1_0-17") is None


def test_an_injected_unit_with_systemds_defaults_is_no_danger_to_engines_in_scopes(tmp_path: Path) -> None:
    def never(unit: str, is_user: bool) -> dict[str, str]:
        raise AssertionError(f"{unit} was asked for")

    groups = {"": "/system.slice/ringtop-agent.service"}
    assert facts.refuses_loads(groups, never, tmp_path, has_scopes=True) == ""
    assert "KillMode=unknown" in facts.refuses_loads(groups, lambda unit, is_user: {}, tmp_path, has_scopes=False)


@pytest.mark.parametrize("unit", ["ringtop-agent.service", "user/ringtop-agent.service"])
def test_the_shipped_units_have_what_the_agent_asks_for(unit: str, tmp_path: Path) -> None:
    lines = (Path(__file__).parents[2] / "docs" / "systemd" / unit).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    groups = {"": "/system.slice/ringtop-agent.service"}
    assert facts.refuses_loads(groups, lambda name, is_user: settings, tmp_path, has_scopes=False) == ""
    assert (settings["Restart"], settings["StartLimitBurst"]) == ("always", "10")
    assert "ringtop-agent serve" in settings["ExecStart"]
