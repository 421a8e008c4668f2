"""Which of many interests an event matches: a hash index, intervals, HPartition (SREM 2.1, 4)."""
