"""The steps of a switch in an Oracle database: writes rejected, rows read and converted, counters, mark."""
