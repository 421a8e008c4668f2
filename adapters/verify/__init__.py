"""Verification: whether source, full data and target are equal, and which component caused a difference."""
