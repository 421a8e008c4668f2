"""SQLite as a source: the parts of the dialect contract over one file (VENUS 3.1); its survey.

The survey for `venus assess` counts rows and adds up pages, because SQLite counts no changes. It only reads.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice, find_useless_patterns
from venus.adapters.dialects.contract import (
    Numbering,
    OtherObject,
    SourceCapabilities,
    SourceDictionary,
    UncapturedTable,
)
from venus.adapters.dialects.registry_rules import NO_LIMITS, LogLimits, log_limits
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.capture.capture import SqliteCapture
from venus.adapters.dialects.sqlite.connection import connect, parse_file_url, quote, read_transaction
from venus.adapters.dialects.sqlite.dictionary import structure
from venus.adapters.dialects.sqlite.dictionary.tables import (
    NAMESPACE,
    SqliteDictionary,
    assign_numbers,
    choose_tables,
    pattern_names,
    read_table_names,
)
from venus.adapters.dialects.sqlite.installation.installer import SqliteInstaller
from venus.adapters.dialects.sqlite.registry import SqliteRegistry
from venus.adapters.dialects.sqlite.sql import statement
from venus.adapters.dialects.survey_contract import (
    SAMPLE_ROWS,
    ReadingPace,
    Sampler,
    SourceFact,
    Survey,
    SurveyRequest,
    TableSize,
    choose_large_columns,
    measure_rows,
    sample_tables,
)
from venus.config import Settings
from venus.model import TableSchema


def open_source(settings: Settings) -> SqliteSource:
    """Open the file in the settings."""
    file = parse_file_url(settings.source.url.get_secret_value())
    return SqliteSource(file, ColumnChoice.from_settings(settings), log_limits(settings))


class SqliteSource:
    """One SQLite file, used by one thread."""

    name = "sqlite"
    capabilities = SourceCapabilities(transactional_ddl=True)

    def __init__(self, file: Path, columns: ColumnChoice = NO_CHOICE, log: LogLimits = NO_LIMITS) -> None:
        self._reader = connect(file)
        try:
            self._writer = connect(file)
        except BaseException:
            self._reader.close()
            raise
        self.dictionary = SqliteSourceDictionary(file, self._writer, columns)
        self.registry = SqliteRegistry(file, self._writer)
        self.capture = SqliteCapture(file, self._reader, self._writer, columns, self.registry.restores, log)
        self.installer = SqliteInstaller(file, self._writer, columns, log, self.capture.invalidate)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class SqliteSourceDictionary(SourceDictionary):
    """The part of a source that reads its dictionary."""

    def __init__(self, file: Path, writer: sqlite3.Connection, columns: ColumnChoice) -> None:
        self._file = file
        self._writer = writer
        self._columns = columns

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        with read_transaction(self._writer, self._file):
            dictionary = SqliteDictionary(self._writer, self._columns)
            known = {}
            if registry.is_installed(self._writer):
                known = {c.schema.name: c.schema for c in registry.read_tables(self._writer).values()}
            names = choose_tables(read_table_names(self._writer)[0], include, exclude)
            return [assign_numbers(dictionary.read_table(n, known.get(n)).schema, 0)[0] for n in names]

    def read_table_names(self) -> list[str]:
        return [pattern_names(name)[1] for name in self._read_names()]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        with read_transaction(self._writer, self._file):
            if not registry.is_installed(self._writer):
                return []
            known = {name for (name,) in self._writer.execute(statement("registry", "names"))}
            names = [n for n in choose_tables(read_table_names(self._writer)[0], include, exclude) if n not in known]
            if not names:
                return []
            dictionary = SqliteDictionary(self._writer, self._columns)
            return [UncapturedTable(name=pattern_names(n)[1], obstacle=dictionary.find_obstacle(n)) for n in names]

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        return find_useless_patterns(patterns, map(pattern_names, self._read_names()))

    def _read_names(self) -> list[str]:
        with read_transaction(self._writer, self._file):
            names, others = read_table_names(self._writer)
        return [*names, *(other.name for other in others)]

    def read_numberings(self) -> list[Numbering]:
        with read_transaction(self._writer, self._file):
            tables = registry.read_tables(self._writer) if registry.is_installed(self._writer) else {}
            return structure.read_numberings(self._writer, [c.schema for c in tables.values()])

    def read_other_objects(self) -> list[OtherObject]:
        with read_transaction(self._writer, self._file):
            return structure.read_other_objects(self._writer)


PACE = ReadingPace(row_us=1.5, value_us=0.55, kib_us=4.0, trigger_us=25.0, log_row_bytes=15)
#: The pages of each table are added up only in files up to this size, because that reads the whole file.
PAGES_BYTES_MAX = 1 << 30
NO_CHANGES = "change rate: SQLite counts no changes; measure one working day, or ask the developers of the application"


def survey(settings: Settings, request: SurveyRequest) -> Survey:
    """Survey the file in the settings."""
    file = parse_file_url(settings.source.url.get_secret_value())
    with closing(connect(file)) as connection, read_transaction(connection, file):
        names = choose_tables(read_table_names(connection)[0], request.include, request.exclude)
        pages, unknown = _read_page_sizes(connection, file)
        attached = _read_triggers(connection)
        sizes = [_table_size(connection, name, pages, attached.get(name, ())) for name in names]
        dictionary = SqliteDictionary(connection, ColumnChoice.from_settings(settings))
        schemas = {name: dictionary.read_table(name).schema for name in names}
        pragmas = {"character set": "encoding", "journal mode": "journal"}
        return Survey(
            server=f"SQLite {sqlite3.sqlite_version}",
            pace=PACE,
            sizes=sample_tables(sizes, partial(_sample_table, connection, schemas, Sampler(request))),
            numberings=tuple(structure.read_numberings(connection, list(schemas.values()))),
            others=tuple(structure.read_other_objects(connection)),
            unknown=(*unknown, NO_CHANGES),
            facts=tuple(
                SourceFact(what=what, value=str(connection.execute(statement("survey", block)).fetchone()[0]))
                for what, block in pragmas.items()
            ),
        )


def _read_triggers(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the application's triggers by table."""
    own, found = registry.read_owned_objects(connection), defaultdict(list)
    for table, name in connection.execute(statement("survey", "table_triggers")):
        if not own.has_object(name):
            found[table].append(f"trigger {name}")
    return found


