"""Installation of capture at PostgreSQL: checks, triggers, schema changes, removal."""
