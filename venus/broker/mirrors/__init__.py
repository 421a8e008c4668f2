"""Mirrors: what a broker set pulls from the set above, and where it stands in the network (Minos 3)."""
