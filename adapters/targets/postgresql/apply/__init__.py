"""Increments into the tables, transaction by transaction: the loop, one session of it, and what it keeps beside."""
