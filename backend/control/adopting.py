"""Whether an adoption document may be acted on: what of it is stopped, or why nothing is. Pure."""

from __future__ import annotations

from typing import Any

from backend.contract.naming import few_of, said_by
from backend.contract.words import counted
from backend.control.adoption_document import AdoptionDocument, Stoppable, adoption_digest, what_moved
from backend.control.cannot_answer import CannotAnswer
from backend.control.confirming import check_confirmed
from backend.control.exit_codes import DONE, REFUSED, UNREACHABLE
from backend.control.operations.adopt import IDENTITIES
from backend.control.requests import StartAdopt
from backend.control.views import Target

_SHOWN = 6


def chosen_shards(request: StartAdopt, now: AdoptionDocument) -> tuple[Stoppable, ...]:
    """The shards to stop, as they are now. Raises CannotAnswer when the document is another one or no longer holds."""
    document = request.document
    check_confirmed(
        request.confirmed, document.digest, adoption_digest(document), what="document", again="Make it again"
    )
    if document.context != now.context:
        raise CannotAnswer(
            REFUSED, f"the document is of context {document.context}, this is {now.context}. Use --context."
        )
    if not request.only:
        _check_holds(document, now)
    chosen = (_only(request, now),) if request.only else now.stoppable
    if not chosen:
        raise CannotAnswer(DONE, "nothing to do: the document names nothing to stop")
    if now.silent and not request.despite_silence:
        raise CannotAnswer(
            UNREACHABLE,
            f"{now.heard_words}, so that nobody knows what stands there; nothing was stopped. {said_by(now.silent)}. "
            "Bring it back, or stop them despite the silence.",
        )
    return chosen


def _check_holds(document: AdoptionDocument, now: AdoptionDocument) -> None:
    moved = what_moved(document, now)
    if moved:
        more = f"; and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
        raise CannotAnswer(
            REFUSED,
            f"the document no longer holds, {counted(len(moved), 'fact')} moved: {'; '.join(moved[:_SHOWN])}{more}. "
            "Nothing was stopped. Make it again: ringtop adopt --plan -o FILE",
        )


def _only(request: StartAdopt, now: AdoptionDocument) -> Stoppable:
    """The one shard that was chosen, which must be the same and still unwanted."""
    named = next((each for each in request.document.stoppable if each.id == request.only), None)
    if named is None:
        known = few_of([each.id for each in request.document.stoppable])
        raise CannotAnswer(REFUSED, f"the document names no shard {request.only!r} to stop; it names: {known}")
    found = next((each for each in now.stoppable if each.id == request.only), None)
    if found is None:
        raise CannotAnswer(REFUSED, f"{named.id} is no longer {_article(named.kind)}; nothing was stopped.")
    if (found.kind, found.identity) != (named.kind, named.identity):
        raise CannotAnswer(
            REFUSED,
            f"{named.id} was {_article(named.kind)} of {named.identity}, and is {_article(found.kind)} of "
            f"{found.identity} now; nothing was stopped. Look again.",
        )
    return found


def _article(kind: str) -> str:
    return "a stray" if kind == "stray" else "an unclaimed shard"


def targets_to_stop(chosen: tuple[Stoppable, ...]) -> tuple[Target, ...]:
    """The chosen shards as targets of an operation."""
    return tuple(
        Target(
            host=each.host,
            node_id=each.node_id,
            rank=each.rank,
            node_generation=each.node_generation,
            adapter_kind=each.engine,
        )
        for each in chosen
    )


def stop_options(request: StartAdopt, chosen: tuple[Stoppable, ...]) -> dict[str, Any]:
    """What the operation keeps of the decision: who each shard was, why it is unwanted, and by which document."""
    identities = {
        each.id: {
            "node_generation": int(each.node_generation),
            "pid": each.pid,
            "start_ticks": each.start_ticks,
            "nonce": each.nonce,
            "address": each.address,
            "node": each.node,
        }
        for each in chosen
    }
    why = request.why or f"{' and '.join(sorted({each.kind for each in chosen}))}, by document {request.confirmed[:8]}"
    return {
        IDENTITIES: identities,
        "digest": request.confirmed,
        "why": why,
        "reasons": {each.id: each.why for each in chosen},
    }
