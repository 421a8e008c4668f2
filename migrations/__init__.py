"""Alembic revisions of VENUS's own tables at source and target, and the names of these tables.

The tables are in a separate schema if the database has schemas; otherwise their names have a prefix. Every revision
uses these names, so that one text serves every database. Names stay within 30 bytes, prefix included, for Oracle before
12.2.
"""

from __future__ import annotations

if __name__ != "venus.migrations":  # the repository root is on sys.path: that would create a second copy of every class
    raise ImportError("import venus.migrations, not migrations")


#: The prefix of every name where VENUS has no separate schema.
PREFIX = "venus_"
VERSION_TABLE = "venus_alembic_version"


def own_schema() -> str | None:
    """Return the schema of the running revision; None means that VENUS's tables have the prefix."""
    from alembic import op  # imported late: callers that need only names should not load alembic

    schema: str | None = op.get_context().opts["venus_schema"]
    return schema


def own_name(name: str, *, schema: str | None) -> str:
    """Return the name of VENUS's table `name` in a database."""
    return name if schema else PREFIX + name
