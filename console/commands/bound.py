"""``ringtop bound``: the largest result that an engine may return, derived before anything is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from console.commands.exits import DONE, refused
from console.commands.output import print_json, print_lines, screen_width
from console.commands.settings import Settings, fleet_command

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Size(click.ParamType[int]):
    """A number of bytes such as ``268435456``, ``256MiB`` or ``1GiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; at least 1."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,19})\s*(B|KiB|MiB|GiB|TiB|)", str(value).strip())
        if match is None or not int(match[1]):
            self.fail(f"{value!r} is no size; write a whole number and B, KiB, MiB, GiB or TiB: 256MiB", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


@click.group(short_help="Derive the largest result of an engine.")
def bound() -> None:
    """Derive the largest result of an engine, before anything is loaded."""


@bound.command(short_help="The largest physical result of a p4 stage.")
@click.option("--n-batch", required=True, type=click.IntRange(1), help="Rows of a logical batch.")
@click.option("--n-ubatch", required=True, type=click.IntRange(1), help="Rows of a micro-batch.")
@click.option("--n-seq-max", required=True, type=click.IntRange(1), help="Sequences that are served at once.")
@click.option("--tensors", type=click.IntRange(0), help="Tensors that the stage hands on; 0: the last.")
@click.option(
    "--n-embd", type=click.IntRange(1), help="Width of the model; a payload is tensors * rows * width * 4 bytes."
)
@click.option("--payload-bytes", type=click.IntRange(0), help="Or the payload as a READY reported it.")
@click.option("--reported", metavar="ARCH", help="Or both as a READY of a load of this architecture reported them.")
@click.option("--fleet", type=click.Path(path_type=Path), metavar="FILE", help="With --reported: a snapshot as well.")
@click.option("--speculative", is_flag=True, help="Decoding is speculative.")
@click.option("--store", type=Size(), default="256MiB", show_default=True, help="What one result must fit into.")
@fleet_command
def p4(
    settings: Settings,
    n_batch: int,
    n_ubatch: int,
    n_seq_max: int,
    tensors: int | None,
    n_embd: int | None,
    payload_bytes: int | None,
    reported: str | None,
    fleet: Path | None,
    store: int,
    *,
    speculative: bool,
) -> int:
    """Derive the largest physical result of a p4 stage, to the byte as its READY must report it.

    Needs no fleet. Says whether it fits the store, and which pairs of n_batch and n_ubatch do. What crosses a cut of an
    architecture is in no header: --reported takes it from the loads in this home's ledger, failed ones too.
    """
    from backend.api import PaperRefused, p4_bound

    sizes: dict[str, Any] = {
        "n_batch": n_batch,
        "n_ubatch": n_ubatch,
        "n_seq_max": n_seq_max,
        "speculative": speculative,
        "store": store,
    }
    if reported is not None:
        if tensors is not None or payload_bytes is not None or n_embd is None:
            raise refused(
                "--reported takes --n-embd, the width of the model, and neither --tensors nor --payload-bytes"
            )
        return _reported(settings, reported, n_embd, fleet, sizes)
    if tensors is None or fleet is not None:
        raise refused("give --tensors, or --reported ARCH with --n-embd (and --fleet FILE for a snapshot)")
    if tensors and (n_embd is None) == (payload_bytes is None):
        raise refused("give either --n-embd or --payload-bytes: the payload of a cut comes from one of them")
    try:
        found = p4_bound(
            **sizes,
            tensors=tensors,
            n_embd=n_embd,
            payload_bytes=payload_bytes,
        )
    except PaperRefused as error:
        raise refused(str(error)) from error
    if settings.as_json:
        print_json(found)
    else:
        from console.render.plan import bound_lines

        print_lines(bound_lines(found, screen_width()))
    return DONE


def _reported(settings: Settings, architecture: str, n_embd: int, snapshot: Path | None, sizes: dict[str, Any]) -> int:
    """The bound by a cut that loads reported, and which loads those were."""
    from backend.api import PaperRefused, reported_bound
    from console.commands.door import chosen_context

    folder = chosen_context(settings).ledger_folder
    try:
        found = reported_bound(folder, snapshot, architecture=architecture, n_embd=n_embd, **sizes)
    except PaperRefused as error:
        raise refused(str(error)) from error
    if settings.as_json:
        import msgspec

        print_json(
            {
                **msgspec.to_builtins(found.bound),
                "cut": found.cut,
                "sources": found.sources,
                "other_cuts": found.other_cuts,
            }
        )
    else:
        from console.render.plan import bound_lines, reported_lines

        width = screen_width()
        print_lines([*reported_lines(found, width), *bound_lines(found.bound, width)])
    return DONE
