"""Whole brokers in the seeded loop: the product's own code for ingest, log, machine, full data and delivery."""