def _read_page_sizes(connection: sqlite3.Connection, file: Path) -> tuple[dict[tuple[str, str], int], list[str]]:
    """Return the bytes of tables and indexes by (table, type), and a sentence about sizes that stay unknown."""
    nbytes = file.stat().st_size
    found: dict[tuple[str, str], int] = defaultdict(int)
    try:
        rows = connection.execute(statement("survey", "pages")).fetchall() if nbytes <= PAGES_BYTES_MAX else None
    except sqlite3.OperationalError:
        why = "this SQLite was built without dbstat"
    else:
        for _, table, kind, size in rows or ():
            found[table, kind] += int(size)
        if rows is not None:
            return found, []
        why = "adding up its pages reads the whole file"
    return {}, [f"size of each table: {why}; the whole file has {nbytes / (1 << 20):,.0f} MiB"]


def _table_size(
    connection: sqlite3.Connection, name: str, pages: dict[tuple[str, str], int], attached: Seq[str]
) -> TableSize:
    rows = connection.execute(statement("survey", "count", table=quote(name))).fetchone()[0]
    return TableSize(
        namespace=NAMESPACE,
        name=name,
        rows=int(rows),
        counted=True,
        data_bytes=pages.get((name, "table")),
        index_bytes=pages.get((name, "index"), 0) if pages else None,
        attached=tuple(attached),
    )


def _sample_table(
    connection: sqlite3.Connection, schemas: Mapping[str, TableSchema], sampler: Sampler, size: TableSize
) -> TableSize:
    parts = {"table": quote(size.name), "rows": str(SAMPLE_ROWS)}
    text = statement("survey", "sample", **parts)
    size = replace(size, sample=sampler.take(lambda: measure_rows(connection.execute(text))))
    names = [quote(c.name) for c in choose_large_columns(schemas[size.name].columns)]
    if not (size.sample and names):
        return size
    lengths = ", ".join(f"max(length(CAST(t.{name} AS BLOB)))" for name in names)
    text = statement("survey", "largest", columns=", ".join(names), lengths=lengths, **parts)
    return replace(size, largest_bytes=max(int(n or 0) for n in connection.execute(text).fetchone()))
