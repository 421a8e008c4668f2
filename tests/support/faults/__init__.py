"""Faults that kill, cut, delay or damage a part."""
