"""Installation of capture at Oracle: checks, triggers, schema changes, removal."""
