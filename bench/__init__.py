"""Figures, never tests: every speed beside the floor or peer that ran in the same run."""
