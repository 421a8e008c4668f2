"""Where VENUS's own tables live: in a schema of their own where the database has such a thing, else under a prefix.

Every revision asks here, so that one text serves every database. Names stay within 30 bytes, prefix included,
for Oracle before 12.2.
"""

from __future__ import annotations

#: In front of every name where VENUS has no schema of its own.
PREFIX = "venus_"
VERSION_TABLE = "venus_alembic_version"


def own_schema() -> str | None:
    """Return the schema of the revision being run; None = the prefix tells VENUS's tables apart."""
    from alembic import op  # here, because those who only ask for names need not wait for all of it

    schema: str | None = op.get_context().opts["venus_schema"]
    return schema


def own_name(name: str, *, schema: str | None) -> str:
    """Return how VENUS's table `name` is called in a database."""
    return name if schema else PREFIX + name
