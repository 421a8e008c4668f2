"""The protocol of venus/replication under a seeded loop with virtual time (docs/explanation/replication.md)."""
