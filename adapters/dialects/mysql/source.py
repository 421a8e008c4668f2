"""MariaDB or MySQL as a source: the parts of the dialect contract over two sessions (VENUS 3.1); its survey.

One thread uses them. The reader holds the snapshot of a cut; the writer does everything else in short transactions. The
survey for `venus assess` reads information_schema, and counters of changes if there are any, in a session of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace
from functools import partial

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice, find_useless_patterns
from venus.adapters.dialects.contract import (
    Numbering,
    OtherObject,
    SourceCapabilities,
    SourceDictionary,
    UncapturedTable,
)
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.capture.capture import MysqlCapture
from venus.adapters.dialects.mysql.connection import MysqlConnection, Row, parse_address
from venus.adapters.dialects.mysql.dictionary import structure
from venus.adapters.dialects.mysql.dictionary import tables as dictionary
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.installation.check import find_obstacle
from venus.adapters.dialects.mysql.installation.installer import MysqlInstaller
from venus.adapters.dialects.mysql.registry import MysqlRegistry
from venus.adapters.dialects.mysql.sql import literal, quote, statement
from venus.adapters.dialects.registry_rules import NO_LIMITS, LogLimits, log_limits
from venus.adapters.dialects.survey_contract import (
    SAMPLE_ROWS,
    LogRates,
    ReadingPace,
    Sampler,
    SourceFact,
    Survey,
    SurveyRequest,
    TableSize,
    choose_large_columns,
    code_facts,
    measure_rows,
    sample_tables,
)
from venus.config import Settings
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import TableSchema


def open_source(settings: Settings) -> MysqlSource:
    """Connect to the source in the settings."""
    url, columns = settings.source.url.get_secret_value(), ColumnChoice.from_settings(settings)
    return MysqlSource(url, columns=columns, log=log_limits(settings))


class MysqlSource:
    """A MariaDB or MySQL database whose changes are captured."""

    name = "mysql"
    capabilities = SourceCapabilities(transactional_ddl=False)

    def __init__(
        self,
        url: str,
        *,
        columns: ColumnChoice = NO_CHOICE,
        monotonic: Callable[[], float] = time.monotonic,
        log: LogLimits = NO_LIMITS,
    ) -> None:
        address = parse_address(url, columns)
        self._reader = MysqlConnection(address, "REPEATABLE READ")
        self._writer = MysqlConnection(address, "READ COMMITTED")
        self._writer.open()
        self.registry = MysqlRegistry(self._writer)
        self.dictionary = MysqlSourceDictionary(self._writer, self.registry)
        self.installer = MysqlInstaller(self._writer, log, self.registry.invalidate)
        self.capture = MysqlCapture(self._reader, self._writer, self.registry, monotonic, log)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class MysqlSourceDictionary(SourceDictionary):
    """The part of a source that reads its dictionary."""

    def __init__(self, writer: MysqlConnection, registry: MysqlRegistry) -> None:
        self._writer = writer
        self._registry = registry

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        known = {}
        if registry.is_installed(self._writer):
            known = {k.schema.name: k for k in registry.read_tables(self._writer)}
        found = []
        for table in self._read_dictionary().choose_tables(include, exclude):
            if table.key and not table.unsupported:
                k = known.get(table.name)
                found.append(
                    table.to_schema(k.table_id, k.schema.version, k.schema, k.number_max)
                    if k
                    else table.to_schema(0, 1)
                )
        return found

    def read_table_names(self) -> list[str]:
        return [f"{self._writer.address.database}.{name}" for name in dictionary.read_table_names(self._writer)]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        if not registry.is_installed(self._writer):
            return []
        known = {row[0] for row in self._writer.rows(statement("registry", "names"))}
        place = self._writer.address.database
        names = dictionary.choose_names(place, dictionary.read_table_names(self._writer), include, exclude)
        if not (names := [name for name in names if name not in known]):
            return []
        # capture has usually just read the whole dictionary, to compare it with the registry
        read = self._registry.loaded.dictionary.tables if self._registry.loaded else {}
        found = read if all(name in read for name in names) else self._read_dictionary().tables
        return [
            UncapturedTable(name=f"{place}.{name}", obstacle=find_obstacle(found[name]))
            for name in names
            if name in found
        ]

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        database = self._writer.address.database
        return find_useless_patterns(
            patterns, (dictionary.pattern_names(database, n) for n in dictionary.read_table_names(self._writer))
        )

    def _read_dictionary(self) -> dictionary.MysqlDictionary:
        return dictionary.read_dictionary(self._writer, zero_dates_null=self._writer.options.zero_dates_null)

    def read_numberings(self) -> list[Numbering]:
        writer = self._writer
        return structure.read_numberings(writer, writer.address.database, mariadb=dictionary.is_mariadb(writer))

    def read_other_objects(self) -> list[OtherObject]:
        return structure.read_other_objects(self._writer, self._writer.address.database)


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
        by_name = {f"{table.database}.{table.name}": table for table in tables}
        facts, unknown = _read_facts(connection)
        return Survey(
            server=f"{maker} {version.partition('-')[0]}",
            pace=PACE,
            sizes=sample_tables(sizes, partial(_sample_table, connection, by_name, Sampler(request))),
            numberings=tuple(structure.read_numberings(connection, database, mariadb=maker == "MariaDB")),
            others=tuple(structure.read_other_objects(connection, database)),
            unknown=(*unknown, *(() if changes is not None else (NO_CHANGES,))),
            facts=tuple(facts),
            log_rates=LogRates(redo=_read_redo_rate(connection)),
        )


def _read_facts(connection: MysqlConnection) -> tuple[list[SourceFact], list[str]]:
    """Return the facts about the server and the code, and what this user may not see."""
    edition, role, encoding = connection.row(statement("survey", "database"))
    named = {"edition": edition, "role": role, "character set": encoding}
    code = connection.rows(statement("survey", "code", database=literal(connection.address.database)))
    hidden = sum(int(row[2]) for row in code)
    unknown = [f"lines of code: this user may not see {hidden:,} routines (SHOW CREATE ROUTINE)"] if hidden else []
    facts = [SourceFact(what=what, value=str(value)) for what, value in named.items()]
    return facts + code_facts([(kind, int(lines or 0)) for kind, lines, _ in code], ()), unknown


def _read_redo_rate(connection: MysqlConnection) -> float | None:
    """Return the bytes of InnoDB's redo log each second since the server started."""
    written, up_s = (connection.rows(statement("survey", block)) for block in ("redo", "uptime"))
    return float(written[0][1]) / max(1.0, float(up_s[0][1])) if written and up_s else None


