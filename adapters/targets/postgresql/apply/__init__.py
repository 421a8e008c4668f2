"""The scale-out apply of a PostgreSQL target: its tasks, and the transaction that merges them."""
