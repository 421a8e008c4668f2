"""An Oracle database as a target: the rows and the applied offset change in one transaction (VENUS 3.4)."""
