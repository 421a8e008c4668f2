"""Installation of capture at SQLite: checks, triggers, schema changes, removal."""
