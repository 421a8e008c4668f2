"""Code that all relational targets share: cuts, changes by key, quarantine, resync, operators' commands (VENUS 3.4)."""
