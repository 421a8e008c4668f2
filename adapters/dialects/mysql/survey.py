"""`venus assess` at a MariaDB or MySQL server: information_schema, and counters of changes if any. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.mysql.connection import MysqlConnection, Row, parse_address
from venus.adapters.dialects.mysql.dictionary import structure
from venus.adapters.dialects.mysql.dictionary import tables as dictionary
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.names import literal
from venus.adapters.dialects.mysql.sql import statement
from venus.adapters.dialects.survey_contract import (
    SAMPLE_ROWS,
    ReadingPace,
    Sampler,
    Survey,
    SurveyRequest,
    TableSize,
    largest_first,
    measure_rows,
)
from venus.config import Settings
from venus.errors import DatabaseUnavailable, SourceError

PACE = ReadingPace(row_us=4.6, value_us=0.5, kib_us=4.0, trigger_us=80.0, log_row_bytes=110)
_FETCH_ROWS = 200
NO_CHANGES = (
    "change rate: neither performance_schema nor userstat counts changes here; enable one of them for a working day"
)


def survey(settings: Settings, request: SurveyRequest) -> Survey:
    """Survey the database in the settings."""
    address = parse_address(settings.source.url.get_secret_value(), ColumnChoice.from_settings(settings))
    with closing(MysqlConnection(address, "REPEATABLE READ")) as connection:
        found = dictionary.read_dictionary(connection, zero_dates_null=connection.options.zero_dates_null)
        tables = found.choose_tables(request.include, request.exclude)
        version = str(connection.row(statement("survey", "server"))[0])
        maker = "MariaDB" if "mariadb" in version.lower() else "MySQL"
        changes = _read_changes(connection)
        sizes = _read_sizes(connection, tables, changes)
        if request.count_rows:
            sizes = [_count_rows(connection, table, size) for table, size in zip(tables, sizes, strict=True)]
        database = connection.address.database
        return Survey(
            server=f"{maker} {version.partition('-')[0]}",
            pace=PACE,
            sizes=tuple(_sample_tables(connection, tables, sizes, Sampler(request))),
            numberings=tuple(structure.read_numberings(connection, database, mariadb=maker == "MariaDB")),
            others=tuple(structure.read_other_objects(connection, database)),
            unknown=() if changes is not None else (NO_CHANGES,),
        )


def _read_sizes(
    connection: MysqlConnection, tables: Seq[MysqlTable], changes: Mapping[str, int] | None
) -> list[TableSize]:
    database = literal(connection.address.database)
    found = {r[0]: r[1:] for r in connection.rows(statement("survey", "sizes", database=database))}
    over_s = float(connection.row(statement("survey", "uptime"))[1])
    return [
        TableSize(
            namespace=table.database, name=table.name, rows=int(found[table.name][0]), counted=False,
            data_bytes=int(found[table.name][1]), index_bytes=int(found[table.name][2]),
            changes=None if changes is None else changes.get(table.name, 0), over_s=over_s,
        )
        for table in tables
    ]  # fmt: skip


def _read_changes(connection: MysqlConnection) -> Mapping[str, int] | None:
    """Return the changed rows by table since the server's start; None if there is no counter for this user."""
    database = literal(connection.address.database)
    if str(connection.row(statement("survey", "server"))[1]) in ("1", "ON"):
        counter = "counted_by_performance_schema"
    elif _has_userstat(connection):
        counter = "counted_by_userstat"
    else:
        return None
    try:
        return {r[0]: int(r[1]) for r in connection.rows(statement("survey", counter, database=database))}
    except DatabaseUnavailable:
        raise
    except SourceError:
        return None


def _has_userstat(connection: MysqlConnection) -> bool:
    """Return whether MariaDB's userstat is on. MySQL has no such table."""
    try:
        return connection.rows(statement("survey", "userstat")) == [("ON",)]
    except DatabaseUnavailable:
        raise
    except SourceError:
        return False


def _count_rows(connection: MysqlConnection, table: MysqlTable, size: TableSize) -> TableSize:
    return replace(size, rows=int(connection.row(statement("survey", "count", table=table.sql))[0]), counted=True)


def _sample_tables(
    connection: MysqlConnection, tables: Seq[MysqlTable], sizes: Seq[TableSize], sampler: Sampler
) -> list[TableSize]:
    by_name = {t.name: t for t in tables}
    found = {}
    for size in largest_first(sizes):
        text = statement("survey", "sample", table=by_name[size.name].sql, rows=str(SAMPLE_ROWS))
        try:
            sample = sampler.take(lambda text=text: measure_rows(_stream_rows(connection, text)))  # type: ignore[misc]
            found[size.name] = replace(size, sample=sample)
        except DatabaseUnavailable:
            raise
        except SourceError:  # `check` reports tables that this user may not read
            found[size.name] = size
        connection.rollback()
    return [found[size.name] for size in sizes]


def _stream_rows(connection: MysqlConnection, text: str) -> Iterator[Row]:
    """Yield the rows as they arrive, so that large ones are not all in memory."""
    with connection.stream(text) as cursor:
        while rows := cursor.fetchmany(_FETCH_ROWS):
            yield from rows
