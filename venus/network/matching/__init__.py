"""Matching of events against many interests: a hash index, intervals, HPartition (SREM 2.1, 4)."""
