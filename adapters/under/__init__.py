"""What the under adapters of all targets can share: whole cuts, net changes, when to try again (VENUS 3.4)."""
