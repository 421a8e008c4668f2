"""The steps of a switch in a MariaDB or MySQL database: writes rejected, rows read and converted, counters, mark."""
