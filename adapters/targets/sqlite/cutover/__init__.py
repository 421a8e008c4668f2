"""The steps of a switch in a SQLite file: writes rejected, rows read and converted, counters, mark."""
