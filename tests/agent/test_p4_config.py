"""``[engines.p4]`` of agent.toml: what it may say, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.agent.config import ConfigError, read_config
from backend.engines.driver import AskingDriver, EngineMissing, SpawningDriver
from backend.engines.registry import driver_for

SOUND = 'agent = "tcp://127.0.0.1:4201"\nbinary = "/opt/p4/stage"\n'


def config(folder: Path, p4: str, more: str = "") -> Path:
    path = folder / "agent.toml"
    path.write_text(f'host = "a"\nstate = "{folder}"\nsocket = "{folder}/s"\n[engines.p4]\n{p4}\n{more}\n')
    return path


def test_what_a_p4_agent_is_dialled_at_is_what_it_advertises_unless_it_says_otherwise(tmp_path: Path) -> None:
    place = read_config(config(tmp_path, SOUND)).engines["p4"].settings
    assert (place.agent, place.advertise, place.binary) == (
        "tcp://127.0.0.1:4201",
        "tcp://127.0.0.1:4201",
        "/opt/p4/stage",
    )
    assert not place.bridge.is_told
    more = f'{SOUND}advertise = "tcp://10.0.0.7:04201"\n[engines.p4.bridge]\nhook = ["/usr/bin/tell", "it"]'
    place = read_config(config(tmp_path, more)).engines["p4"].settings
    assert place.advertise == "tcp://10.0.0.7:4201", "in p4's own spelling"
    assert place.bridge.hook == ("/usr/bin/tell", "it")
    assert place.bridge.is_told


@pytest.mark.parametrize(
    ("p4", "words"),
    [
        ('binary = "/opt/p4/stage"', "engines.p4.agent is missing"),
        ('agent = "tcp://127.0.0.1:4201"', "engines.p4.binary is ''"),
        ('agent = "127.0.0.1:4201"\nbinary = "/x"', "is not tcp://host:port"),
        ('agent = "tcp://127.0.0.1"\nbinary = "/x"', "has no port"),
        (f'{SOUND}journal = "journal"', "engines.p4.journal is 'journal'; it must be an absolute path"),
        (f'{SOUND}[engines.p4.bridge]\nurl = "https://h"', "engines.p4.bridge.url is 'https://h'"),
        (f'{SOUND}[engines.p4.bridge]\nrecord = "r"', "engines.p4.bridge.record is 'r'"),
        (f"{SOUND}slots = 256", "slots"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named(tmp_path: Path, p4: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(config(tmp_path, p4))
    assert words in str(refused.value)


def test_the_keys_of_p4_are_p4s_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engines.llamacpp takes a folder"):
        read_config(config(tmp_path, SOUND, '[engines.llamacpp]\nbinary = "/x"'))


def test_an_engine_is_spawned_or_asked_and_never_both(tmp_path: Path) -> None:
    p4 = driver_for("p4", None, read_config(config(tmp_path, SOUND)).engines["p4"].settings, tmp_path)
    llamacpp = driver_for("llamacpp", None)
    assert isinstance(p4, AskingDriver)
    assert not isinstance(p4, SpawningDriver)
    assert isinstance(llamacpp, SpawningDriver)
    assert not isinstance(llamacpp, AskingDriver)
    with pytest.raises(EngineMissing):
        driver_for("p4", None)
