"""The steps of a switch in a SQLite file: writes rejected, rows read and spelled, counters, mark."""
