"""Rows into one table: the ways of writing them, each for its size, and what is done with a row that is refused."""
