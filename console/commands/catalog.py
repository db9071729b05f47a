"""``ringtop catalog``: what may be loaded, read from the file alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.commands.door import chosen_context
from console.commands.exits import DONE, REFUSED, no_such, refused
from console.commands.output import print_json, print_lines, screen_width
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import ModelOnPaper

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))


@click.group(short_help="Check or show what may be loaded.")
def catalog() -> None:
    """Check or show what may be loaded. Reads the file alone and asks no host."""


@catalog.command(short_help="Whether the catalog can be used, and all of it.")
@_FILE
@fleet_command
def check(settings: Settings, file: Path | None) -> int:
    """Check the catalog of the context, or FILE: keys, types, names, shapes and options.

    Exits with 2 when the file cannot be read, a model cannot be used, or a profile would be refused.
    """
    models = _read(settings, file)
    troubled = [
        model for model in models if model.trouble or any(_is_refused(each.findings) for each in model.profiles)
    ]
    if settings.as_json:
        print_json({"ok": not troubled, "models": models})
    else:
        from console.render.catalog import check_lines

        print_lines(check_lines(models, screen_width()))
    return REFUSED if troubled else DONE


@catalog.command(short_help="Every model and profile with all that they say.")
@click.argument("model", required=False, metavar="[MODEL]")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="This file, not the context's.")
@fleet_command
def show(settings: Settings, model: str | None, file: Path | None) -> int:
    """Show every model, or MODEL by its name or alias, with profiles, fingerprints and scaling."""
    models = _read(settings, file)
    if model is not None:
        chosen = [each for each in models if model == each.name or model in each.aliases]
        if not chosen:
            raise no_such("model", model, (each.name for each in models))
        models = tuple(chosen)
    if settings.as_json:
        print_json(models)
    else:
        from console.render.catalog import model_lines

        print_lines(line for each in models for line in model_lines(each, screen_width()))
    return DONE


def _read(settings: Settings, file: Path | None) -> tuple[ModelOnPaper, ...]:
    from backend.api import PaperRefused, catalog_on_paper

    try:
        return catalog_on_paper(file or chosen_context(settings).catalog_path)
    except PaperRefused as error:
        raise refused(str(error)) from error


def _is_refused(findings: tuple[object, ...]) -> bool:
    return any(getattr(finding, "severity", "") != "warn" for finding in findings)
