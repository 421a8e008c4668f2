"""Verification: whether source, full data and target are equal, and if not, whose fault it is."""
