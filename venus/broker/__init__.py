"""The broker: half messages, the log, the full data, delivery (VENUS 3.2, 3.3)."""
