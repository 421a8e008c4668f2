"""Alembic revisions of VENUS's own tables at source and target, and the names of these tables.

They are in a schema of their own where the database has schemas, else they have a prefix. Every revision uses these
names, so that one text serves every database. Names stay within 30 bytes, prefix included, for Oracle before 12.2.
"""

from __future__ import annotations

if __name__ != "venus.migrations":  # the repository root is on sys.path: a second copy of every class would be made
    raise ImportError("import venus.migrations, not migrations")


#: In front of every name where VENUS has no schema of its own.
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
