"""How long a person says that something is held, and what is refused before anything is sent."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from backend.api import OpId, StartUnload
from console.cli import run
from console.commands import holds
from console.commands.door import Outcome
from console.commands.exits import FAILED, CommandFailed
from console.commands.holds import Moment, take_down
from console.commands.settings import Settings
from tests.console import worlds as w


def test_a_moment_is_today_or_else_tomorrow() -> None:
    now = datetime.now().astimezone()
    for minutes in (30, -30):
        moment = now + timedelta(minutes=minutes)
        seconds = Moment().convert(moment.strftime("%H:%M"), None, None)
        assert abs(seconds - (minutes if minutes > 0 else 24 * 60 + minutes) * 60) <= 61


def test_a_moment_with_a_date_is_meant_as_it_is_written() -> None:
    later = datetime.now(UTC) + timedelta(days=2)
    assert abs(Moment().convert(later.isoformat(), None, None) - 2 * 86_400) < 60


@pytest.mark.parametrize("text", ["25:00", "soon", "2020-01-01T00:00", "2999-01-01T00:00", ""])
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Moment().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("down", "--for", "1h"), "belong to a replica or model"),
        (("down", "--yes"), "belong to a replica or model"),
        (("pause", "tiny", "--for", "1h", "--until", "18:00"), "exclude each other"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


def test_one_replica_that_cannot_be_unloaded_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def follow(backend: object, request: StartUnload, **more: object) -> Outcome:
        asked.append(request.replica)
        if request.replica == "tiny-1":
            raise CommandFailed(FAILED, "rank 2 on gpu-b does not end")
        return Outcome(OpId("unload-2"), f"{request.replica} is gone", None)

    state = w.fleet(w.replica("tiny-1"), w.replica("tiny-2"))
    monkeypatch.setattr(holds, "opened", lambda settings: contextlib.nullcontext())
    monkeypatch.setattr(holds, "state_of", lambda backend: state)
    monkeypatch.setattr(holds, "set_hold", lambda *anything: "model tiny is down at 2 of 2 hosts")
    monkeypatch.setattr(holds, "follow", follow)
    with pytest.raises(CommandFailed, match="tiny-1: rank 2 on gpu-b does not end") as failed:
        take_down(Settings(), "tiny", None, "", yes=True)
    assert failed.value.exit_code == FAILED
    assert [line["exit_code"] for line in failed.value.more["unloaded"]] == [FAILED, 0]
    assert asked == ["tiny-1", "tiny-2"]


def test_a_keeper_of_a_read_only_context_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(tmp_path)
    with open(f"{home}/contexts.toml", "w", encoding="utf-8") as file:
        file.write(f'[contexts.test]\nread_only = true\n[contexts.test.hosts]\nhost-a = "unix:{home}/none.sock"\n')
    assert run(("--home", home, "keep", "--once")) == 2
    assert "read-only" in capsys.readouterr().err
    assert run(("--home", home, "keep", "--once", "--lease", "0.1s")) == 2
