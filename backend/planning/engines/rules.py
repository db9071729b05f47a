"""What planning asks of an engine: roles, shapes, bounds, phases and order. One object per engine; all of it pure."""

from __future__ import annotations

from typing import Protocol

import msgspec

from backend.contract.findings import Finding
from backend.contract.models import ModelFacts
from backend.contract.plans import Bound, PhaseBound, Plan, Profile
from backend.contract.words import Bytes


class Seat(msgspec.Struct, frozen=True):
    """One rank's place before it has a host. ``takes_device`` is False for a rank that computes nothing itself."""

    rank: int
    role: str
    layers: tuple[int, int] | None
    holds_output: bool
    takes_device: bool
    ports: int


class EngineRules(Protocol):
    """One engine, as the plan sees it."""

    engine: str
    content_type: str

    def seats(self, profile: Profile, model: ModelFacts | None) -> tuple[Seat, ...]:
        """Every rank with its role and layers; layers are None while the model is unknown or the split is wrong."""

    def check_shape(self, profile: Profile, model: ModelFacts | None) -> tuple[Finding, ...]:
        """Whether ranks, split and model go together."""

    def check_options(self, profile: Profile) -> tuple[Finding, ...]:
        """Whether every option of the profile is on the allowlist, with a value in its range."""

    def check_model(self, profile: Profile, model: ModelFacts) -> tuple[Finding, ...]:
        """What is known about this model on this engine: architectures never tried, contexts beyond training."""

    def check_cpu(self, profile: Profile, model: ModelFacts, missing: tuple[str, ...]) -> str:
        """Why a CPU without the features ``missing`` cannot run this model, or nothing."""

    def bounds(self, model: ModelFacts, profile: Profile, counts: tuple[int, ...]) -> tuple[Bound, ...]:
        """The bound of every rank, in rank order. ``counts`` are the layers of each rank that holds any."""

    def mapped_bytes(self, model: ModelFacts, profile: Profile) -> int:
        """Bytes of the model file that rank 0 maps beyond its bound while it loads."""

    def phases(self, profile: Profile, bounds: tuple[Bound, ...]) -> tuple[PhaseBound, ...]:
        """The longest that each phase of a load may take."""

    def start_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Ranks in waves: those of one wave start together, the next wave when the wave before is up."""

    def stop_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Ranks in waves, as they are stopped."""


def unknown_bounds(ranks: int) -> tuple[Bound, ...]:
    """Bounds of a model that nobody could read: nothing derived, nothing compared."""
    zero = Bytes(0)
    return (Bound(zero, zero, zero, zero, zero, False, ()),) * ranks
