"""Subscriptions by content: which changes concern which of many predicates (SREM 2), beside the path of the rows."""
