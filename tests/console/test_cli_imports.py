"""What is imported decides how fast a command is; so it is proven for each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("textual", "rich", "websockets", "httpx", "msgspec", "asyncio", "backend")
SCREEN = ("textual", "rich", "httpx")

_SCRIPT = """
import sys
from console.cli import run
try:
    sys.exit(run(sys.argv[2:]))
finally:
    print("\\nIMPORTED", *sorted(set(sys.argv[1].split(",")) & set(sys.modules)), file=sys.stderr)
"""


def imported(watched: tuple[str, ...], *arguments: str, home: Path, **environment: str) -> tuple[set[str], str]:
    """Which of the watched modules a command line imported, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _SCRIPT, ",".join(watched), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "RINGTOP_HOME": str(home), **environment},
    )
    line = next(line for line in done.stderr.splitlines() if line.startswith("IMPORTED"))
    return set(line.split()[1:]), done.stdout


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("drain", "--help")])
def test_version_and_help_import_nothing_of_weight(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found, text = imported(HEAVY, *arguments, home=tmp_path)
    assert text
    assert found == set()


@pytest.mark.parametrize(
    ("words", "wanted"), [("ringtop dr", "drain"), ("ringtop ls sh", "shards"), ("ringtop nonsense ", "drain")]
)
def test_completion_imports_nothing_of_weight(words: str, wanted: str, tmp_path: Path) -> None:
    found, text = imported(
        HEAVY,
        home=tmp_path,
        _RINGTOP_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )
    assert f"plain,{wanted}" in text
    assert found == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "replicas"),
        ("ls", "shards"),
        ("ls", "hosts"),
        ("ls", "models"),
        ("ls", "operations", "--json"),
        ("plan", "tiny:two-host"),
        ("load", "tiny:two-host", "--yes"),
        ("drain", "tiny-1"),
        ("unload", "tiny-1", "--yes"),
        ("drift",),
        ("journal", "--tail", "3"),
        ("logs", "tiny-1/0"),
        ("test", "tiny-1"),
        ("op", "show", "load-1"),
        ("op", "settle", "load-1"),
        ("op", "rollback", "load-1", "--yes"),
        ("drift", "ack", "x", "--note", "y", "--for", "1h"),
        ("ledger",),
        ("ledger", "rebuild"),
        ("down",),
        ("down", "tiny-1", "--yes", "--for", "1h"),
        ("pause", "tiny"),
        ("resume", "tiny"),
        ("keep", "--once"),
        ("doctor",),
    ],
)
def test_one_shot_commands_never_import_the_screen(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "contexts.toml").write_text(f'[contexts.test.hosts]\nhost-a = "unix:{tmp_path}/none.sock"\n')
    (tmp_path / "catalog.toml").write_text("[models]\n")
    found, _ = imported(SCREEN, *arguments, home=tmp_path)
    assert found == set()
