"""Keeps a target database equal to a source database of another make, with triggers alone."""

__version__ = "0.1.0"
