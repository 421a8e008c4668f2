"""The replicated log: the only data on disk that is not derived from other data."""
