"""The steps of a switch in an Oracle database: writes rejected, rows read and spelled, counters, mark."""
