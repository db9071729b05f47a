"""Guards about the shape, its options and the model file, and about the largest result of a shard."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.findings import Finding, refuse, warn
from backend.planning.engines.p4 import P4, cut_as_geometry, is_verified, pairs_that_fit, stage_result
from backend.planning.engines.p4_reported import agreed, cuts_for
from backend.planning.fleet import HOST_MEMORY
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import BOUND, refusing, warning
from backend.planning.inventory import matching_devices

_SOURCES = 3  # reports, and cuts, that a finding names


def shape(situation: Situation) -> Iterator[Finding]:
    """Ranks against split and layers, by the engine's rules."""
    yield from situation.rules.check_shape(situation.plan.profile, situation.model)


def ranks(situation: Situation) -> Iterator[Finding]:
    """Ranks against the hosts named and the devices there."""
    profile = situation.plan.profile
    if len(situation.named) > profile.ranks:
        yield refuse(
            "ranks",
            situation.plan.replica,
            expected=f"at most {profile.ranks} hosts, from ranks = {profile.ranks}",
            found=f"{len(situation.named)} named: {', '.join(situation.named)}",
            remedy="Raise ranks, or name fewer hosts.",
        )
    for report in situation.reports:
        takes = [shard for shard in situation.shards_on(report.host) if situation.takes_device(shard)]
        names = matching_devices(report, situation.plan.engine, profile.device)
        if names and HOST_MEMORY not in names and len(takes) > len(names):
            yield refuse(
                "ranks",
                report.host,
                expected=f"at most {len(names)} ranks there, one for each of {', '.join(names)}",
                found=f"{len(takes)}: {', '.join(shard.node_id for shard in takes)}",
                remedy="Lower ranks, add hosts, or let device name more of that host's devices.",
            )


def options(situation: Situation) -> Iterator[Finding]:
    """Options against the engine's allowlist."""
    yield from situation.rules.check_options(situation.plan.profile)


def model_file(situation: Situation) -> Iterator[Finding]:
    """The model's header was read, and the file holds what it promises."""
    model, plan = situation.model, situation.plan
    if not situation.rules.reads_header:
        return
    if model is None:
        yield refuse(
            "model.unreadable",
            plan.model,
            expected=f"the header of {plan.model_path}, read by the leader's host",
            found=situation.model_words or "nobody has read it",
            remedy="Put the model file there, whole, or correct path in the catalog.",
        )
    elif not model.is_whole:
        yield refuse(
            "model.truncated",
            model.path,
            expected=f"{model.expected_bytes} bytes by its header",
            found=f"{model.file_bytes} bytes, {model.expected_bytes - model.file_bytes} short",
            remedy="Copy the file again.",
        )


def model_known(situation: Situation) -> Iterator[Finding]:
    """What the engine's rules know of this model."""
    if situation.model is not None:
        yield from situation.rules.check_model(situation.plan.profile, situation.model)


def reported(situation: Situation) -> Iterator[Finding]:
    """A cut that nobody verified, and of which an earlier load's READY said what it takes: offered, not taken."""
    model = situation.model
    if model is None or not isinstance(situation.rules, P4) or is_verified(model):
        return
    heard = cuts_for(situation.reported, model.architecture, model.n_embd, model.header_digest)
    if not heard:
        return
    cuts, sources = agreed(heard), "; ".join(each.source for each in heard[:_SOURCES])
    if not cuts:
        yield warn(
            "bound.reported",
            model.path,
            expected="reports that agree on one cut",
            found=f"{len(heard)} that contradict each other: {sources}",
            remedy="They were of other builds or other files. Load once more and read its READY.",
        )
        return
    offered, *others = (f"cut_tensors = {cut.tensors}, cut_row_bytes = {cut.row_bytes}" for cut in cuts)
    also = f" As well possible: {' or '.join(others[:_SOURCES])}; a load of another n_ubatch decides." if others else ""
    bound = stage_result(situation.plan.profile, cut_as_geometry(model, cuts[0]))
    yield warn(
        "bound.reported",
        model.path,
        expected=f"{offered}, from {sources}",
        found="neither in the catalog",
        remedy=f"Put them under [models.{situation.plan.model}.geometry] and plan again: the largest result of a stage "
        f"is then {bound} bytes.{also}",
    )


