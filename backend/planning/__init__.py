"""Pure planning: what may be loaded, where it fits, and what would go wrong."""
