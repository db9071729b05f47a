"""The cut of a model that no header tells: worked out of what a READY reported, also one of a load that failed.

A LOADED, and the error of a stage whose bound was another, say the largest result. For given batch sizes that is one
equation for two numbers, the tensors that cross a cut and the bytes that they take for a row; divisibility leaves few
answers, mostly one. A HELLO and a ``MEMORY_PLAN`` say both themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from backend.contract.entities import Shard
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import HostReport
from backend.planning.engines.p4_bounds import FLOAT, BoundRefused, ResultShape, largest_result
from backend.planning.engines.p4_options import is_speculative

MOST_TENSORS = 64
"""More tensors than that are not looked for: two cross a cut of every model that was seen."""

_BIG = 2**40  # a payload at which the result that goes on is the larger one, whatever the batch sizes are
_SERVES = ("ready", "draining")
_PROFILE_AND_READY = re.compile(r"profile=(\d{1,20}), READY=(\d{1,20})")
_LOADED = re.compile(r"max_physical_result_bytes = (\d{1,20})(?:;[^:]{0,2000})? in LOADED; expected ([^:]{0,2000})")
_PLANNED = re.compile(r"max_physical_result_bytes = (\d{1,20})")
_PAYLOAD = re.compile(r"physical_result_payload_bytes\"?\s*[=:]\s*(\d{1,20})")
_TENSORS = re.compile(r"physical_result_tensor_count\"?\s*[=:]\s*(\d{1,20})")
_ROWS = re.compile(r"\bn_ubatch\"?\s*[=:]\s*(\d{1,20})")


class Cut(msgspec.Struct, frozen=True, order=True):
    """What crosses the cut between two stages: tensors, and the bytes of one row of all of them."""

    tensors: int
    row_bytes: int


class HeardCut(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one load: the cuts that it leaves possible, the likeliest first, and of which model it was."""

    architecture: str
    n_embd: int
    header_digest: str
    source: str
    cuts: tuple[Cut, ...]


def heard_cut(plan: Plan, source: str, texts: Iterable[str], *, is_proven: bool) -> HeardCut | None:
    """What a p4 load says of its model's cut, or None; ``texts`` are what its stages and their errors said.

    ``is_proven``: it came to ready, so that what was derived for a stage equals its READY to the byte.
    """
    model, shape = plan.model_facts, _shape(plan)
    stages = [shard for shard in plan.shards if shard.rank < plan.profile.ranks - 1]
    if plan.engine != "p4" or model is None or shape is None or not stages:
        return None
    texts = tuple(texts)
    cuts = _said_itself(texts, plan.profile.n_ubatch)
    if not cuts:
        result = int(stages[0].bound.result) if is_proven else _other_result(texts, stages)
        cuts = () if result is None else cuts_of(result, shape, model.n_embd)
    if not cuts:
        return None
    return HeardCut(
        architecture=model.architecture,
        n_embd=model.n_embd,
        header_digest=model.header_digest,
        source=source,
        cuts=cuts,
    )


def cuts_of(result: int, shape: ResultShape, n_embd: int) -> tuple[Cut, ...]:
    """Every cut whose largest result at these batch sizes is exactly this; tensors of ``n_embd`` floats first.

    None where the result is that of a step that ends, which says nothing of the cut.
    """
    found = []
    for tensors in range(1, MOST_TENSORS + 1):
        bare = msgspec.structs.replace(shape, tensors=tensors, payload_bytes=0)
        payload, rest = divmod(result - _goes_on(bare), shape.n_batch)
        row, odd = divmod(payload, shape.n_ubatch)
        if rest or odd or row < FLOAT or row % FLOAT:
            continue
        try:
            largest = largest_result(msgspec.structs.replace(bare, payload_bytes=payload))
        except BoundRefused:
            continue
        ends = largest_result(msgspec.structs.replace(bare, tensors=0))
        if largest == result and ends < result:
            found.append(Cut(tensors, row))
    return tuple(sorted(found, key=lambda cut: (cut.row_bytes != cut.tensors * n_embd * FLOAT, cut)))


