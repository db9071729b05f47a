"""Themes from TOML files: one style per name that render/ uses. A bad file is listed, and never stops the console."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

from rich.console import Console
from rich.errors import StyleSyntaxError
from rich.style import Style
from textual.color import ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

STYLE_NAMES = frozenset(
    {
        *("plain", "quiet", "unknown", "old", "note", "name", "value", "head", "title", "key", "alarm", "danger"),
        *("header", "header.warn", "header.alarm", "context", "banner", "footer"),
        *("rule", "rule.focus", "rule.title", "rule.title.focus", "cursor", "cursor.idle"),
        *("message", "message.warn", "message.alarm", "choice", "choice.focus", "choice.off"),
        *("state.ready", "state.quiet", "state.busy", "state.warn", "state.alarm"),
    }
)
"""Every style name. One that a theme leaves out looks like the part before its last dot, at last like ``plain``."""

DEFAULT_THEME = "night"
PLAIN_THEME = "plain"
"""For terminals without colours of ours: it has only theirs, and says everything without any as well."""


@dataclass(frozen=True, slots=True)
class Palette:
    """One loaded theme: what the framework needs for its own widgets, and our styles by name."""

    name: str
    framework: Theme
    styles: dict[str, Style] = field(default_factory=dict)

    def style(self, name: str) -> Style:
        """The style of this name, or of the nearest name that the theme has."""
        while name not in self.styles and "." in name:
            name = name.rpartition(".")[0]
        return self.styles.get(name) or self.styles.get("plain") or Style.null()


def bare_palette() -> Palette:
    """What is left when no theme could be read: the terminal's own colours, every style plain but the cursor."""
    own = "ansi_default"
    variables = dict(BUILTIN_THEMES["ansi-dark"].variables)
    framework = Theme(
        name="bare", primary="ansi_blue", ansi=True, background=own, foreground=own, surface=own, variables=variables
    )
    return Palette("bare", framework, {"cursor": Style(reverse=True), "alarm": Style(bold=True)})


def theme_folder() -> Path:
    """Where the themes are: inside the installed package, else in the checkout beside it."""
    package = Path(__file__).parent
    installed = package / "_themes"
    return installed if installed.is_dir() else package.parent / "themes"


def read_palette(path: Path) -> Palette:
    """One theme from its file. Raises ValueError with what is wrong, and where."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise ValueError(f"{path.name} cannot be read as TOML: {problem}") from problem
    colours, styles = raw.get("colours", {}), raw.get("styles", {})
    if not isinstance(colours, dict) or not isinstance(styles, dict):
        raise ValueError(f"{path.name}: colours and styles must be tables of names and texts")
    return Palette(path.stem, _framework_theme(path, colours), _styles(path, styles))


def _framework_theme(path: Path, colours: dict[str, object]) -> Theme:
    known = {each.name for each in fields(Theme)} - {"name"}
    if strange := sorted(set(colours) - known):
        raise ValueError(f"{path.name}: there is no colour {', '.join(strange)}; known: {', '.join(sorted(known))}")
    if "primary" not in colours:
        raise ValueError(f"{path.name}: colours must name primary")
    if colours.get("ansi"):  # the framework's own style sheet wants these of every such theme (textual 8.2.8)
        given = colours.get("variables", {})
        colours = {
            **colours,
            "variables": {**BUILTIN_THEMES["ansi-dark"].variables, **(given if isinstance(given, dict) else {})},
        }
    try:
        theme = Theme(name=f"ringtop-{path.stem}", **colours)  # type: ignore[arg-type]
        theme.to_color_system().generate()
    except (ColorParseError, TypeError, AttributeError, ValueError) as problem:
        raise ValueError(f"{path.name}: a colour cannot be used: {problem}") from problem
    return theme


def _styles(path: Path, styles: dict[str, object]) -> dict[str, Style]:
    out = {}
    for name, text in styles.items():
        if name not in STYLE_NAMES:
            raise ValueError(f"{path.name}: there is no style {name}; known: {', '.join(sorted(STYLE_NAMES))}")
        try:
            out[name] = Style.parse(str(text))
        except StyleSyntaxError as problem:
            raise ValueError(f"{path.name}: style {name} is {text!r}: {problem}") from problem
    return out


def load_palettes(folder: Path) -> tuple[dict[str, Palette], list[tuple[Path, str]]]:
    """Every theme of a folder: those that loaded by name, and those that did not, each with the reason."""
    loaded: dict[str, Palette] = {}
    failed: list[tuple[Path, str]] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            palette = read_palette(path)
        except ValueError as problem:
            failed.append((path, str(problem)))
        else:
            loaded[palette.name] = palette
    return loaded, failed


def has_few_colours() -> bool:
    """The terminal says that it has sixteen colours: the nearest to ours would make most states look the same."""
    return Console(force_terminal=True).color_system == "standard"


def choose_palette(name: str | None, *, plain: bool, folder: Path | None = None) -> tuple[Palette, list[str]]:
    """The theme to use, ``plain`` unless one is named, and what must be said about those that could not be."""
    loaded, failed = load_palettes(folder or theme_folder())
    words = [reason for _, reason in failed]
    default = PLAIN_THEME if plain else DEFAULT_THEME
    wanted = name or default
    if wanted in loaded:
        return loaded[wanted], words
    words.append(f"there is no theme {wanted}; there are: {', '.join(loaded) or 'none'}")
    return loaded.get(default, bare_palette()), words
