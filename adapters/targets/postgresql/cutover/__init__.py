"""What a cut-over does to a PostgreSQL database: rows read and spelled, foreign keys, counters, heirs, the mark."""
