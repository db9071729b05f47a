"""Whether something else answers to the names ``console`` and ``backend``, which are common ones."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

NAMES = ("console", "backend")
_OURS = Path(__file__).resolve().parents[2]


def shadows() -> list[str]:
    """One sentence, with its remedy, for each package, folder or file that stands in the way or may come to."""
    found = []
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parent != _OURS / name:
            found.append(f"the name {name} leads to {origin or 'nothing'}, not to {_OURS / name}. {_remedy(name)}")
        found += [
            f"{other} also answers to the name {name}, beside {_OURS / name}. {_remedy(name)}"
            for other in _others(name)
            if other != origin
        ]
    return found


def _others(name: str) -> list[Path]:
    """Everything on the import path with this name that is not ours."""
    there = []
    for entry in sys.path:
        folder = Path(entry or ".").resolve()
        if folder == _OURS:
            continue
        there += [path for path in (folder / name / "__init__.py", folder / f"{name}.py") if path.exists()]
    return there


def _remedy(name: str) -> str:
    owners = sorted(set(importlib.metadata.packages_distributions().get(name, [])) - {"ringtop"})
    of = f"It belongs to {', '.join(owners)}. " if owners else ""
    return f"{of}Give ringtop an environment of its own: pipx install ringtop"
