"""The tiered network: sets of brokers, who pulls from whom, who is sent where (Minos 3.4, SREM 2 to 4)."""
