"""The host's side: one agent per host, its journal, its processes and its promises."""
