"""The operator's side: links to agents, the fleet state, the ledger and the operations."""
