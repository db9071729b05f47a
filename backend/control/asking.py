"""One question to one agent, and the words for whatever came instead of an answer."""

from __future__ import annotations

from typing import TypeVar

from backend.contract.commands import Command
from backend.contract.entities import Result
from backend.contract.envelopes import command_type
from backend.contract.frames import FrameError, convert
from backend.contract.naming import no_such
from backend.contract.states import HostState
from backend.contract.words import HostId, ReplicaId
from backend.control.cannot_answer import CannotAnswer
from backend.control.exit_codes import FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.link_ends import AnswerUnknown, Refusal
from backend.control.reach import Reach
from backend.control.views import FleetState, HostView, ReplicaView

T = TypeVar("T")
QUICK_SECONDS = 15.0
"""For what an agent answers without reading a file or waiting for an engine."""


class Asking:
    """Asks agents over the links of this console."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    @property
    def state(self) -> FleetState:
        """The fleet as it is now."""
        return self._reach.state

    async def ask(self, host: HostId, command: Command, seconds: float) -> Result:
        """The result when it succeeded; else CannotAnswer with the code that fits."""
        view = self._reach.state.hosts[host]
        if view.state is not HostState.LIVE:
            raise CannotAnswer(UNREACHABLE, f"{host} is {view.state.value}: {view.words}")
        try:
            result = await self._reach.links[host].ask(command, seconds)
        except AnswerUnknown as error:
            raise CannotAnswer(UNKNOWN if error.sent else UNREACHABLE, str(error)) from error
        except Refusal as error:
            raise CannotAnswer(REFUSED, f"{host} refused: {error}") from error
        if result.status != "succeeded":
            raise CannotAnswer(REFUSED if result.status == "rejected" else FAILED, f"{host}: {result.first_error}")
        return result

    async def ask_for(self, host: HostId, command: Command, seconds: float, kind: type[T], part: str = "") -> T:
        """The result's value, or the ``part`` of it with this name, as ``kind``. Raises what ``ask`` raises."""
        value = (await self.ask(host, command, seconds)).value
        try:
            return convert(value.get(part) if part else value, kind, f"its answer to {command_type(command)}")
        except FrameError as error:
            words = f"{host}: {error}. Install one release of ringtop on both sides."
            raise CannotAnswer(UNKNOWN, words) from error

    async def why_not(self, host: HostId, command: Command) -> str:
        """Why a host did not do it, or an empty text."""
        try:
            await self.ask(host, command, QUICK_SECONDS)
        except CannotAnswer as error:
            return str(error)
        return ""


def host_of(state: FleetState, name: str) -> HostView:
    """The host of that name. Raises CannotAnswer with the names there are."""
    view = state.hosts.get(HostId(name))
    if view is None:
        raise CannotAnswer(REFUSED, no_such("host", name, state.hosts))
    return view


def replica_of(state: FleetState, name: str) -> ReplicaView:
    """The replica of that name. Raises CannotAnswer with the names there are."""
    view = state.replicas.get(ReplicaId(name))
    if view is None:
        raise CannotAnswer(REFUSED, no_such("replica", name, state.replicas))
    return view
