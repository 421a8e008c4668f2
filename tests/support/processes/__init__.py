"""Processes of a test: how they start, and that they end with it."""
