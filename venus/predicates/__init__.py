"""Which rows a target gets: conjunctions of ranges over a table's columns (SREM 2; VENUS 3.1)."""
