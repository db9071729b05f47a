"""Why the start of a stage ends: what p4 said or did not say, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan
from backend.engines.p4.door import Answer
from backend.engines.p4.stage_words import StderrSeen

_REMEDIES = (
    ("journal is required", "Start the p4 agent with P4_EVENT_OUTBOUND_JOURNAL_DIR set to a folder of its own."),
    ("already exists", "Somebody else loaded a node of this name. Unload that one, or load another replica."),
    ("physical result mismatch", "Give READY's numbers as the model's geometry in the catalog, and plan again."),
    ("resource profile", "Lower n_batch or n_ubatch, or raise store in the profile, and plan again."),
    ("HELLO omits", "The stage binary is older than its agent. Put one release of both on every host."),
    ("capacity exhausted", "The p4 agent's journal is full. Have it moved aside, and start the agent clean."),
)


def load_refused(subject: str, answer: Answer, said: str | StderrSeen = "") -> Finding:
    """A LOAD that p4 did not carry out, in its own words, with what is known to help.

    ``said`` is what its stage wrote meanwhile, or where that went when there is none of it here.
    """
    remedy = next((words for sign, words in _REMEDIES if sign in answer.error), "")
    found = f"p4 said {answer.words}"
    if isinstance(said, str) and said:
        found += f"; on standard error: {said}"
        remedy = remedy or "The stage's own words are in found; its agent's log has the rest."
    elif isinstance(said, StderrSeen):
        remedy = remedy or f"The stage's own reason is on its standard error, {said.words}."
    remedy = remedy or "Read the p4 agent's own log."
    return refuse("load.refused", subject, expected="LOADED", found=found, remedy=remedy)


def other_release(subject: str, wanted: str, found: str) -> Finding:
    """A stage that says another release than agent.toml."""
    return refuse(
        "release.differs",
        subject,
        expected=f"{wanted}, from release of [engines.p4] in agent.toml",
        found=f"{found} in LOADED",
        remedy="The stage binary is not what agent.toml says. Install one release of agent and stage on every host.",
    )


def rank_words(unready: Mapping[int, str]) -> str:
    """Ranks that opened no session, each with its reason."""
    return "; ".join(f"rank {rank}: {words}" for rank, words in unready.items())


def sessionless(subject: str, plan: Plan, unready: Mapping[int, str], limit: float) -> Finding:
    """Stages that never said that they are ready for the session, each with what it said. ``limit`` is in seconds."""
    found = [
        f"rank {shard.rank} on {shard.host} at {plan.address_of(shard)}: {unready[shard.rank]}"
        for shard in plan.shards
        if shard.rank in unready
    ]
    return refuse(
        "session.silent",
        subject,
        expected=f"a session on every stage within {limit:g} s",
        found="; ".join(found),
        remedy="p4 says nothing when an address leads nowhere. Check that its agent advertises this address and that "
        "the head's agent reaches it.",
    )


def unanswered(subject: str, words: str) -> Finding:
    """A canary that did not come back, or was not released."""
    return refuse(
        "canary.failed",
        subject,
        expected="a canary that crosses every stage and is released",
        found=words,
        remedy="The stages are loaded and do not serve together. Read the logs of the p4 agents of this ring.",
    )
