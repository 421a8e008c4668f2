"""Committed batches: where they lie, how they are read, how far back they are kept."""
