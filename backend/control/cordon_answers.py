"""What becomes of a request to cordon or uncordon a host: one command to its agent, fenced by what was seen there."""

from __future__ import annotations

from backend.contract.commands import CordonHost, Expect, UncordonHost
from backend.contract.durations import duration
from backend.contract.states import HostState
from backend.contract.words import OpId
from backend.control.asking import QUICK_SECONDS, Asking, host_of
from backend.control.cannot_answer import CannotAnswer
from backend.control.exit_codes import DONE
from backend.control.requests import CordonRequest, UncordonRequest


async def cordon_host(asking: Asking, who: str, op_id: OpId, request: CordonRequest | UncordonRequest) -> str:
    """Cordon or uncordon the host; what stands now in words. Raises CannotAnswer."""
    view = host_of(asking.state, request.host)
    seen = view.revision if request.revision is None else request.revision
    expect = Expect(agent_epoch=view.agent_epoch or None, revision=seen)
    if isinstance(request, UncordonRequest):
        if view.entities.cordon is None and view.state is HostState.LIVE:
            raise CannotAnswer(DONE, f"nothing to do: {view.host} is not cordoned")
        await asking.ask(view.host, UncordonHost(op_id=op_id, by=who, expect=expect), QUICK_SECONDS)
        return f"{view.host} takes new shards again"
    command = CordonHost(op_id=op_id, by=who, why=request.why, seconds=request.seconds, expect=expect)
    await asking.ask(view.host, command, QUICK_SECONDS)
    lasts = "until it is uncordoned" if request.seconds is None else f"for {duration(request.seconds)}"
    return f"{view.host} is cordoned {lasts}: it takes no new shards, and what runs there runs on"
