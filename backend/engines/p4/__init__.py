"""How an agent drives p4: over p4's own TCP contract, with the p4 agent on the same host."""
