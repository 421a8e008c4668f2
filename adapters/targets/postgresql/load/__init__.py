"""The full load: planned once, done in tasks, finished with keys and indexes (VENUS 3.3)."""
