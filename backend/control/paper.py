"""What can be said without asking any agent: the catalog checked, a plan on a snapshot, a bound, the list of guards."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backend.contract.findings import Finding
from backend.contract.plans import Plan, Profile, Term
from backend.control.snapshots import SnapshotUnreadable, plan_offline, read_snapshot
from backend.planning.catalog import CatalogError, ModelEntry, UnknownModel, fingerprint, read_catalog, with_geometry
from backend.planning.engines import rules
from backend.planning.engines.p4_bounds import (
    FLOAT,
    STORE,
    BoundRefused,
    FittingPair,
    ResultShape,
    derivation,
    fitting_pairs,
)
from backend.planning.guards import GUARDS
from backend.versions import RINGTOP_VERSION


class PaperRefused(ValueError):
    """Nothing can be said of this; the message says what is wrong and what to do."""


class ProfileOnPaper(msgspec.Struct, frozen=True, kw_only=True):
    """One profile of the catalog, with everything about it that no agent is needed for."""

    name: str
    fingerprint: str
    profile: Profile
    findings: tuple[Finding, ...]


class ModelOnPaper(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalog. ``trouble`` is why it cannot be used, or empty; ``idle_seconds`` is 0 without one."""

    name: str
    path: str
    engine: str
    aliases: tuple[str, ...]
    geometry: dict[str, int | str]
    mode: str
    idle_seconds: int
    desired: int
    trouble: str
    profiles: tuple[ProfileOnPaper, ...]


class P4Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The largest physical result of a p4 stage, what it is made of, and the batch sizes that fit the store."""

    max_physical_result_bytes: int
    store_bytes: int
    fits: bool
    terms: tuple[Term, ...]
    fitting_pairs: tuple[FittingPair, ...]


class GuardOnPaper(msgspec.Struct, frozen=True, kw_only=True):
    """One guard as people read it; see ``planning.guards.situation.Guard``."""

    id: str
    severity: str
    step: str
    prevents: str
    remedy: str
    source: str
    drift: str


def catalog_on_paper(path: Path) -> tuple[ModelOnPaper, ...]:
    """Every model of a catalog file, each profile with what its engine's rules say of it. Raises PaperRefused."""
    try:
        catalog = read_catalog(path)
    except CatalogError as error:
        raise PaperRefused(str(error)) from error
    return tuple(_model(entry) for entry in catalog.models.values())


def plan_on_paper(snapshot: Path, catalog: Path, target: str, hosts: tuple[str, ...] = ()) -> Plan:
    """The plan that a saved snapshot and a catalog file give. Raises PaperRefused."""
    try:
        return plan_offline(read_snapshot(snapshot), read_catalog(catalog), target, hosts, RINGTOP_VERSION)
    except (SnapshotUnreadable, CatalogError) as error:
        raise PaperRefused(str(error)) from error
    except UnknownModel as error:
        raise PaperRefused(str(error.args[0])) from error


def p4_bound(
    *,
    n_batch: int,
    n_ubatch: int,
    n_seq_max: int,
    tensors: int,
    n_embd: int | None = None,
    payload_bytes: int | None = None,
    speculative: bool = False,
    store: int = STORE,
) -> P4Bound:
    """The bound of one stage; its payload by ``n_embd`` (tensors × n_ubatch × n_embd × 4) or as it is given.

    Raises PaperRefused outside the engine's limits and for a result beyond 2^64-1.
    """
    if n_embd is not None:
        payload_bytes = tensors * n_ubatch * n_embd * FLOAT
    try:
        shape = ResultShape(
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            tensors=tensors,
            payload_bytes=payload_bytes or 0,
            speculative=speculative,
        )
        tree = derivation(shape)
    except BoundRefused as error:
        raise PaperRefused(str(error)) from error
    return P4Bound(
        max_physical_result_bytes=tree.value,
        store_bytes=store,
        fits=tree.value <= store,
        terms=tree.terms,
        fitting_pairs=fitting_pairs(shape, store),
    )


def guards_on_paper() -> tuple[GuardOnPaper, ...]:
    """Every guard, in the order in which findings are shown."""
    return tuple(
        GuardOnPaper(
            id=guard.id,
            severity=guard.severity,
            step=guard.step,
            prevents=guard.prevents,
            remedy=guard.remedy,
            source=guard.source,
            drift=guard.drift,
        )
        for guard in GUARDS
    )


def _model(entry: ModelEntry) -> ModelOnPaper:
    return ModelOnPaper(
        name=entry.name,
        path=entry.path,
        engine=entry.engine,
        aliases=entry.aliases,
        geometry=entry.geometry,
        mode=entry.scaling.mode,
        idle_seconds=entry.scaling.idle_seconds,
        desired=entry.scaling.desired,
        trouble=entry.trouble,
        profiles=tuple(
            ProfileOnPaper(
                name=name, fingerprint=fingerprint(profile), profile=profile, findings=_findings(entry, profile)
            )
            for name, profile in entry.profiles.items()
        ),
    )


def _findings(entry: ModelEntry, profile: Profile) -> tuple[Finding, ...]:
    """What the engine's rules say of a shape before any header is read, with the geometry where the catalog has it."""
    if entry.trouble:
        return ()
    engine = rules(entry.engine)
    model = with_geometry(None, entry) if "n_layer" in entry.geometry else None
    return (*engine.check_shape(profile, model), *engine.check_options(profile))
