"""The stand-in for an Oracle database, and parsers of its language."""
