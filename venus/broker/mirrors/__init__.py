"""Mirrors: replication from the upstream broker set, and this set's place in the network (Minos 3)."""
