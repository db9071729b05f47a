"""Follows ``catalog.toml``: read again when the file changed; unreadable, its reason takes the models' place."""

from __future__ import annotations

from pathlib import Path

from backend.control.views import ModelView
from backend.planning.catalog import CatalogError, read_catalog


class CatalogReader:
    """The catalog as views, and the words about it (empty when it was read)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = (0, 0, 0)
        self._read: tuple[dict[str, ModelView], str] = ({}, "")

    def read(self) -> tuple[dict[str, ModelView], str]:
        """What the file holds now; parsed only when it is another one than before."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp, self._read = stamp, self._parse()
        return self._read

    def _look(self) -> tuple[int, int, int] | None:
        try:
            about = self._path.stat()
        except OSError:
            return None  # the reason is told when it is read
        return about.st_mtime_ns, about.st_size, about.st_ino

    def _parse(self) -> tuple[dict[str, ModelView], str]:
        try:
            catalog = read_catalog(self._path)
        except CatalogError as error:
            return {}, str(error)
        views = {
            name: ModelView(
                name=name, aliases=entry.aliases, engine=entry.engine, path=entry.path, profiles=entry.profiles
            )
            for name, entry in catalog.models.items()
        }
        return views, ""
