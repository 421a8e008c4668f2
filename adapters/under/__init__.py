"""The target side: full load, increments, quarantine (VENUS 3.2)."""
