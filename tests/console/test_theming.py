"""Themes are data: a good one loads, a bad one is named, and neither ends the console."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import console
from console.theming import STYLE_NAMES, bare_palette, choose_palette, has_few_colours, load_palettes, theme_folder
from tests.console import worlds as w
from tests.console.driving import running
from tests.console.stand_in import StandInDoor


def test_every_theme_that_is_shipped_loads() -> None:
    loaded, failed = load_palettes(theme_folder())
    assert set(loaded) >= {"night", "plain"}
    assert failed == []


def test_every_style_that_is_drawn_has_a_name_in_the_registry() -> None:
    folder = Path(console.__file__).parent
    text = "\n".join(
        path.read_text() for part in ("render", "screens", "widgets") for path in (folder / part).glob("*.py")
    )
    used = set(re.findall(r'(?:cell|right|wrapped)\((?:[^()]|\([^()]*\))*?"([a-z]+(?:\.[a-z]+)+)"', text))
    assert used
    assert used <= STYLE_NAMES


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[colours\n", "cannot be read as TOML"),
        (f"x = {'9' * 5_000}\n", "cannot be read as TOML"),
        (f"x = {'[' * 5_000}\n", "cannot be read as TOML"),
        ("[colours]\ndark = true\n", "must name primary"),
        ('[colours]\nprimary = "no such colour"\n', "a colour cannot be used"),
        ('[colours]\nprimary = "#fff"\nshine = "#fff"\n', "there is no colour shine"),
        ('[colours]\nprimary = "#fff"\n[styles]\nshine = "bold"\n', "there is no style shine"),
        ('[colours]\nprimary = "#fff"\n[styles]\nplain = "loud please"\n', "style plain is 'loud please'"),
        ("colours = 3\n", "must be tables"),
    ],
)
def test_a_bad_theme_is_named_with_its_reason_and_the_default_is_used(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    (tmp_path / "night.toml").write_text((theme_folder() / "night.toml").read_text())
    palette, words = choose_palette("bad", plain=False, folder=tmp_path)
    assert palette.name == "night"
    assert reason in words[0]
    assert "there is no theme bad" in words[1]


@pytest.mark.parametrize(
    ("term", "colorterm", "few"),
    [("xterm-256color", "", False), ("xterm", "truecolor", False), ("xterm-16color", "", True), ("linux", "", True)],
)
def test_a_terminal_of_sixteen_colours_gets_the_theme_that_has_only_its_own(
    monkeypatch: pytest.MonkeyPatch, term: str, colorterm: str, few: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLORTERM", colorterm)
    assert has_few_colours() is few
    assert choose_palette(None, plain=few)[0].name == ("plain" if few else "night")
    assert choose_palette("night", plain=few)[0].name == "night"


def test_without_any_theme_there_is_still_one(tmp_path: Path) -> None:
    palette, words = choose_palette(None, plain=False, folder=tmp_path)
    assert palette.name == bare_palette().name
    assert words == ["there is no theme night; there are: none"]


@pytest.mark.parametrize("theme", ["night", "plain", None])
async def test_the_console_runs_in_every_theme(
    theme: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if theme is None:
        monkeypatch.setattr("console.theming.theme_folder", lambda: tmp_path)
    async with running(StandInDoor(w.busy_fleet()), theme=theme) as driver:
        await driver.see("step37-1")
        await driver.press("D")
        await driver.press("escape", "t")
        await driver.press("escape")


async def test_without_colour_no_colour_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(StandInDoor(w.busy_fleet()), theme="plain") as driver:
        await driver.see("step37-1")
        assert driver.app.no_color
        assert [type(each).__name__ for each in driver.app.get_line_filters()] == ["NoColor"]


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_word_of_the_default_theme_can_be_read_under_the_cursor_too() -> None:
    palette = load_palettes(theme_folder())[0]["night"]
    grounds = [palette.framework.background, palette.framework.surface, palette.style("cursor").bgcolor.triplet.hex]  # type: ignore[union-attr]
    for name, style in palette.styles.items():
        if style.color is None or style.color.triplet is None or name == "rule":
            continue
        own = (
            [style.bgcolor.triplet.hex] if style.bgcolor is not None and style.bgcolor.triplet is not None else grounds
        )
        for ground in own:
            light, dark = sorted((_luminance(style.color.triplet.hex), _luminance(str(ground))), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.0, f"{name} on {ground}"
