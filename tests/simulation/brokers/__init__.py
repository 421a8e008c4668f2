"""Whole brokers under the seeded loop: the product's own code for ingest, log, machine, full data and delivery."""
