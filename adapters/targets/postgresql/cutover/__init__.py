"""The cut-over's steps in PostgreSQL: rows read and converted, foreign keys, counters, child tables, mark."""
