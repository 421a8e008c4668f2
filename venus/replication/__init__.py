"""Replication: terms, the in-sync set, elections. Pure: `step(event, now) -> effects`, no thread, no socket."""
