"""Revisions, one file each."""
