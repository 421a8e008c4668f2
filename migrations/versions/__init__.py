"""Alembic revisions of VENUS's own tables, each in its own file."""
