"""The command line as it is read: names, options, durations, and what is said about a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from backend.contract.words import HostId
from console.cli import cli, run
from console.commands.door import note_silent
from console.commands.exits import KINDS, REFUSED, CommandFailed, no_such, the_one
from console.commands.settings import Duration, Settings, fleet_command, split_target


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("2m", 120.0), ("1.5h", 5400.0), ("1d", 86_400.0), ("2:30", 150.0)],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 weeks", "-5s", "0", "31d", "nan", "inf", "1:2:x"])
def test_what_is_no_duration_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write|at most"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize("text", ["", ":two-host", "tiny:"])
def test_half_a_target_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="MODEL:PROFILE"):
        split_target(text)


def test_an_unknown_name_is_answered_with_what_exists_and_what_was_meant() -> None:
    error = no_such("replica", "tiny1", ["step37-1", "tiny-1"])
    assert error.exit_code == REFUSED
    assert "'tiny1'" in error.words
    assert "step37-1, tiny-1" in error.words
    assert "Did you mean tiny-1?" in error.words
    assert error.tree["error"]["known"] == ["step37-1", "tiny-1"]
    assert "known: none" in no_such("replica", "tiny-1", []).words


def test_an_id_may_be_cut_short_and_one_that_may_be_several_says_which() -> None:
    ids = ["load-1-ab", "load-2-cd", "drain-3", "drain-3-x"]
    assert the_one("operation", "load-1", ids) == "load-1-ab"
    assert the_one("operation", "drain-3", ids) == "drain-3", "a whole id is that one, whatever else begins with it"
    with pytest.raises(CommandFailed, match=r"'load' may be load-1-ab, load-2-cd; write more of it"):
        the_one("operation", "load", ids)
    for asked in ("", "unload"):
        with pytest.raises(CommandFailed, match=f"there is no operation '{asked}'"):
            the_one("operation", asked, ids)


def test_every_exit_code_has_a_word_in_json() -> None:
    for code, kind in KINDS.items():
        assert CommandFailed(code, "words").tree["error"]["kind"] == kind


def test_options_in_front_of_a_command_count_as_well_as_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGTOP_HOME", "/nowhere")
    seen: list[Settings] = []

    @click.command()
    @fleet_command
    def look(settings: Settings) -> None:
        seen.append(settings)

    runner = CliRunner()
    runner.invoke(look, ["--context", "prod", "--home", str(tmp_path), "--json"], obj=Settings(context="other"))
    runner.invoke(look, [], obj=Settings(context="prod", home=tmp_path, read_only=True))
    assert seen == [
        Settings(context="prod", home=tmp_path, as_json=True),
        Settings(context="prod", home=tmp_path, read_only=True),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["ls", "shardz"],
        ["--nonsense"],
        ["drain"],
        ["load"],
        ["lss"],
        ["test", "tiny-1", "--prompt", "\udcff"],
        ["journal", "export", "a", "--after", str(2**64)],
    ],
)
def test_bad_usage_ends_with_2_and_as_json_where_that_was_asked_for(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == REFUSED
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("ringtop: ")

    assert run([*arguments, "--json"]) == REFUSED
    told = capsys.readouterr()
    assert told.err == ""
    assert json.loads(told.out)["error"]["kind"] == "refused"


def test_the_help_names_every_command_and_every_exit_code() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    for name in [
        "doctor",
        "down",
        "drain",
        "journal",
        "load",
        "logs",
        "ls",
        "op",
        "plan",
        "reset-terminal",
        "test",
        "unload",
        "up",
    ]:
        assert f"\n  {name} " in text
    for code in ("0 done", "1 changes", "2 refused", "3 timed out", "4 unreachable", "5 ran", "130", "70"):
        assert code in text


def test_a_bug_is_one_line_with_the_file_of_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RINGTOP_HOME", str(tmp_path))

    def broken(*args: object, **more: object) -> None:
        raise ZeroDivisionError("by zero\x1b[2J")

    monkeypatch.setattr(cli, "main", broken)
    assert run(["ls", "hosts"]) == 70
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "ZeroDivisionError" in told.err
    assert "\x1b" not in told.err
    (crash,) = (tmp_path / "crashes").iterdir()
    assert str(crash) in told.err
    assert "Traceback" in crash.read_text()


def test_many_silent_hosts_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    note_silent({HostId("gpu-1"): "unreachable: refused"}, "what runs there is not known")
    assert capsys.readouterr().err == "ringtop: gpu-1 is unreachable: refused; what runs there is not known\n"
    note_silent({HostId(f"gpu-{n}"): "unreachable: refused" for n in range(1000)}, "what runs there is not known")
    assert capsys.readouterr().err == (
        "ringtop: gpu-0, gpu-1, gpu-2 and 997 more: unreachable: refused; what runs there is not known\n"
    )
