"""Which model files the agent may read: regular files below its model roots, symlinks resolved."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from backend.engines.driver import ModelUnreadable


def resolve_model(path: str, roots: Sequence[str]) -> Path:
    """The real path of a model named absolutely or relative to a root.

    Raises ModelUnreadable when nothing is there, when it is no regular file, or when it lies outside every root.
    """
    if "\0" in path or not path:
        raise ModelUnreadable(f"model path {path!r} is no path")
    real_roots = [os.path.realpath(root) for root in roots]
    candidates = [path] if os.path.isabs(path) else [os.path.join(root, path) for root in real_roots]
    for candidate in candidates:
        real = os.path.realpath(candidate)
        if not any(os.path.commonpath((real, root)) == root for root in real_roots):
            allowed = ", ".join(roots) or "none"
            raise ModelUnreadable(
                f"model {path} lies at {real}, outside the agent's model roots ({allowed}). "
                "Move it, or add its folder to model_roots in agent.toml."
            )
        try:
            mode = os.stat(real).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise ModelUnreadable(f"model {path} at {real} is no regular file")
        return Path(real)
    looked = ", ".join(candidates) or "no model root is configured"
    raise ModelUnreadable(f"model {path} is missing; looked at {looked}. Copy it there, or correct the catalog's path.")
