"""The models of the catalog, one row per profile."""

from __future__ import annotations

from backend.api import FleetState, ModelOnPaper, Profile, ProfileOnPaper
from console.render.cells import Column, Line, Row, Table, cell, line, right, wrapped
from console.render.values import duration, number, plural, size

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


def check_lines(models: tuple[ModelOnPaper, ...], width: int) -> list[Line]:
    """Every model and profile with its verdict, and what speaks against those that cannot be used."""
    out: list[Line] = []
    for model in models:
        if model.trouble:
            out.append(line(cell(" refuse  ", "alarm"), cell(model.name, "name")))
            out += wrapped(model.trouble, width, 9)
            continue
        for profile in model.profiles:
            refused = any(finding.severity != "warn" for finding in profile.findings)
            word = cell(" refuse  ", "alarm") if refused else cell(" ok      ", "state.ready")
            out.append(line(word, cell(f"{model.name}:{profile.name}", "name"), f"  {profile.fingerprint[:8]}"))
            for finding in profile.findings:
                out += wrapped(
                    f"{finding.severity} {finding.id}: {finding.found}; expected {finding.expected}. {finding.remedy}",
                    width,
                    9,
                )
    return out or wrapped("The catalog names no model.", width, 1)


def model_lines(model: ModelOnPaper, width: int) -> list[Line]:
    """One model with all that the catalog says of it."""
    aliases = f"  also {', '.join(model.aliases)}" if model.aliases else ""
    out = [line(cell(f" {model.name}", "name"), f"  {model.engine}  {model.path}{aliases}")]
    if model.trouble:
        out += wrapped(model.trouble, width, 3, "alarm")
    if model.mode == "on_demand":
        out += wrapped(
            f"on demand, at least {model.desired}, idle for {duration(model.idle_seconds)}", width, 3, "note"
        )
    if model.geometry:
        out += wrapped(f"geometry {', '.join(f'{k} {v}' for k, v in model.geometry.items())}", width, 3, "note")
    for profile in model.profiles:
        out.append(line("   ", cell(profile.name, "name"), f"  fingerprint {profile.fingerprint[:8]}"))
        out += wrapped(_shape(profile), width, 5)
    return out


def _shape(on_paper: ProfileOnPaper) -> str:
    profile: Profile = on_paper.profile
    where = " ".join(profile.hosts) or (f"pool {profile.pool}" if profile.pool else "any host")
    parts = [
        f"{plural(profile.ranks, 'rank')} of {plural(profile.devices, 'device')} {profile.device} on {where}",
        f"context {number(profile.context)}",
        f"{plural(profile.sequences, 'sequence')}",
        f"batch {profile.n_batch} by {profile.n_ubatch}",
    ]
    if profile.split:
        parts.append(f"split {'+'.join(map(str, profile.split))}")
    if profile.ranks_per_host:
        parts.append(f"at most {profile.ranks_per_host} per host")
    if profile.fabric:
        parts.append(f"fabric {profile.fabric}")
    if profile.memory:
        parts.append(f"at least {size(profile.memory)} each")
    if profile.cpu_cores:
        parts.append(f"{plural(profile.cpu_cores, 'core')} each")
    if profile.power:
        parts.append(f"{profile.power} W each")
    parts += [f"{name} = {value}" for name, value in sorted(profile.options.items())]
    return ", ".join(parts)
