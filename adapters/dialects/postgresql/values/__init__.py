"""Values and rows of PostgreSQL as canonical text and packed sections."""
