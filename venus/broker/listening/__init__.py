"""Subscriptions by content (SREM 2): matches each change with many predicates, separately from the delivery of rows."""
