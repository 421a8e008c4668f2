"""The stand-in for an Oracle database, and readers of its language."""
