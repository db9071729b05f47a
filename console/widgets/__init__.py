"""Widgets that draw what render/ worked out."""
