"""The engines that can be planned, each a pure set of rules."""

from __future__ import annotations

from backend.planning.engines.llamacpp import LLAMACPP
from backend.planning.engines.p4 import P4_RULES
from backend.planning.engines.rules import EngineRules, Seat
from backend.planning.engines.sglang import SGLANG
from backend.planning.engines.vllm import VLLM

_ALL: tuple[EngineRules, ...] = (LLAMACPP, P4_RULES, VLLM, SGLANG)
RULES: dict[str, EngineRules] = {rules.engine: rules for rules in _ALL}


class UnknownEngine(ValueError):
    """A catalog or plan names an engine that has no rules here; the message names those that have."""


def rules(engine: str) -> EngineRules:
    """The rules of one engine. Raises UnknownEngine."""
    try:
        return RULES[engine]
    except KeyError:
        known = ", ".join(sorted(RULES))
        raise UnknownEngine(f"engine {engine!r} cannot be planned here; engines with rules: {known}") from None


__all__ = ["RULES", "EngineRules", "Seat", "UnknownEngine", "rules"]
