"""Installation of capture at MariaDB or MySQL: checks, triggers, schema changes, removal."""
