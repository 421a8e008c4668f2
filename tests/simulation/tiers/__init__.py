"""Broker sets in tiers: the product's home and mirrors with virtual time, disks in memory and unreliable links."""
