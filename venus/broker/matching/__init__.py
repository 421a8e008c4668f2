"""Brokers that share the matching of subscriptions: the overlay's connections, installation, and remote matching."""
