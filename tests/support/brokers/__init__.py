"""Brokers, their clusters and their clients, with real processes and real gRPC."""
