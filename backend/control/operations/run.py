"""One operation in a process of its own: started before its first command, followed by everybody through its ledger."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from backend.contract.naming import no_such
from backend.contract.words import OpId
from backend.control.contexts import Context
from backend.control.exit_codes import REFUSED, UNKNOWN
from backend.control.ledger import ENDED, LedgerWriter, console_of, reopen
from backend.control.link_ends import LinkSettings
from backend.control.operations.adopt import adopt
from backend.control.operations.conduct import Conduct
from backend.control.operations.drain import drain
from backend.control.operations.load import load
from backend.control.operations.recover import recover
from backend.control.operations.reload import reload
from backend.control.operations.unload import unload
from backend.control.reach import Reach

_KINDS: dict[str, Callable[[Conduct], Awaitable[int]]] = {
    "load": load,
    "unload": unload,
    "drain": drain,
    "adopt": adopt,
    "reload": reload,
    "recovery": recover,
}


def run_operation(context: Context, op_id: OpId, *, lock_fd: int | None = None) -> int:
    """Run an operation to its end and return its exit code; one that has ended already returns the same again.

    ``lock_fd`` is the ledger's locked descriptor when it was inherited. Raises OwnerLives when another process runs
    it, and LedgerError for a file that is missing or damaged.
    """
    writer = reopen(context.ledger_folder, op_id, lock_fd)
    try:
        last = writer.steps[-1] if writer.steps else None
        if last is not None and last.what == ENDED:
            return last.exit_code if last.exit_code is not None else UNKNOWN
        return asyncio.run(_run(context, writer))
    finally:
        writer.close()


def outlive_the_terminal() -> None:
    """A terminal that hangs up, or a pipe that closes, changes nothing for an operation."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


async def _run(context: Context, writer: LedgerWriter) -> int:
    operation = writer.operation
    hosts = {target.host for target in operation.targets}
    hosts |= {host for host, _ in operation.options.get("reservations", [])}
    hosts |= set(operation.plan.hosts) if operation.plan is not None else set()
    hosts |= set(operation.options.get("hosts", []))
    unknown = sorted(hosts - context.hosts.keys())
    reach = Reach(
        context,
        sorted(hosts & context.hosts.keys()),
        console=console_of(operation.op_id),
        who=operation.by,
        settings=LinkSettings(tail=64),
    )
    conduct = Conduct(writer, reach)
    if unknown:
        words = f"in context {context.name} {no_such('host', unknown[0], context.hosts)}"
        if not writer.steps:
            return conduct.end(REFUSED, f"nothing was sent: {words}")
        again = f"ringtop op resume {operation.op_id}"  # what it did before stands, and is not known to be undone
        return conduct.halt(REFUSED, f"write that host into contexts.toml again, then go on with {again}: {words}")
    kind = _KINDS.get(operation.kind)
    if kind is None:
        return conduct.end(REFUSED, f"the kind {operation.kind!r} is unknown; known: {', '.join(sorted(_KINDS))}")
    links = asyncio.create_task(reach.run())
    work = asyncio.ensure_future(kind(conduct))
    try:
        await asyncio.wait({links, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            links.result()  # raises what ended the links
        return work.result()
    except Exception as error:
        conduct.step(operation.subject, "fault", f"a bug of ringtop ended this process: {error!r}")
        raise
    finally:
        links.cancel()
        await asyncio.wait({links})
