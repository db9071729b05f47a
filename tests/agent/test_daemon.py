"""A real agent process, spoken to by hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from backend.agent.ports import can_bind
from backend.contract.commands import InspectModel, OperationStatus, Release, Reserve, Subscribe
from backend.contract.envelopes import SUBPROTOCOL
from backend.contract.events import JournalBatch, Refused, Subscribed, Welcome
from backend.contract.plans import sealed
from backend.contract.words import OpId
from tests.agent.wire import RawConsole
from tests.e2e.fleet import Fleet
from tests.factories import make_plan
from tests.faults.stand import load, reserve, worker_plan
from tests.ports import claim_block


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with contextlib.closing(Fleet(claim_block())) as made:
        made.start("host-a")
        yield made


async def test_the_socket_is_the_agents_users_alone(fleet: Fleet) -> None:
    assert stat.S_IMODE(os.stat(fleet.socket("host-a")).st_mode) == 0o600


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"origin": "https://evil.example"}, "consoles send none, browsers do"),
        ({"uri": "ws://evil.example/"}, "Host 'evil.example' is not accepted"),
        ({"subprotocols": ["other.v9"]}, "the subprotocol ringtop.v1 was not offered"),
    ],
)
async def test_a_browser_or_stranger_is_refused_in_the_handshake(
    fleet: Fleet, changes: dict[str, object], words: str
) -> None:
    settings: dict[str, object] = {"uri": "ws://localhost/", "subprotocols": [SUBPROTOCOL], **changes}
    with pytest.raises(InvalidStatus) as refused:
        await unix_connect(str(fleet.socket("host-a")), **settings)  # type: ignore[arg-type]  # a table of settings
    assert refused.value.response.status_code == 403
    assert words in (refused.value.response.body or b"").decode()


async def test_an_agent_that_is_another_host_says_both_names_and_closes(fleet: Fleet) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-z")
    await console.say(console.hello_command())
    refused = await console.hear(Refused)
    assert (refused.code, "this agent is host-a; the console expected host-z" in refused.words) == ("E_HOST", True)
    with pytest.raises(ConnectionClosed):
        await console.hear(Welcome)


async def test_a_command_that_no_record_can_hold_is_refused_aloud_and_the_agent_goes_on(fleet: Fleet) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    before = await console.hello()
    plan = sealed(msgspec.structs.replace(worker_plan(fleet), model_path="m" * 600_000))
    assert (await console.ask(reserve(plan))).result.status == "succeeded"
    words = await console.turned_down(load(plan))
    assert "nothing was done: a journal record has 60" in words
    assert "outside 1..524288. Shorten" in words
    answer = await console.ask(OperationStatus(op_id=OpId("s"), asked=OpId("l")))
    assert answer.result.value == {"known": False, "result": None}
    again = await RawConsole.open(fleet.socket("host-a"), "host-a", "again")
    after = await again.hello()
    assert (after.agent_epoch, after.revision) == (before.agent_epoch, 1)
    assert (set(after.entities.reservations), after.entities.shards) == ({"r"}, {})


async def test_a_command_to_a_node_is_refused_aloud_and_the_connection_lives(fleet: Fleet) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    target = {"kind": "node", "agent": "host-a", "node_id": "tiny-1/0", "generation": 1}
    body = {"type": "unload", "op_id": "u1"}
    await console.say_raw({"target": target}, body)
    refused = await console.hear(Refused)
    assert refused.op_id == "u1"
    assert "target.not_agent" in refused.words
    answer = await console.ask(OperationStatus(op_id=OpId("s"), asked=OpId("u1")))
    assert answer.result.value == {"known": False, "result": None}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"type": "reboot", "op_id": "x"}, "the command type 'reboot' is unknown"),
        ({"type": "op.status", "op_id": "x", "asked": "y", "force": True}, "unknown field `force`"),
        ({"type": "op.status", "op_id": "x", "asked": 7}, "Expected `str`, got `int`"),
    ],
)
async def test_unknown_words_in_commands_are_refused_by_name(fleet: Fleet, body: dict[str, object], words: str) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    await console.say_raw({}, body)
    assert words in (await console.hear(Refused)).words


async def test_a_new_hello_of_the_same_console_closes_its_old_connection(fleet: Fleet) -> None:
    old = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await old.hello()
    new = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await new.hello()
    with pytest.raises(ConnectionClosed):
        await old.hear_to_the_end()


async def test_a_reservation_survives_kill_minus_nine_and_the_journal_goes_on_from_a_cursor(fleet: Fleet) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    report = await console.hello()
    await console.say(Subscribe(op_id=OpId("sub"), tail=10))
    plan = make_plan(first_port=fleet.first_port)
    answer = await console.ask(Reserve(op_id=OpId("r1"), plan=plan, by="alice", seconds=60))
    assert answer.result.status == "succeeded", answer.result.first_error
    while (batch := await console.hear(JournalBatch)).records[-1].kind != "reserved":
        assert batch.records[-1].kind == "agent.started"
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    again = await RawConsole.open(fleet.socket("host-a"), "host-a")
    restarted = await again.hello()
    assert restarted.agent_epoch != report.agent_epoch
    assert restarted.journal_id == report.journal_id
    assert restarted.entities.reservations.keys() == {"r1"}
    await again.say(Subscribe(op_id=OpId("sub"), cursor=batch.cursor))
    assert (await again.hear(Subscribed)).outcome == "ok"
    first = (await again.hear(JournalBatch)).records[0]
    assert (first.seq, first.kind) == (batch.records[-1].seq + 1, "agent.started")
    same = await again.ask(Reserve(op_id=OpId("r1"), plan=plan, by="alice", seconds=60))
    assert same.result == answer.result


async def test_a_cursor_of_another_journal_is_diverged(fleet: Fleet) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    await console.say(Subscribe(op_id=OpId("sub"), cursor=f"{'0' * 32}:1:5:0000000a"))
    assert (await console.hear(Subscribed)).outcome == "diverged"
    await console.say(Subscribe(op_id=OpId("sub2"), cursor="yesterday"))
    assert "'yesterday' is not journal_id" in (await console.hear(Refused)).words


async def test_a_stream_joins_its_report_however_short_a_tail_was_asked_for(fleet: Fleet) -> None:
    first, second = [await RawConsole.open(fleet.socket("host-a"), "host-a", name) for name in ("a", "b")]
    await first.hello()
    report = await second.hello()
    for n in range(3):
        await first.ask(Release(op_id=OpId(f"x{n}"), reservation=OpId("none"), by="alice"))
    for tail in (0, 1):
        await second.say(Subscribe(op_id=OpId(f"sub-{tail}"), tail=tail))
        assert (await second.hear(Subscribed)).from_seq == report.seq
    records = (await second.hear(JournalBatch)).records
    assert records[0].seq == report.seq + 1


async def test_a_read_only_console_may_look_and_not_touch(fleet: Fleet) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello(read_only=True)
    plan = make_plan(first_port=fleet.first_port)
    await console.say(Reserve(op_id=OpId("r1"), plan=plan, by="alice", seconds=60))
    assert (await console.hear(Refused)).code == "E_READ_ONLY"
    found = await console.ask(InspectModel(op_id=OpId("m"), path="tiny.gguf"))
    assert found.result.value["model"]["n_layer"] == 4


@pytest.mark.parametrize("path", ["../host-a.toml", "/etc/passwd", "nothing.gguf", "", "a\0b"])
async def test_models_are_read_below_the_model_roots_only(fleet: Fleet, path: str) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    found = await console.ask(InspectModel(op_id=OpId("m"), path=path))
    assert found.result.status == "failed"
    assert "model" in found.result.first_error


async def test_a_symlink_out_of_the_model_roots_is_refused(fleet: Fleet) -> None:
    (fleet.home / "models" / "link.gguf").symlink_to("/etc/passwd")
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    found = await console.ask(InspectModel(op_id=OpId("m"), path="link.gguf"))
    assert "outside the agent's model roots" in found.result.first_error


def test_a_second_agent_on_the_same_state_is_refused_and_named(fleet: Fleet) -> None:
    command = [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", str(fleet.home / "host-a.toml")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert str(fleet.agents["host-a"].pid) in second.stderr
    assert fleet.socket("host-a").exists()


def test_an_agent_leaves_on_term_and_takes_its_socket_with_it(fleet: Fleet) -> None:
    agent = fleet.agents["host-a"]
    agent.terminate()
    assert agent.wait(30) == 0
    assert not fleet.socket("host-a").exists()


def test_connect_bridges_to_the_socket_and_says_when_nobody_answers(fleet: Fleet) -> None:
    bridge = [sys.executable, "-I", "-m", "backend.agent", "connect", "--socket"]
    nobody = subprocess.run([*bridge, "/nonexistent"], capture_output=True, text=True, timeout=60, check=False)
    assert nobody.returncode == 4
    assert "no agent answers at /nonexistent" in nobody.stderr
    with subprocess.Popen(
        [*bridge, str(fleet.socket("host-a"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as bridging:
        assert bridging.stdin is not None
        assert bridging.stdout is not None
        bridging.stdin.write(b"GET / HTTP/1.1\r\nHost: evil\r\n\r\n")
        bridging.stdin.flush()
        assert bridging.stdout.readline().startswith(b"HTTP/1.1 4")
        bridging.stdin.close()
        assert bridging.wait(30) == 0


async def test_loopback_tcp_is_served_when_asked_and_checks_the_host(fleet: Fleet) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert can_bind("127.0.0.1", port) is None
    agent = fleet.agents.pop("host-a")
    agent.terminate()
    agent.wait(30)
    config = str(fleet.home / "host-a.toml")
    command = [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", config, "--loopback-port", str(port)]
    fleet.agents["host-a"] = subprocess.Popen(command, start_new_session=True)  # noqa: ASYNC220  returns at once
    deadline = asyncio.get_running_loop().time() + 30
    while True:
        try:
            ws = await connect(f"ws://127.0.0.1:{port}/", subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None)
            break
        except OSError:
            assert asyncio.get_running_loop().time() < deadline, "the agent did not listen"
            await asyncio.sleep(0.05)
    console = RawConsole(ws, "host-a", "tcp")
    assert (await console.hello()).host == "host-a"
    await console.close()
    with pytest.raises(InvalidStatus):
        await connect(f"ws://localhost.evil.example:{port}/", host="127.0.0.1", subprotocols=[Subprotocol(SUBPROTOCOL)])
