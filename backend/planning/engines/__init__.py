"""The engines that can be planned, each a pure set of rules."""

from __future__ import annotations

from backend.planning.engines.llamacpp import LLAMACPP
from backend.planning.engines.rules import EngineRules, Seat

RULES: dict[str, EngineRules] = {LLAMACPP.engine: LLAMACPP}


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
