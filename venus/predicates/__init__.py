"""Predicates, which select the rows of a target: conjunctions of ranges over a table's columns (SREM 2; VENUS 3.1)."""
