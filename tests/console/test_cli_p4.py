"""``ringtop p4``: the vectors through the command line, and what it says of bytes that p4 would refuse."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest

from console.cli import run
from tests.contract.p4.bytes_on_file import body_of, canonical, entries

RINGTOP = [sys.executable, "-I", "-m", "console.cli"]
KIND_OF_FILE = {"p4e3": "event", "p4h1": "hop"}


def _vectors(which: str) -> list[Any]:
    """Every tenth vector of each file with its kind: the codec's own tests read all of them."""
    found = []
    for file in ("p4e3", "p4h1", "lifecycle"):
        for parameter in entries(f"{file}-{which}")[::10]:
            entry: Any = parameter.values[0]
            found.append(pytest.param(KIND_OF_FILE.get(file) or entry["kind"], entry, id=entry["name"]))
    return found


def _give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize(("kind", "entry"), _vectors("valid"))
def test_bytes_become_json_and_json_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str, entry: dict[str, Any]
) -> None:
    _give(monkeypatch, body_of(entry).hex().encode())
    assert run(["p4", "decode", "--kind", kind]) == 0
    printed = capfd.readouterr().out
    document = json.loads(printed)
    assert {name: entry[name] for name in document if name in entry and name != "event"}.items() <= document.items()
    _give(monkeypatch, printed.encode())
    assert run(["p4", "encode", "--kind", kind]) == 0
    assert capfd.readouterr().out.strip() == canonical(entry).hex()


@pytest.mark.parametrize(("kind", "entry"), _vectors("invalid"))
def test_what_p4_would_refuse_ends_with_two_and_the_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, entry: dict[str, Any]
) -> None:
    _give(monkeypatch, body_of(entry))
    assert run(["p4", "decode", "--kind", kind, "--raw", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["kind"] == "refused"
    assert said["words"]


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        (("decode", "--kind", "event"), b"5g", "not hex"),
        (("decode", "--kind", "event"), b"", "0 bytes beginning b'' are no event"),
        (("encode", "--kind", "event"), b'{"event": 1, "event": 2}', "'event' appears twice"),
        (("encode", "--kind", "event"), b"\xff", "not UTF-8"),
        (("encode", "--kind", "hop"), b'{"frame": {"kind": "hello"}}', "missing required field"),
        (("encode", "--kind", "load"), b'{"kind": "unload", "metadata": {}, "opaque_hex": ""}', "'unload', and load"),
        (("encode", "--kind", "load"), b'{"metadata": {}, "body": ""}', "unknown member 'body'"),
        (("encode", "--kind", "event", "--raw", "--json"), b"{}", "give one of them"),
    ],
)
def test_a_mistake_is_answered_with_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    given: bytes,
    words: str,
) -> None:
    _give(monkeypatch, given)
    assert run(["p4", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_raw_bytes_go_through_pipes_untouched() -> None:
    body = body_of(entries("p4e3-valid")[11].values[0])
    read = subprocess.run([*RINGTOP, "p4", "decode", "--kind", "event", "--raw"], input=body, capture_output=True)
    assert read.returncode == 0, read.stderr
    back = subprocess.run(
        [*RINGTOP, "p4", "encode", "--kind", "event", "--raw"], input=read.stdout, capture_output=True
    )
    assert back.stdout == body
