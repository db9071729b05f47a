"""The one-shot commands. Importing any of them imports click and nothing else of weight."""
