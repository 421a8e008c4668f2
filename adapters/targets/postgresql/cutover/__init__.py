"""The cut-over's steps in a PostgreSQL database: rows read and spelled, foreign keys, counters, child tables, mark."""