def _read_sizes(
    connection: MysqlConnection, tables: Seq[MysqlTable], changes: Mapping[str, int] | None
) -> list[TableSize]:
    database = literal(connection.address.database)
    found = {r[0]: r[1:] for r in connection.rows(statement("survey", "sizes", database=database))}
    over_s = float(connection.row(statement("survey", "uptime"))[1])
    attached: dict[str, list[str]] = {}
    for name, trigger in connection.rows(statement("survey", "table_triggers", database=database)):
        attached.setdefault(name, []).append(trigger)
    return [
        TableSize(
            namespace=table.database,
            name=table.name,
            rows=int(found[table.name][0]),
            counted=False,
            data_bytes=int(found[table.name][1]),
            index_bytes=int(found[table.name][2]),
            changes=None if changes is None else changes.get(table.name, 0),
            over_s=over_s,
            attached=tuple(attached.get(table.name, ())),
        )
        for table in tables
    ]


def _read_changes(connection: MysqlConnection) -> Mapping[str, int] | None:
    """Return how many rows of each table changed since the server started; None if this user sees no counter."""
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
    """Return whether MariaDB's userstat is on, which counts changed rows by table. MySQL has no userstat."""
    try:
        return connection.rows(statement("survey", "userstat")) == [("ON",)]
    except DatabaseUnavailable:
        raise
    except SourceError:
        return False


def _count_rows(connection: MysqlConnection, table: MysqlTable, size: TableSize) -> TableSize:
    return replace(size, rows=int(connection.row(statement("survey", "count", table=table.sql))[0]), counted=True)


def _sample_table(
    connection: MysqlConnection, tables: Mapping[str, MysqlTable], sampler: Sampler, size: TableSize
) -> TableSize:
    """Return the size of a table with a sample of its rows and its largest value, if there is time."""
    text = statement("survey", "sample", table=f"{quote(size.namespace)}.{quote(size.name)}", rows=str(SAMPLE_ROWS))
    try:
        size = replace(size, sample=sampler.take(lambda: measure_rows(_stream_rows(connection, text))))
        largest = _largest_query(tables[size.qualified_name], every=size.counted)
        if largest and (size.sample or size.counted):
            size = replace(size, largest_bytes=max(int(n or 0) for n in connection.row(largest)))
    except DatabaseUnavailable:
        raise
    except SourceError:
        pass  # `check` reports tables that this user may not read
    connection.rollback()
    return size


def _largest_query(table: MysqlTable, *, every: bool) -> str:
    """Return the query for the longest value of each large column, in every row or in some; empty without any."""
    names = [quote(c.name) for c in choose_large_columns(table.columns)]
    if not names:
        return ""
    some = statement("survey", "some_rows", columns=", ".join(names), table=table.sql, rows=str(SAMPLE_ROWS))
    lengths = ", ".join(f"max(octet_length(t.{name}))" for name in names)
    return statement("survey", "largest", lengths=lengths, rows=table.sql if every else some)


def _stream_rows(connection: MysqlConnection, text: str) -> Iterator[Row]:
    """Yield the rows as they arrive, so that large ones are not all in memory."""
    with connection.stream(text) as cursor:
        while rows := cursor.fetchmany(_FETCH_ROWS):
            yield from rows
