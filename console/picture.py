"""The screen as a picture: an SVG file that needs nothing from elsewhere when it is opened."""

from __future__ import annotations

import re
from pathlib import Path

_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_FONT_FAMILY = re.compile(r"font-family:\s*[^;]*;")


def self_contained(svg: str) -> str:
    """The same drawing in the viewer's own monospace font; the framework's refers to fonts on the web."""
    alone = _FONT_FAMILY.sub("font-family: monospace;", _FONT_FACE.sub("", svg))
    return alone.replace("<text ", '<text xml:space="preserve" ')


def write_picture(svg: str, path: Path) -> None:
    """Write a new file; never over one that exists. Raises OSError."""
    with open(path, "x", encoding="utf-8") as file:
        file.write(self_contained(svg))
