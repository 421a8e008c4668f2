"""Revisions, each in its own file."""
