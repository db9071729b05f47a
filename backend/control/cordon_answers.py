"""What becomes of a request to cordon or uncordon a host: one command to its agent, fenced by what was seen there."""

from __future__ import annotations

from backend.contract.commands import CordonHost, Expect, UncordonHost
from backend.contract.naming import no_such
from backend.contract.words import HostId, OpId
from backend.control.asking import QUICK_SECONDS, Asking
from backend.control.cannot_answer import CannotAnswer
from backend.control.exit_codes import DONE, REFUSED
from backend.control.requests import CordonRequest, UncordonRequest
from backend.control.views import FleetState, HostView


async def cordon_host(asking: Asking, who: str, op_id: OpId, request: CordonRequest | UncordonRequest) -> str:
    """Cordon or uncordon the host; what stands now in words. Raises CannotAnswer."""
    view = _host(asking.state, request.host)
    seen = view.revision if request.revision is None else request.revision
    expect = Expect(agent_epoch=view.agent_epoch or None, revision=seen)
    if isinstance(request, UncordonRequest):
        if view.entities.cordon is None and view.facts is not None and view.state.value == "live":
            raise CannotAnswer(DONE, f"nothing to do: {view.host} is not cordoned")
        await asking.ask(view.host, UncordonHost(op_id=op_id, by=who, expect=expect), QUICK_SECONDS)
        return f"{view.host} takes new shards again"
    command = CordonHost(op_id=op_id, by=who, why=request.why, seconds=request.seconds, expect=expect)
    await asking.ask(view.host, command, QUICK_SECONDS)
    lasts = "until it is uncordoned" if request.seconds is None else f"for {request.seconds:g} s"
    return f"{view.host} is cordoned {lasts}: it takes no new shards, and what runs there runs on"


def _host(state: FleetState, name: str) -> HostView:
    view = state.hosts.get(HostId(name))
    if view is None:
        raise CannotAnswer(REFUSED, no_such("host", name, state.hosts))
    return view
