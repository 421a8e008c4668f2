"""Code that the under adapters of all targets share: whole cuts, net changes, retries (VENUS 3.4)."""
