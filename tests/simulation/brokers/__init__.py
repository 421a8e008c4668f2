"""Whole brokers under the seeded loop: ingest, log, machine, full data and delivery are the product's own code."""