def result(situation: Situation) -> Iterator[Finding]:
    """The largest result of a shard against what may be kept of one."""
    profile = situation.plan.profile
    for shard in situation.plan.shards:
        if shard.bound.result > shard.bound.result_limit:
            yield refuse(
                "bound.result",
                f"{shard.node_id} on {shard.host}",
                expected=f"results of at most {shard.bound.result_limit} bytes",
                found=f"{shard.bound.result} bytes with n_batch = {profile.n_batch}, n_ubatch = {profile.n_ubatch}",
                remedy=_pairs(situation) or "Lower n_ubatch in the profile.",
            )


def _pairs(situation: Situation) -> str:
    """The batch sizes that would fit, largest batch first, for an engine whose result depends on both."""
    if not isinstance(situation.rules, P4) or situation.model is None:
        return ""
    pairs = sorted(pairs_that_fit(situation.plan.profile, situation.model), key=lambda pair: -pair.n_batch)
    offered = ", ".join(f"{pair.n_batch} with n_ubatch up to {pair.n_ubatch}" for pair in pairs)
    return f"These fit: n_batch {offered}." if offered else "No batch fits this store. Raise store in options."


GUARDS: tuple[Guard, ...] = (
    refusing("split.length", "a rank without layers", "One count per rank that holds any.", "the profile", shape),
    refusing("split.sum", "layers nobody holds", "Add up to the model's layers.", "the header", shape),
    refusing("split.engine", "another split than planned", "Choose another split.", "the engine's rounding", shape),
    refusing("ranks", "a rank that holds nothing", "Lower ranks, or add hosts.", "layers, hosts, devices", ranks),
    refusing("ranks.devices", "devices that nobody would use", "Raise ranks instead.", "the engine's rules", options),
    refusing(
        "ranks.parallel",
        "ranks that wait for each other for minutes without a word",
        "tensor × pipeline = ranks × devices.",
        "the profile",
        shape,
    ),
    refusing("options.unknown", "an option without effect", "Correct its name.", "the allowlist", options),
    refusing("options.refused", "a plan undone by an option", "Remove it.", "the allowlist", options),
    refusing("options.value", "an engine that exits at its start", "Give a legal value.", "the allowlist", options),
    refusing("batch.order", "a micro-batch that is cut, or refused", "n_ubatch ≤ n_batch.", "the profile", options),
    warning("batch.unbounded", "activations without a limit", "Give a chunk size.", "the profile", options),
    warning(
        "threads.spin",
        "idle stages that starve their agent",
        "Leave wait_policy out (passive).",
        "options of a p4 profile",
        options,
    ),
    refusing("model.unreadable", "a load of nothing", "Put the file there.", "the model's header", model_file),
    refusing("model.truncated", "a load that ends in the file", "Copy it again.", "size against header", model_file),
    warning(
        "model.architecture",
        "a size taken for derived that is not",
        "Read its sizes as estimates.",
        "the architectures that were tried",
        model_known,
        drift=BOUND,
    ),
    warning("context.training", "KV that no token uses", "Lower context.", "the model's header", model_known),
    warning(
        "bound.unverified",
        "a result bound that READY will not equal",
        "Give cut_tensors and cut_row_bytes as geometry.",
        "the architectures that a READY has confirmed",
        model_known,
        drift=BOUND,
    ),
    warning(
        "bound.reported",
        "a guess where an earlier READY said the number",
        "Put the numbers offered into the model's geometry.",
        "load records and ledger: what a READY reported, also of a load that failed",
        reported,
        drift=BOUND,
    ),
    refusing(
        "bound.overflow",
        "a result bound beyond 2^64-1",
        "Lower n_batch or n_ubatch.",
        "the engine's formula",
        model_known,
        drift=BOUND,
    ),
    refusing(
        "bound.result",
        "a model loaded whole, then unloaded because one result fits no store",
        "Take a pair of n_batch and n_ubatch that fits.",
        "the engine's formula",
        result,
        drift=BOUND,
    ),
)
