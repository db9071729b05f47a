"""``ringtop ls``: what is there, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from console.commands.door import note_silent, opened, silent_hosts, state_of
from console.commands.exits import DONE, UNREACHABLE
from console.commands.output import look_for, note, print_json, print_table
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import FleetState
    from console.render.cells import Look, Table

NEEDS_HOSTS = frozenset({"replicas", "shards", "hosts"})
"""What comes from the hosts: incomplete while one of them is silent, and the exit code says so."""


@click.command(short_help="List replicas, shards, hosts, models, operations.")
@click.argument("kind", type=click.Choice(["replicas", "shards", "hosts", "models", "operations"]))
@fleet_command
def ls(settings: Settings, kind: str) -> int:
    """List replicas, shards, hosts, models or operations.

    Exits with 4 when a host was not reached, so that the list may lack something; the list is printed all the same.
    """
    with opened(settings) as backend:
        state = state_of(backend)
    if settings.as_json:
        print_json(_facts(state, kind))
    else:
        print_table(_table(state, kind, look_for(settings)), look_for(settings))
    if kind == "models" and state.catalog_words:
        note(f"ringtop: {state.catalog_words}")
    silent = silent_hosts(state) if kind in NEEDS_HOSTS else {}
    note_silent(silent, "what runs there is not known")
    return UNREACHABLE if silent else DONE


def _facts(state: FleetState, kind: str) -> list[dict[str, Any]]:
    from console.commands import facts

    replicas = state.replicas.values()
    if kind == "replicas":
        return [facts.replica_facts(view) for view in replicas]
    if kind == "shards":
        return [{"replica": view.id, **shard} for view in replicas for shard in facts.replica_facts(view)["shards"]]
    if kind == "hosts":
        return [facts.host_facts(view) for view in state.hosts.values()]
    if kind == "models":
        return [facts.model_facts(view) for _, view in sorted(state.models.items())]
    return [facts.operation_facts(view) for _, view in sorted(state.operations.items())]


def _table(state: FleetState, kind: str, look: Look) -> Table:
    from console.render.hosts import host_table

    tables: dict[str, Callable[[FleetState, Look], Table]] = {
        "replicas": _replicas,
        "hosts": host_table,
        "shards": _all_shards,
        "models": _models,
        "operations": _operations,
    }
    return tables[kind](state, look)


def _replicas(state: FleetState, look: Look) -> Table:
    """The console's table; where it is empty, the words of a command line instead of keys."""
    from dataclasses import replace

    from console.render.replicas import replica_table

    empty = "Nothing is loaded. ringtop ls models names what can be: ringtop load MODEL:PROFILE"
    if state.hosts and len(silent_hosts(state)) == len(state.hosts):
        empty = "No host answers, so that nothing is known."
    return replace(replica_table(state, look), empty=empty)


def _all_shards(state: FleetState, look: Look) -> Table:
    """The shards of every replica under the columns that one replica's have, with the node id for the rank."""
    from console.render.cells import Column, Row, Table, cell
    from console.render.shards import COLUMNS, shard_cells

    rows = tuple(
        Row(shard.shard.node_id, (cell(shard.shard.node_id, "name"), *shard_cells(shard, look)[1:]))
        for view in state.replicas.values()
        for shard in sorted(view.shards, key=lambda each: each.shard.rank)
    )
    return Table((Column("SHARD"), *COLUMNS[1:]), rows, "No shard is known.")


def _models(state: FleetState, look: Look) -> Table:
    from console.render.cells import Column, Row, Table, cell, right

    columns = (
        Column("MODEL:PROFILE"),
        Column("ENGINE"),
        Column("RANKS", "right"),
        Column("HOSTS"),
        Column("CONTEXT", "right"),
        Column("ALIASES"),
        Column("PATH", flex=True, least=8),
    )
    rows = tuple(
        Row(
            f"{model.name}:{name}",
            (
                cell(f"{model.name}:{name}", "name"),
                cell(model.engine),
                right(profile.ranks),
                cell(" ".join(profile.hosts) or "any"),
                right(profile.context),
                cell(" ".join(model.aliases) or "-"),
                cell(model.path),
            ),
        )
        for _, model in sorted(state.models.items())
        for name, profile in sorted(model.profiles.items())
    )
    return Table(columns, rows, "The catalog names no model.")


def _operations(state: FleetState, look: Look) -> Table:
    """All operations, each with the id by which ``op show`` finds it."""
    from console.render.cells import Column, Row, Table, cell
    from console.render.operations import operation_table

    table = operation_table(state, look)
    rows = tuple(Row(row.key, (cell(row.key, "name"), *row.cells)) for row in table.rows)
    return Table((Column("OPERATION"), *table.columns), rows, "No operation was recorded here.")
