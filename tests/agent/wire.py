"""A raw console for tests: says frames to a real agent and reads what it answers."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, unix_connect

from backend.contract.commands import Command, Hello
from backend.contract.endpoints import Agent, Outer
from backend.contract.envelopes import SUBPROTOCOL, command_envelope, decode_event, encode
from backend.contract.events import Answered, Event, Heartbeat, Measured, Refused, Reported, UnknownEvent
from backend.contract.reports import HostReport
from backend.contract.words import HostId, OpId

E = TypeVar("E", bound=Event)


class RawConsole:
    """One websocket to one agent."""

    def __init__(self, ws: ClientConnection, host: str, console: str) -> None:
        self.ws = ws
        self.host = HostId(host)
        self.console = console
        self._numbers = itertools.count(1)
        self._passed_over: list[Event] = []

    @classmethod
    async def open(cls, socket: Path, host: str, console: str = "raw") -> RawConsole:
        ws = await unix_connect(str(socket), uri="ws://localhost/", subprotocols=[SUBPROTOCOL], compression=None)
        return cls(ws, host, console)

    async def say(self, command: Command) -> None:
        source = Outer(self.host, self.console, 1)
        await self.ws.send(
            encode(command_envelope(command, source=source, target=Agent(self.host), sequence=next(self._numbers)))
        )

    async def say_raw(self, change: dict[str, Any], body: dict[str, Any]) -> None:
        """A frame with fields changed or added."""
        source = Outer(self.host, self.console, 1)
        hello = self.hello_command()
        tree = json.loads(
            encode(command_envelope(hello, source=source, target=Agent(self.host), sequence=next(self._numbers)))
        )
        tree.update(change)
        tree["body"] = body
        await self.ws.send(json.dumps(tree))

    def hello_command(self, **changes: Any) -> Hello:
        fields: dict[str, Any] = {
            "op_id": OpId("hello"),
            "host": self.host,
            "console": self.console,
            "who": "tester",
            "connection_generation": 1,
            "major": 1,
            "minor": 0,
        }
        return Hello(**{**fields, **changes})

    async def hello(self, **changes: Any) -> HostReport:
        await self.say(self.hello_command(**changes))
        return (await self.hear(Reported)).report

    async def hear(self, kind: type[E], seconds: float = 40.0) -> E:
        """The oldest event of this kind that was not taken yet; whatever else came before it waits for its turn."""
        for passed in self._passed_over:
            if isinstance(passed, kind):
                self._passed_over.remove(passed)
                return passed
        try:
            async with asyncio.timeout(seconds):
                while True:
                    text = await self.ws.recv(decode=True)
                    _, event = decode_event(text)
                    assert not isinstance(event, UnknownEvent)
                    if isinstance(event, kind):
                        return event
                    self._passed_over.append(event)
        except TimeoutError:
            heard = [each for each in self._passed_over if not isinstance(each, Heartbeat | Measured)]
            raise AssertionError(f"no {kind.__name__} within {seconds:g} s; heard: {heard[-5:]}") from None

    async def turned_down(self, command: Command) -> str:
        """The words of whatever turns a command down: a refusal, or a result that did not succeed."""
        await self.say(command)
        while True:
            event = await self.hear(Event)
            if isinstance(event, Refused) and event.op_id == command.op_id:
                return f"{event.code}: {event.words}"
            if isinstance(event, Answered) and event.op_id == command.op_id:
                assert event.result.status != "succeeded", event.result
                return event.result.first_error

    async def ask(self, command: Command, seconds: float = 40.0) -> Answered:
        await self.say(command)
        while True:
            answered = await self.hear(Answered, seconds)
            if answered.op_id == command.op_id:
                return answered

    async def hear_to_the_end(self, seconds: float = 20.0) -> None:
        """Read until the connection ends; raises ConnectionClosed, or TimeoutError when it does not."""
        async with asyncio.timeout(seconds):
            while True:
                await self.ws.recv()

    async def close(self) -> None:
        await self.ws.close()
