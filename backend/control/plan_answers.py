"""Plans and snapshots on request: what the hosts say, the models' headers, and what a load would do."""

from __future__ import annotations

import asyncio

import msgspec

from backend.contract.commands import InspectModel
from backend.contract.models import ModelFacts
from backend.contract.naming import said_by
from backend.contract.words import HostId, OpId
from backend.control.asking import Asking
from backend.control.cannot_answer import CannotAnswer
from backend.control.catalog_reader import CatalogReader
from backend.control.contexts import Context
from backend.control.drift_answers import header_read, model_files
from backend.control.exit_codes import DONE, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.fleet_facts import fleet_facts, highest_planned
from backend.control.reach import Reach
from backend.control.reported_cuts import heard_in
from backend.control.requests import MakePlan
from backend.control.snapshots import ModelRead, Snapshot
from backend.control.views import Answer
from backend.control.wall_clock import now_unix_ms
from backend.planning.catalog import CatalogError, UnknownModel
from backend.planning.engines import rules
from backend.planning.plan import model_hosts, plan
from backend.versions import RINGTOP_VERSION

INSPECT_SECONDS = 30.0


class PlanAnswers:
    """Makes plans and snapshots from what is known now."""

    def __init__(self, context: Context, reach: Reach, catalog: CatalogReader, asking: Asking) -> None:
        self._context = context
        self._reach = reach
        self._catalog = catalog
        self._asking = asking

    async def plan(self, op_id: OpId, request: MakePlan) -> Answer:
        """The plan that was asked for; its refusals are in the words, and make the exit code 2."""
        await self._reach.settle()
        fleet = fleet_facts(self._reach.state)
        if not fleet.reports:
            silent = said_by(dict(fleet.unreachable))
            raise CannotAnswer(UNREACHABLE, f"no agent answers, so nothing can be planned. {silent}")
        try:
            catalog = await asyncio.to_thread(self._catalog.current)
            hosts = model_hosts(catalog, fleet, request)
            entry, _, _ = catalog.resolve(request.target)
            facts, where, words = await self.inspect(op_id, hosts, entry.path)
            made = plan(
                catalog,
                fleet,
                request,
                model=facts,
                now_unix_ms=now_unix_ms(),
                model_words=words,
                model_host=where,
                generation_floor=self.highest_planned(),
                version=RINGTOP_VERSION,
                reported=heard_in(self._reach.state.operations.values()),
            )
        except (CatalogError, UnknownModel) as error:
            raise CannotAnswer(REFUSED, str(error.args[0] if error.args else error)) from error
        refusals = [finding.words for finding in made.findings if finding.is_refusal]
        code = REFUSED if refusals else DONE
        return Answer(op_id=op_id, request="MakePlan", done=True, exit_code=code, words="\n".join(refusals), plan=made)

    async def snapshot(self, op_id: OpId) -> Answer:
        """What the hosts say, and the headers of every model of the catalog that a header is read of."""
        await self._reach.settle()
        fleet = fleet_facts(self._reach.state)
        try:
            catalog = await asyncio.to_thread(self._catalog.current)
        except CatalogError as error:
            raise CannotAnswer(REFUSED, str(error)) from error
        paths = [each.path for each in catalog.models.values() if not each.trouble and rules(each.engine).reads_header]
        models: dict[str, ModelRead] = {}
        for index, path in enumerate(dict.fromkeys(paths)):
            hosts = tuple(report.host for report in fleet.reports)
            facts, host, words = await self.inspect(OpId(f"{op_id}-{index}"), hosts, path)
            models[path] = ModelRead(facts, host or "", words)
        taken = Snapshot(
            ringtop=RINGTOP_VERSION,
            context=self._context.name,
            taken_unix_ms=now_unix_ms(),
            fleet=fleet,
            models=models,
            generation_floor=self.highest_planned(),
        )
        value = {"snapshot": msgspec.to_builtins(taken)}
        return Answer(op_id=op_id, request="TakeSnapshot", done=True, value=value)

    def highest_planned(self) -> int:
        """The highest generation of any operation of this home."""
        return highest_planned(self._reach.state.operations.values())

    async def inspect(
        self, op_id: OpId, hosts: tuple[HostId, ...], path: str
    ) -> tuple[ModelFacts | None, HostId | None, str]:
        """The model's header from the first host that can read it; else why none could."""
        reasons: dict[str, str] = {}
        for host in hosts:
            try:
                command = InspectModel(op_id=OpId(f"{op_id}-inspect-{host}"), path=path)
                facts = await self._asking.ask_for(host, command, INSPECT_SECONDS, ModelFacts, "model")
                self._reach.apply(header_read(host, path, facts, now_unix_ms()))
                return facts, host, ""
            except CannotAnswer as error:
                reasons[host] = str(error).removeprefix(host).lstrip(": ")
        return None, None, said_by(reasons) or "no live host was named to read it from"

    async def check_models(self, op_id: OpId) -> str:
        """Read the model file of every running replica again where its leader read it; returns what was read."""
        wanted = model_files(self._reach.state)
        found = await asyncio.gather(*(self.inspect(OpId(f"{op_id}-{n}"), (h,), p) for n, (h, p) in enumerate(wanted)))
        failed = {
            f"{host}:{path}": words.removeprefix(f"{host}: ")
            for (host, path), (facts, _, words) in zip(wanted, found, strict=True)
            if facts is None
        }
        if failed:
            raise CannotAnswer(UNKNOWN, f"{len(failed)} of {len(wanted)} model files were not read: {said_by(failed)}")
        return f"{len(wanted)} model files were read"
