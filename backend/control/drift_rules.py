"""Everything that the drift lens compares for one replica."""

from __future__ import annotations

from backend.control.drift_lens import Rule
from backend.control.drift_ring import load_records, ranks, strays
from backend.control.drift_shards import bounds, device_names, generations, placement
from backend.control.drift_world import addresses, catalog, model_file, releases

RULES: tuple[Rule, ...] = (
    generations,
    ranks,
    placement,
    bounds,
    releases,
    addresses,
    load_records,
    strays,
    device_names,
    catalog,
    model_file,
)
"""Everything that is compared, the worst first."""
