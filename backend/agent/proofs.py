"""The proofs that end a hold, each its own: no listener on the ports, no process left, no device that lists one.

Every one of them waits for as long as it takes. A hold that is never proven stays, and says what it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from backend.agent import ports
from backend.agent.descriptors import OUT_OF_DESCRIPTORS
from backend.agent.devices import GpuReading, read_gpus
from backend.agent.process_identity import SeenProcess, group_members, see_process
from backend.contract.entities import ProcessIdentity
from backend.contract.words import Port
from backend.planning.fleet import is_of_a_driver

FIRST_LOOK_SECONDS = 0.02
SLOWEST_LOOK_SECONDS = 1.0
"""A look at ports and processes takes milliseconds; one that goes on for minutes must not cost a processor."""
DRIVER_LOOK_SECONDS = 0.5
"""A look at the GPU drivers starts a process."""
MAIN_MEMORY = "CPU"


async def ports_are_free(wanted: Sequence[Port]) -> None:
    """Return once nothing listens on any of these ports."""
    if not wanted:
        return
    async for _ in _looks(FIRST_LOOK_SECONDS):
        with _without_descriptors():
            if not ports.listening_ports(min(wanted), max(wanted)).intersection(wanted):
                return


async def processes_are_gone(
    identity: ProcessIdentity | None, members: Callable[[ProcessIdentity], Sequence[SeenProcess]] = group_members
) -> dict[int, int]:
    """Return once no process of the run is left, with the pids and starts that it was seen to have.

    ``members`` says who belongs to it: its group, session and descendants, as a shim starts an engine.
    """
    known = {} if identity is None else {identity.pid: identity.start_ticks}
    if identity is None:
        return known
    async for _ in _looks(FIRST_LOOK_SECONDS):
        with _without_descriptors():
            left = members(identity)
            known |= {member.pid: member.start_ticks for member in left}
            if not left:
                return known
    return known


async def device_is_released(
    identity: ProcessIdentity | None,
    device: str,
    read: Callable[[], Awaitable[GpuReading]] = read_gpus,
    members: Callable[[ProcessIdentity], Sequence[SeenProcess]] = group_members,
) -> None:
    """Return once the run's processes are gone and, of a GPU, its driver lists none of them as an owner.

    A driver that does not answer, or that lost the device, proves nothing. One that names no owners at all, as AMD's,
    leaves the empty group as the proof; so does a device that only an engine's list names, with no owner at any driver.
    """
    known = await processes_are_gone(identity, members)
    if device == MAIN_MEMORY:
        return
    async for _ in _looks(DRIVER_LOOK_SECONDS):
        if releases(await read(), device, known):
            return


def releases(reading: GpuReading, device: str, known: dict[int, int]) -> bool:
    """Whether the driver has the device and lists none of these processes. A pid with another start is a stranger's."""
    uuids = [each.uuid for each in reading.devices if each.name == device or not is_of_a_driver(device)]
    if not reading.answered or (is_of_a_driver(device) and not uuids):
        return False
    owners = (pid for uuid in uuids for pid in reading.owners.get(uuid, {}))
    return not any(pid in known and not _is_another(pid, known[pid]) for pid in owners)


def _is_another(pid: int, start_ticks: int) -> bool:
    seen = see_process(pid)
    return seen is not None and seen.start_ticks != start_ticks


@contextlib.contextmanager
def _without_descriptors() -> Iterator[None]:
    """A look that could not be made for want of a descriptor proves nothing; the next one may."""
    try:
        yield
    except OSError as error:
        if error.errno not in OUT_OF_DESCRIPTORS:
            raise


async def _looks(first: float) -> AsyncIterator[None]:
    pause = first
    while True:
        yield
        await asyncio.sleep(pause)
        pause = min(2 * pause, SLOWEST_LOOK_SECONDS)
