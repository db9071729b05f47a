"""The developer's own terminal settings never reach a test."""

from __future__ import annotations

import os

import pytest

for _name in ("NO_COLOR", "COLORTERM", "TEXTUAL", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM", "TEXTUAL_FPS"):
    os.environ.pop(_name, None)  # some of them are read when textual is imported


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLORTERM", "LC_ALL"):
        monkeypatch.delenv(name, raising=False)
