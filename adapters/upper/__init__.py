"""The source side: capture, half messages, reviews (VENUS 3.2)."""
