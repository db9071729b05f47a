"""The pure core of the agent."""

from backend.agent.core.step import initial, step

__all__ = ["initial", "step"]
