"""A fleet on paper: the reports of all hosts and the headers of the catalog's models, for plans without any agent."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backend.contract.models import ModelFacts
from backend.contract.plans import Plan
from backend.contract.words import HostId, UnixMs
from backend.planning.catalog import Catalog
from backend.planning.fleet import FleetFacts
from backend.planning.plan import plan

FORMAT = 1


class SnapshotUnreadable(ValueError):
    """A file that is no snapshot, or one of a newer ringtop; the message names the file and the reason."""


class ModelRead(msgspec.Struct, frozen=True):
    """A model's header as one host read it, or why none could. ``host`` is empty then."""

    facts: ModelFacts | None
    host: str
    words: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan needs of a fleet at one moment. ``models`` is by the catalog's path of each model."""

    format: int = FORMAT
    ringtop: str
    context: str
    taken_unix_ms: UnixMs
    fleet: FleetFacts
    models: dict[str, ModelRead] = {}
    generation_floor: int = 0


class OfflineRequest(msgspec.Struct, frozen=True):
    """What is asked for: ``MODEL[:PROFILE]`` and hosts that narrow the choice."""

    target: str
    hosts: tuple[str, ...] = ()


def read_snapshot(path: Path) -> Snapshot:
    """A snapshot that was saved. Raises SnapshotUnreadable."""
    try:
        snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise SnapshotUnreadable(f"{path}: is no snapshot of ringtop: {error}") from error
    if snapshot.format != FORMAT:
        raise SnapshotUnreadable(
            f"{path}: is of format {snapshot.format}, and this ringtop reads {FORMAT}. Take it again with this one."
        )
    return snapshot


def plan_offline(snapshot: Snapshot, catalog: Catalog, target: str, hosts: tuple[str, ...], version: str) -> Plan:
    """The plan as it would have been made at the moment of the snapshot. Raises UnknownModel."""
    request = OfflineRequest(target, hosts)
    entry, _, _ = catalog.resolve(target)
    known = snapshot.models.get(entry.path)
    read = known or ModelRead(None, "", f"the snapshot has no header of {entry.path}; take it with this catalog")
    return plan(
        catalog,
        snapshot.fleet,
        request,
        model=read.facts,
        now_unix_ms=snapshot.taken_unix_ms,
        model_words=read.words,
        model_host=HostId(read.host) if read.host else None,
        generation_floor=snapshot.generation_floor,
        version=version,
    )
