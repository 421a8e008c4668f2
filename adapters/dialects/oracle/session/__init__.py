"""Sessions at an Oracle database: driver, connection, limits."""
