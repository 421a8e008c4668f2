"""Creation, upgrade and removal of VENUS's own tables, at a source or at a target.

Source and target are two independent branches of one alembic history: both may live in one database, beside the
application's own alembic, because VENUS's version table has its own name. Revisions are first turned into statements,
which then run in one transaction, so `render_sql` shows exactly the statements that `upgrade` runs. No logging is
configured, and a caller's open connection and transaction are used unchanged.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Any, Literal

import sqlalchemy as sa

from venus.errors import Refused
from venus.migrations import VERSION_TABLE

Side = Literal["source", "target"]
Direction = Literal["upgrade", "downgrade"]

# Alembic's own log lines are of no use to an operator, whatever the log level.
logging.getLogger("alembic").setLevel(logging.WARNING)

#: Marks a schema that VENUS created. Only such a schema is dropped again, not one that a DBA created.
SCHEMA_COMMENT = "made by VENUS"
#: Lock of processes that create VENUS's tables on one PostgreSQL (an arbitrary constant).
MIGRATION_LOCK = 0x76656E7573
#: Alembic keeps the environment that is running in a global of its module.
_one_at_a_time = threading.Lock()


def upgrade(engine: sa.Engine | sa.Connection, side: Side, *, schema: str | None) -> list[str]:
    """Bring the tables of `side` to the newest revision and return the statements run; idempotent, atomic."""
    return _execute(engine, side, schema, "upgrade")


def downgrade(engine: sa.Engine | sa.Connection, side: Side, *, schema: str | None) -> list[str]:
    """Remove the tables of `side`, and if no other side remains, also the version table and VENUS's schema."""
    return _execute(engine, side, schema, "downgrade")


def render_sql(
    engine: sa.Engine | sa.Connection, side: Side, *, schema: str | None, direction: Direction = "upgrade"
) -> list[str]:
    """Return the statements that `upgrade` or `downgrade` would run now; only reads."""
    with _connection(engine) as connection:
        return _statements(connection, side, schema, direction)


def is_installed(engine: sa.Engine | sa.Connection, side: Side, *, schema: str | None) -> bool:
    """Return whether the tables of `side` exist, in any revision."""
    with _connection(engine) as connection:
        return any(_is_of_side(revision, side) for revision in _revisions(connection, schema))


def newest_revision(side: Side) -> str:
    """Return the newest revision of a side: files are named after their revision, and revisions are numbered."""
    names = (entry.name for entry in files("venus.migrations.versions").iterdir())
    return max("_".join(name.split("_")[:2]) for name in names if _is_of_side(name, side))


def _execute(engine: sa.Engine | sa.Connection, side: Side, schema: str | None, direction: Direction) -> list[str]:
    """Run the statements of an upgrade or downgrade in one transaction, and return them."""
    with _connection(engine) as connection:
        _lock_migrations(connection)
        statements = _statements(connection, side, schema, direction)
        for statement in statements:
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).close()
        return statements


@contextmanager
def _connection(engine: sa.Engine | sa.Connection) -> Iterator[sa.Connection]:
    """Yield a connection in a transaction: the caller's own, else a new one that is committed at the end."""
    if isinstance(engine, sa.Connection):
        yield engine
        return
    with engine.begin() as connection:
        yield connection


def _lock_migrations(connection: sa.Connection) -> None:
    """Wait for another process that also migrates. The lock ends with the transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    elif connection.dialect.name == "sqlite":
        driver = connection.connection.dbapi_connection
        if driver is not None and not driver.in_transaction:  # the driver itself begins only at the first DML
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _statements(connection: sa.Connection, side: Side, schema: str | None, direction: Direction) -> list[str]:
    """Return the statements that bring the tables of `side` to the newest revision, or remove them."""
    revisions = _revisions(connection, schema)
    own = [revision for revision in revisions if _is_of_side(revision, side)]
    _check_known(own, side)
    if direction == "upgrade":
        if own == [newest_revision(side)]:  # the usual case; alembic would take 0.25 s to find that out
            return []
        # Where alembic starts; the other side's revision only shows that the version table exists.
        start = (own or revisions or ["base"])[0]
        return _schema_statements(connection, schema) + _render(connection, schema, f"{start}:{side}@head", direction)
    if not own:
        return []
    statements = _render(connection, schema, f"{own[0]}:{side}@base", direction)
    return statements if len(revisions) > len(own) else statements + _drop_statements(connection, schema)


def _check_known(own: list[str], side: Side) -> None:
    """Raise Refused for tables of a newer version, because this version does not know their meaning."""
    newest = newest_revision(side)
    if any(revision > newest for revision in own):
        raise Refused(
            f"VENUS's own tables at the {side} have revision {max(own)}; this version knows revisions up to {newest}",
            hint="install the VENUS that wrote them, or a newer one",
        )


def _render(connection: sa.Connection, schema: str | None, span: str, direction: Direction) -> list[str]:
    """Return the statements of alembic's script for a span of revisions."""
    command, Config = _alembic()  # noqa: N806
    output = _Statements()
    with _one_at_a_time, as_file(files("venus.migrations")) as folder:
        config = Config(output_buffer=output)
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes.update(connection=connection, schema=schema)
        (command.upgrade if direction == "upgrade" else command.downgrade)(config, span, sql=True)
    return output.statements


def _alembic() -> tuple[Any, Any]:
    """Return alembic's commands and its Config; import them late, because few commands need them.

    Alembic would take as long to import as all else in `venus status`, mostly for a code highlighter, which is needed
    only for errors in templates of new revisions. So the highlighter is hidden during the import.
    """
    hidden = "mako.ext.pygmentplugin"
    spared = hidden not in sys.modules
    if spared:
        sys.modules[hidden] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        from alembic import command
        from alembic.config import Config
    finally:
        if spared:
            del sys.modules[hidden]
    return command, Config


class _Statements(io.StringIO):
    """Output file of alembic's script, which is written one statement at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []

    def write(self, text: str, /) -> int:
        statement = text.strip().removesuffix(";")
        if statement and not statement.startswith("--"):
            self.statements.append(statement)
        return len(text)


def _revisions(connection: sa.Connection, schema: str | None) -> list[str]:
    """Return the revisions in VENUS's version table; none if that table does not exist."""
    if not sa.inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return []
    versions = sa.table(VERSION_TABLE, sa.column("version_num"), schema=schema)
    return list(connection.scalars(sa.select(versions.c.version_num)))


def _is_of_side(revision: str, side: Side) -> bool:
    """Return whether a revision belongs to a side, by its name: source_0001, target_0001, ..."""
    return revision.startswith(f"{side}_")


def _schema_statements(connection: sa.Connection, schema: str | None) -> list[str]:
    """Return the statements that create VENUS's schema if it is missing."""
    if schema is None or sa.inspect(connection).has_schema(schema):
        return []
    name = connection.dialect.identifier_preparer.quote(schema)
    return [f"CREATE SCHEMA {name}", f"COMMENT ON SCHEMA {name} IS '{SCHEMA_COMMENT}'"]


def _drop_statements(connection: sa.Connection, schema: str | None) -> list[str]:
    """Return the statements that drop the version table, and the schema if VENUS has created it."""
    quote = connection.dialect.identifier_preparer.quote
    if schema is None:
        return [f"DROP TABLE {quote(VERSION_TABLE)}"]
    dropped = [f"DROP TABLE {quote(schema)}.{quote(VERSION_TABLE)}"]
    comment = connection.scalar(
        sa.text("SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = :name"),
        {"name": schema},
    )
    return [*dropped, f"DROP SCHEMA {quote(schema)}"] if comment == SCHEMA_COMMENT else dropped
