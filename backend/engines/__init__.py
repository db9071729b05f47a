"""How an agent runs one engine: a driver per engine, pure parsers beside it."""
