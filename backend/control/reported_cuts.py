"""What this home's ledger remembers of a p4 model's cut: the loads that came to ready, and the words of those that not.

The agents forget a load when it is dismissed; the ledger keeps its plan and what every rank said.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from backend.control.ledger_views import EVERY_OPERATION, LedgerReader
from backend.control.paper import P4Bound, PaperRefused, p4_bound
from backend.control.snapshots import SnapshotUnreadable, read_snapshot
from backend.control.views import OperationView
from backend.planning.engines.p4_bounds import STORE
from backend.planning.engines.p4_reported import Cut, HeardCut, agreed, cuts_for, heard_at, heard_cut


class ReportedBound(msgspec.Struct, frozen=True, kw_only=True):
    """A bound by a cut that loads reported: the cut, which loads said so, and the other cuts that fit as well."""

    bound: P4Bound
    cut: Cut
    sources: tuple[str, ...]
    other_cuts: tuple[Cut, ...]


def heard_in(operations: Iterable[OperationView]) -> tuple[HeardCut, ...]:
    """What the operations of a ledger say of cuts, the newest first."""
    found = []
    for view in sorted(operations, key=lambda each: -each.started_unix_ms):
        if view.plan is None or view.plan.engine != "p4" or view.kind not in ("load", "reload"):
            continue
        texts = [text for step in view.steps for text in (step.words, *step.lines)]
        is_proven = view.kind == "load" and view.state == "succeeded"
        heard = heard_cut(view.plan, f"{view.kind} {view.id}, {view.state}", texts, is_proven=is_proven)
        found += [heard] if heard is not None else []
    return tuple(found)


def reported_bound(
    ledger: Path,
    snapshot: Path | None,
    *,
    architecture: str,
    n_embd: int,
    n_batch: int,
    n_ubatch: int,
    n_seq_max: int,
    speculative: bool = False,
    store: int = STORE,
) -> ReportedBound:
    """The bound of a stage of an architecture whose cut a READY once reported, here or to a host of the snapshot.

    Raises PaperRefused when nobody reported one, when the reports contradict each other, or for no legal bound.
    """
    heard = heard_in(LedgerReader(ledger, newest=EVERY_OPERATION).read().values())
    if snapshot is not None:
        try:
            heard = (*heard_at(read_snapshot(snapshot).fleet.reports), *heard)
        except SnapshotUnreadable as error:
            raise PaperRefused(str(error)) from error
    mine = cuts_for(heard, architecture, n_embd, "")
    cuts, sources = agreed(mine), tuple(each.source for each in mine)
    if not mine:
        known = sorted({f"{each.architecture} with n_embd {each.n_embd}" for each in heard})
        raise PaperRefused(
            f"no load reported a cut of {architecture} with n_embd {n_embd}; reported: {', '.join(known) or 'none'}. "
            "Give --tensors and --payload-bytes, or --fleet with a snapshot of hosts that loaded it."
        )
    if not cuts:
        raise PaperRefused(
            f"what was reported of {architecture} contradicts itself: {'; '.join(sources)}. Give --tensors and "
            "--payload-bytes of the build that will run."
        )
    bound = p4_bound(
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq_max=n_seq_max,
        tensors=cuts[0].tensors,
        payload_bytes=cuts[0].row_bytes * n_ubatch,
        speculative=speculative,
        store=store,
    )
    return ReportedBound(bound=bound, cut=cuts[0], sources=sources, other_cuts=cuts[1:])
