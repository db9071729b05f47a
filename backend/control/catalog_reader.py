"""Follows ``catalog.toml``: read again when the file changed; unreadable, the last one that could be read stays."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from backend.control.views import ModelView
from backend.planning.catalog import Catalog, CatalogError, fingerprint, read_catalog


class CatalogReader:
    """The catalog for planning and as views, with the words about it (empty when all of it is in use).

    May be asked from several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = (0, 0, 0)
        self._good: Catalog | None = None
        self._error: CatalogError | None = None
        self._views: dict[str, ModelView] = {}
        self._lock = threading.Lock()

    def read(self) -> tuple[dict[str, ModelView], str]:
        """The models in use now, and what is wrong with the file or with one of them."""
        with self._lock:
            self._follow()
            if self._error is not None and self._good is not None:
                return self._views, f"{self._error} The catalog as it was before that edit stays in use."
            if self._error is not None:
                return self._views, str(self._error)
            return self._views, "; ".join(f"{name}: {view.words}" for name, view in self._views.items() if view.words)

    def current(self) -> Catalog:
        """The catalog to plan with; ``stale`` says why it is not the file's. Raises CatalogError when none was good."""
        with self._lock:
            self._follow()
            if self._good is None:
                assert self._error is not None
                raise self._error
            return self._good if self._error is None else msgspec.structs.replace(self._good, stale=str(self._error))

    def _follow(self) -> None:
        """Parse the file again when it is another one than before."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._good, self._error = read_catalog(self._path), None
        except CatalogError as error:
            self._error = error
            return
        self._views = {
            name: ModelView(
                name=name,
                aliases=entry.aliases,
                engine=entry.engine,
                path=entry.path,
                profiles=entry.profiles,
                words=entry.trouble,
                fingerprints={profile: fingerprint(shape) for profile, shape in entry.profiles.items()},
                mode=entry.scaling.mode,
                idle_seconds=entry.scaling.idle_seconds,
                desired=entry.scaling.desired,
                scaling_profile=entry.scaling.profile,
            )
            for name, entry in self._good.models.items()
        }

    def _look(self) -> tuple[int, int, int] | None:
        try:
            about = self._path.stat()
        except OSError:
            return None  # the reason is told when it is read
        return about.st_mtime_ns, about.st_size, about.st_ino
