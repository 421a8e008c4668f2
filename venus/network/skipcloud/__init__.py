"""SkipCloud: an overlay of many brokers in levels of clusters, and the routing over it (SREM 3)."""
