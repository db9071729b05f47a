"""``python -m backend.agent`` is ``ringtop-agent``."""

from backend.agent.cli import main

main()
