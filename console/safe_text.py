"""Text from elsewhere, made safe to draw: what a host, an engine or a file said can never steer the terminal."""

from __future__ import annotations

import re
import unicodedata

LONGEST_BYTES = 4096
"""What one piece of text may take in UTF-8 after it was made safe; the rest is cut and marked with an ellipsis."""

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0a-\x1f\x7f-\x9f"  # C0 except tab, DEL, C1
    "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"  # soft hyphen, joiners, Arabic prefixes
    "\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # fillers that look like nothing
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero-width, line and paragraph separators, bidi
    "\ud800-\udfff"  # lone surrogates
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb"  # variation selectors change a width after the fact
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


_TWINS = str.maketrans("×…–—·’“”", 'x~--.\'""')
"""Signs of one cell that ASCII has as good a sign for: a ``?`` would say that something is not known."""


class SafeText(str):
    """Text that holds no control, invisible or reordering character. Made by ``safe_text`` and by nothing else."""

    __slots__ = ()


def _visible(match: re.Match[str]) -> str:
    return f"<{ord(match[0]):02x}>"


def safe_text(text: str, *, cells: int | None = None) -> SafeText:
    """The text with every unsafe character shown as its number, like ``<1b>``, and every tab as four blanks.

    Cut at 4096 bytes of UTF-8 and, when ``cells`` is given, at that many terminal cells; a cut ends with ``…``.
    Never parses markup: brackets stay what they are.
    """
    if len(text) > LONGEST_BYTES:  # never look at more than can be kept: a line may be megabytes long
        text = text[:LONGEST_BYTES] + "…"
    if not text.isascii() or not text.isprintable():
        text = _UNSAFE.sub(_visible, text.replace("\t", "    "))
    if len(text) * 4 > LONGEST_BYTES and len(text.encode()) > LONGEST_BYTES:
        kept = text.encode()[: LONGEST_BYTES - len("…".encode())]
        text = kept.decode(errors="ignore") + "…"
    if cells is not None:
        text = cut(text, cells)
    return SafeText(text)


def _character_width(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def width_of(text: str) -> int:
    """How many terminal cells this safe text takes."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def ascii_only(text: str) -> str:
    """Safe text with a twin, else ``?``, in every cell that a terminal without Unicode could not draw."""
    if text.isascii():
        return text
    text = text.translate(_TWINS)
    return "".join(each if each.isascii() else "?" * _character_width(each) for each in text)


def cut(text: str, cells: int, ellipsis: str = "…") -> str:
    """The text within ``cells`` terminal cells, ending with the ellipsis when something was left out."""
    if width_of(text) <= cells:
        return text
    room = cells - width_of(ellipsis)
    if room < 0:
        return ""
    if text.isascii():
        return text[:room] + ellipsis
    kept: list[str] = []
    for character in text:
        room -= _character_width(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + ellipsis
