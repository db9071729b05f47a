"""A p4 agent is tended by what agent.toml says and nothing else: never by KILL, and no folder comes from the wire."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backend.agent.config import BridgeConfig, EngineConfig
from backend.contract.p4.addresses import parse_address
from backend.contract.reports import ResidentNode
from backend.engines.driver import TendingFailed, TendingRefused
from backend.engines.p4.place import BridgePlace, P4Place
from backend.engines.p4.surroundings import Lookout
from backend.engines.p4.tending import P4Tender
from tests.ports import claim_block, give_back


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    first = claim_block()
    give_back(first)
    return first


def a_tender(port: int, **settings: object) -> P4Tender:
    address = parse_address(f"tcp://127.0.0.1:{port}")
    fields: dict[str, object] = {"agent": address, "advertise": address, "binary": "/opt/stage", **settings}
    place = P4Place(**fields)  # type: ignore[arg-type]  # fields of a struct by name

    async def nobody() -> tuple[ResidentNode, ...]:
        raise AssertionError("nobody listens, so nobody is asked")

    async def leave() -> None:
        return

    return P4Tender(place, Lookout(place), nobody, leave)


async def test_a_host_without_its_p4_agent_is_said_to_have_none(port: int, tmp_path: Path) -> None:
    (tmp_path / "a.admission").write_text("a")
    seen = await a_tender(port, journal=str(tmp_path)).look(("1:1",), "/etc")
    assert (seen.life, seen.is_listening, seen.silence) == ("", False, "no process of it runs")
    assert (seen.journal.files, seen.journal.admissions) == (1, 1)
    assert "recovery census" in seen.restart
    assert seen.alive == (), "another process of that number is not the one that was asked about"
    assert seen.aside is None, "only a folder beside the journal is counted"


async def test_without_commands_it_is_a_persons_to_do(port: int) -> None:
    tender = a_tender(port)
    with pytest.raises(TendingRefused, match=r"no engines\.p4\.start"):
        await tender.begin()
    with pytest.raises(TendingRefused, match=r"no engines\.p4\.bridge\.restart"):
        await tender.restart_bridge()


@pytest.mark.parametrize("life", ["p4-agent", "12", "12:x", "\u00b2:1", "9" * 5_000 + ":1"], ids=lambda each: each[:8])
async def test_what_names_no_run_of_a_process_is_not_called_gone(port: int, life: str) -> None:
    with pytest.raises(ValueError, match="names no run of a process, which is pid:start ticks"):
        await a_tender(port, stop=("/bin/true",)).end(life)


async def test_the_command_that_ends_it_is_shown_as_it_would_be_run(port: int) -> None:
    shown = (await a_tender(port, stop=("/bin/end", "--pid={pid}", "now")).look((), "")).commands.end
    assert shown == "/bin/end --pid=PID now"


async def test_a_command_that_fails_is_heard(port: int) -> None:
    tender = a_tender(port, start=(sys.executable, "-c", "import sys; sys.exit('no unit of that name')"))
    with pytest.raises(TendingFailed, match="ended with exit 1: no unit of that name"):
        await tender.begin()
    gone = a_tender(port, bridge=BridgePlace(restart=("/nonexistent/systemctl",)))
    with pytest.raises(TendingFailed, match="cannot be run: No such file"):
        await gone.restart_bridge()


async def test_it_is_not_started_on_a_journal_that_it_would_refuse(port: int, tmp_path: Path) -> None:
    (tmp_path / "a.admission").write_text("a")
    with pytest.raises(TendingRefused, match="would refuse to start again"):
        await a_tender(port, journal=str(tmp_path), start=("/bin/true",)).begin()


async def test_only_its_own_journal_is_moved(port: int, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(TendingRefused, match="is not the journal of this p4 agent"):
        await a_tender(port, journal=str(tmp_path / "journal")).move_journal(str(other), f"{other}.aside-1", 0, 0)
    assert other.is_dir()


def test_a_command_that_kills_is_no_configuration() -> None:
    def config(**settings: object) -> EngineConfig:
        return EngineConfig(agent="tcp://127.0.0.1:4201", binary="/opt/stage", **settings)  # type: ignore[arg-type]

    assert config(stop=("/bin/kill", "-TERM", "{pid}")).settings.stop == ("/bin/kill", "-TERM", "{pid}")
    with pytest.raises(ValueError, match=r"engines\.p4\.stop has '-KILL'; a p4 agent is ended by TERM"):
        _ = config(stop=("/bin/kill", "-KILL", "{pid}")).settings
    with pytest.raises(ValueError, match=r"engines\.p4\.start runs 'systemctl'; its program must be an absolute path"):
        _ = config(start=("systemctl", "start", "p4")).settings
    with pytest.raises(ValueError, match=r"engines\.p4\.bridge\.restart runs 'sh'"):
        _ = config(bridge=BridgeConfig(restart=("sh", "restart"))).settings
