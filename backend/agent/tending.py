"""Engines' own agents as processes of this host: looked at for whoever asks, and tended as the core decided."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Mapping

import msgspec

from backend.agent.core.state import Tend, Tended
from backend.agent.devices import cpu_device, read_gpus
from backend.contract.commands import BeginResident, EndResident, LookAtResident, MoveResidentJournal, TendResident
from backend.contract.entities import Result
from backend.contract.residents import ResidentLook
from backend.engines.driver import Driver, TendedDriver, Tender, TendingFailed, TendingRefused
from backend.failpoints import failpoint


class Tending:
    """What this agent does to engines' own agents, one thing at a time. ``tell`` gives the core an event."""

    def __init__(self, drivers: Mapping[str, Driver], tell: Callable[[Tended], None]) -> None:
        self._drivers = drivers
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, effect: Tend) -> None:
        """Do it; ``Tended`` follows."""
        task = asyncio.get_running_loop().create_task(self._tend(effect.command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def look(self, command: LookAtResident) -> ResidentLook:
        """Measure it now. Raises ValueError for an engine without an agent of its own."""
        tender = self._tender(command.engine)
        seen = await tender.look(command.processes, command.aside)
        gpus = await read_gpus()
        memory = await asyncio.to_thread(cpu_device)
        return msgspec.structs.replace(seen, devices=gpus.devices, memory_available=memory.free)

    async def _tend(self, command: TendResident) -> None:
        result = await self._done(command)
        failpoint("recovery.after_tend")
        self._tell(Tended(command.op_id, result))

    async def _done(self, command: TendResident) -> Result:
        try:
            words = await self._carry_out(self._tender(command.engine), command)
        except (TendingRefused, ValueError) as error:
            return Result(status="rejected", resource_state="absent", first_error=str(error))
        except (TendingFailed, OSError) as error:
            return Result(status="failed", resource_state="unknown", first_error=str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001  without a result nothing else could ever be done to that engine's agent
            sys.stderr.write(f"{command.engine} could not be tended:\n{traceback.format_exc()}")
            words = (
                f"a fault of ringtop's agent: {type(error).__name__}: {error}. Look at what became of it on the host"
            )
            return Result(status="failed", resource_state="unknown", first_error=words)
        return Result(status="succeeded", resource_state="present", value={"words": words})

    async def _carry_out(self, tender: Tender, command: TendResident) -> str:
        if isinstance(command, EndResident):
            return await tender.end(command.life)
        if isinstance(command, BeginResident):
            return await tender.begin()
        if isinstance(command, MoveResidentJournal):
            return await tender.move_journal(command.folder, command.aside, command.files, command.bytes)
        return await tender.restart_bridge()

    def _tender(self, engine: str) -> Tender:
        driver = self._drivers.get(engine)
        if not isinstance(driver, TendedDriver):
            known = ", ".join(name for name, each in sorted(self._drivers.items()) if isinstance(each, TendedDriver))
            raise ValueError(f"{engine!r} has no agent of its own here; those that have one: {known or 'none'}")
        return driver.tender
