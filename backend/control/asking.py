"""One question to one agent, and the words for whatever came instead of an answer."""

from __future__ import annotations

from backend.contract.commands import Command
from backend.contract.entities import Result
from backend.contract.naming import no_such
from backend.contract.states import HostState
from backend.contract.words import HostId, ReplicaId
from backend.control.cannot_answer import CannotAnswer
from backend.control.exit_codes import FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.link_ends import AnswerUnknown, Refusal
from backend.control.reach import Reach
from backend.control.views import FleetState, ReplicaView

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

    def replica(self, replica: ReplicaId) -> ReplicaView:
        """The replica of that name. Raises CannotAnswer with the names there are."""
        replicas = self._reach.state.replicas
        if replica not in replicas:
            raise CannotAnswer(REFUSED, no_such("replica", replica, replicas))
        return replicas[replica]

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

    async def why_not(self, host: HostId, command: Command) -> str:
        """Why a host did not do it, or an empty text."""
        try:
            await self.ask(host, command, QUICK_SECONDS)
        except CannotAnswer as error:
            return str(error)
        return ""
