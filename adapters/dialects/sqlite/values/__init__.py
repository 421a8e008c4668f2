"""Values and rows of SQLite as canonical text and packed sections."""
