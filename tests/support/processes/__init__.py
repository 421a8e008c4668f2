"""Processes of a test: they start, and end with it."""
