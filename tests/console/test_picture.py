"""The screen as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.picture import self_contained, write_picture

SVG = """<svg><style>
@font-face { font-family: "X"; src: url("https://fonts.example/x.woff2"); }
.matrix { font-family: X, monospace; font-size: 20px; }
</style><text>ringtop</text></svg>"""


def test_a_picture_needs_nothing_from_elsewhere() -> None:
    alone = self_contained(SVG)
    assert "http" not in alone
    assert "font-face" not in alone
    assert "font-family: monospace; font-size: 20px;" in alone
    assert ">ringtop</text>" in alone


def test_a_picture_never_takes_the_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "screen.svg"
    write_picture(SVG, path)
    with pytest.raises(FileExistsError):
        write_picture("other", path)
    assert "ringtop" in path.read_text()
