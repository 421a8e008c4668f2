"""`venus assess` at a MariaDB or MySQL server: information_schema, and counters of changes if any. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace

from venus.adapters.dialects.columns import ColumnChoice
from venus.adapters.dialects.mysql import dictionary, structure
from venus.adapters.dialects.mysql.connection import Connection, Row, address_of
from venus.adapters.dialects.mysql.dictionary import Table
from venus.adapters.dialects.mysql.names import literal
from venus.adapters.dialects.mysql.statements import statement
from venus.adapters.dialects.surveying import SAMPLE_ROWS, Asked, Pace, Sampler, Size, Survey, largest_first, weighed
from venus.config import Settings
from venus.errors import DatabaseUnavailable, SourceError

PACE = Pace(row_us=4.6, value_us=0.5, kib_us=4.0, trigger_us=80.0, log_row_bytes=110)
_FETCH_ROWS = 200
NO_CHANGES = (
    "change rate: neither performance_schema nor userstat counts changes here; enable one of them for a working day"
)


def survey(settings: Settings, asked: Asked) -> Survey:
    """Survey the database in the settings."""
    address = address_of(settings.source.url.get_secret_value(), ColumnChoice.of(settings))
    with closing(Connection(address, "REPEATABLE READ")) as connection:
        found = dictionary.read(connection, zero_dates_null=connection.options.zero_dates_null)
        tables = found.chosen(asked.include, asked.exclude)
        version = str(connection.row(statement("survey", "server"))[0])
        maker = "MariaDB" if "mariadb" in version.lower() else "MySQL"
        changes = _changes(connection)
        sizes = _sizes(connection, tables, changes)
        if asked.count_rows:
            sizes = [_counted(connection, table, size) for table, size in zip(tables, sizes, strict=True)]
        database = connection.address.database
        return Survey(
            server=f"{maker} {version.partition('-')[0]}",
            pace=PACE,
            sizes=tuple(_sampled(connection, tables, sizes, Sampler(asked))),
            numberings=tuple(structure.numberings(connection, database, mariadb=maker == "MariaDB")),
            others=tuple(structure.others(connection, database)),
            unknown=() if changes is not None else (NO_CHANGES,),
        )


def _sizes(connection: Connection, tables: Seq[Table], changes: Mapping[str, int] | None) -> list[Size]:
    database = literal(connection.address.database)
    found = {r[0]: r[1:] for r in connection.rows(statement("survey", "sizes", database=database))}
    over_s = float(connection.row(statement("survey", "uptime"))[1])
    return [
        Size(
            namespace=table.database, name=table.name, rows=int(found[table.name][0]), counted=False,
            data_bytes=int(found[table.name][1]), index_bytes=int(found[table.name][2]),
            changes=None if changes is None else changes.get(table.name, 0), over_s=over_s,
        )
        for table in tables
    ]  # fmt: skip


def _changes(connection: Connection) -> Mapping[str, int] | None:
    """Return the changed rows by table since the server's start; None if there is no counter for this user."""
    database = literal(connection.address.database)
    if str(connection.row(statement("survey", "server"))[1]) in ("1", "ON"):
        counter = "counted_by_performance_schema"
    elif _userstat(connection):
        counter = "counted_by_userstat"
    else:
        return None
    try:
        return {r[0]: int(r[1]) for r in connection.rows(statement("survey", counter, database=database))}
    except DatabaseUnavailable:
        raise
    except SourceError:
        return None


def _userstat(connection: Connection) -> bool:
    """Return whether MariaDB's userstat is on. MySQL has no such table."""
    try:
        return connection.rows(statement("survey", "userstat")) == [("ON",)]
    except DatabaseUnavailable:
        raise
    except SourceError:
        return False


def _counted(connection: Connection, table: Table, size: Size) -> Size:
    return replace(size, rows=int(connection.row(statement("survey", "count", table=table.sql))[0]), counted=True)


def _sampled(connection: Connection, tables: Seq[Table], sizes: Seq[Size], sampler: Sampler) -> list[Size]:
    by_name = {t.name: t for t in tables}
    found = {}
    for size in largest_first(sizes):
        text = statement("survey", "sample", table=by_name[size.name].sql, rows=str(SAMPLE_ROWS))
        try:
            sample = sampler.take(lambda text=text: weighed(_stream(connection, text)))  # type: ignore[misc]
            found[size.name] = replace(size, sample=sample)
        except DatabaseUnavailable:
            raise
        except SourceError:  # `check` reports tables that this user may not read
            found[size.name] = size
        connection.rollback()
    return [found[size.name] for size in sizes]


def _stream(connection: Connection, text: str) -> Iterator[Row]:
    """Yield the rows as they arrive, so that large ones are not all in memory."""
    with connection.stream(text) as cursor:
        while rows := cursor.fetchmany(_FETCH_ROWS):
            yield from rows
