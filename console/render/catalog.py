"""The models of the catalog, one row per profile."""

from __future__ import annotations

from backend.api import FleetState
from console.render.cells import Column, Row, Table, cell, right
from console.render.values import number

COLUMNS = (
    Column("MODEL"),
    Column("PROFILE"),
    Column("ENGINE", drop=3),
    Column("RANKS", "right"),
    Column("DEVICE", drop=1),
    Column("CONTEXT", "right", drop=2),
    Column("HOSTS", flex=True, least=8),
)


def choice_table(state: FleetState) -> Table:
    """Every model with every profile, under the key ``model:profile`` that a plan is asked for with."""
    rows = tuple(
        Row(
            f"{model.name}:{name}",
            (
                cell(model.name, "name"),
                cell(name),
                cell(model.engine, "note"),
                right(profile.ranks),
                cell(profile.device),
                right(number(profile.context)),
                cell(" ".join(profile.hosts) or "any", "note"),
            ),
        )
        for _, model in sorted(state.models.items())
        for name, profile in sorted(model.profiles.items())
    )
    return Table(COLUMNS, rows, f"The catalog names no model. {state.catalog_words}".rstrip())
