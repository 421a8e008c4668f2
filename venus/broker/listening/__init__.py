"""Subscriptions by content (SREM 2): each change is matched with many predicates, apart from the delivery of rows."""
