"""What a host says for planning beyond its measurements: labels and budgets of its configuration, and its network."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from backend.agent.config import ConfigError, read_config
from backend.agent.facts import host_facts, own_addresses
from backend.contract.words import HostId, Port, UnixMs

AGENT = 'host = "gpu-a"\nstate = "/var/lib/ringtop"\nsocket = "/run/ringtop/a.sock"\n'


def config(tmp_path: Path, lines: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(AGENT + lines)
    return path


def test_labels_and_budgets_come_from_the_configuration(tmp_path: Path) -> None:
    read = read_config(config(tmp_path, 'pool = "night"\nfabric = "ib0"\ncores = 12\npower_w = 2400\n'))
    assert (read.pool, read.fabric, read.cores, read.power_w) == ("night", "ib0", 12, 2400)
    plain = read_config(config(tmp_path, ""))
    assert (plain.pool, plain.fabric, plain.cores, plain.power_w) == ("", "", 0, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('pool = "a b"', "pool is 'a b'"),
        ("cores = -1", "cores is -1"),
        ("power_w = 10000001", "power_w is 10000001"),
        ('fabrics = "x"', "fabrics"),
    ],
)
def test_a_label_or_budget_that_cannot_be_is_refused_by_name(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config(config(tmp_path, line))


def test_a_host_reports_its_labels_its_addresses_and_the_ports_that_the_kernel_gives_away() -> None:
    facts = host_facts(
        host=HostId("gpu-a"),
        agent_version="0.1.0",
        devices=(),
        engines=(),
        ports=(Port(18_000), Port(18_009)),
        advertise="10.0.0.1",
        model_roots=(),
        journal="ok",
        refuses_loads="",
        now=UnixMs(1),
        pool="night",
        fabric="ib0",
        cores=12,
        power_w=2400,
    )
    assert (facts.pool, facts.fabric, facts.cores, facts.power_w) == ("night", "ib0", 12, 2400)
    assert 0 < facts.ephemeral[0] < facts.ephemeral[1] < 65_536
    assert facts.addresses == own_addresses()
    assert facts.memory_limit < facts.memory_total


def test_own_addresses_are_those_that_another_host_could_dial() -> None:
    for text in own_addresses():
        address = ipaddress.ip_address(text)
        assert not address.is_loopback
        assert not address.is_link_local
