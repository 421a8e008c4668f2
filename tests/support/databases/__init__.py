"""Servers of the real databases, and applications that write to them."""
