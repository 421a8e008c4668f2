"""The tiered network: sets of brokers, their topology, and the choice of sets for clients (Minos 3.4, SREM 2 to 4)."""
