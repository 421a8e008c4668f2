"""Alembic revisions of VENUS's own tables at source and target."""

if __name__ != "venus.migrations":  # the repository root is on sys.path: a second copy of every class would be made
    raise ImportError("import venus.migrations, not migrations")