def heard_at(reports: Iterable[HostReport]) -> tuple[HeardCut, ...]:
    """What the load records at these hosts say of cuts, loads that failed too, until they are dismissed."""
    found = []
    for report in reports:
        for record in report.entities.loads.values():
            plan = record.plan
            mine = [
                shard
                for shard in report.entities.shards.values()
                if (shard.replica, shard.load_generation) == (plan.replica, plan.load_generation)
            ]
            is_proven = any(shard.state in _SERVES and shard.rank < plan.profile.ranks - 1 for shard in mine)
            source = f"load record of {plan.replica}, generation {plan.load_generation}, at {report.host}"
            heard = heard_cut(plan, source, _texts(report, plan, mine), is_proven=is_proven)
            found += [heard] if heard is not None else []
    return tuple(found)


def _texts(report: HostReport, plan: Plan, shards: Sequence[Shard]) -> list[str]:
    """What was said of the ranks of a load here: their words, their ends, and the errors of their commands."""
    texts = [text for shard in shards for text in (shard.words, *_exit_texts(shard))]
    for operation in report.entities.operations.values():
        of_it = operation.subject.rpartition("/")[0] == plan.replica and operation.generation == plan.load_generation
        if of_it and operation.result is not None:
            texts.append(operation.result.first_error)
    return texts


def _exit_texts(shard: Shard) -> tuple[str, ...]:
    return () if shard.exit is None else (shard.exit.words, *shard.exit.log_tail)


def cuts_for(heard: Sequence[HeardCut], architecture: str, n_embd: int, header_digest: str) -> tuple[HeardCut, ...]:
    """What of it is about this model: the very file first, else the same architecture of the same width."""
    alike = [each for each in heard if (each.architecture, each.n_embd) == (architecture, n_embd) and architecture]
    same = [each for each in alike if each.header_digest == header_digest and header_digest]
    return tuple(same or alike)


def agreed(heard: Sequence[HeardCut]) -> tuple[Cut, ...]:
    """The cuts that every report leaves possible, the likeliest first; none when they contradict each other."""
    if not heard:
        return ()
    return tuple(cut for cut in heard[0].cuts if all(cut in each.cuts for each in heard[1:]))


def _shape(plan: Plan) -> ResultShape | None:
    profile = plan.profile
    try:
        return ResultShape(
            n_batch=profile.n_batch,
            n_ubatch=profile.n_ubatch,
            n_seq_max=profile.sequences,
            tensors=0,
            payload_bytes=0,
            speculative=is_speculative(profile),
        )
    except BoundRefused:
        return None


def _goes_on(bare: ResultShape) -> int:
    """A result that goes on without its payload, also where one that ends is larger."""
    return largest_result(msgspec.structs.replace(bare, payload_bytes=_BIG)) - _BIG * bare.n_batch


def _said_itself(texts: tuple[str, ...], n_ubatch: int) -> tuple[Cut, ...]:
    """Tensors and payload as a HELLO or a memory plan of a stage that hands on says them, in one text."""
    for text in texts:
        tensors, payload, rows = _TENSORS.search(text), _PAYLOAD.search(text), _ROWS.search(text)
        if tensors is None or payload is None or not int(tensors[1]):
            continue
        count = int(rows[1]) if rows is not None and int(rows[1]) else n_ubatch
        row, odd = divmod(int(payload[1]), count)
        if row and not odd:
            return (Cut(int(tensors[1]), row),)
    return ()


def _other_result(texts: tuple[str, ...], stages: Sequence[PlannedShard]) -> int | None:
    """The result that a READY reported in the place of what was planned for a stage that hands on."""
    planned = {int(shard.bound.result) for shard in stages}
    for text in texts:
        for wanted, said in _PROFILE_AND_READY.findall(text):
            if int(wanted) in planned:
                return int(said)
        for said, expected in _LOADED.findall(text):
            wanted = _PLANNED.search(expected)
            if wanted is not None and int(wanted[1]) in planned:
                return int(said)
    return None
