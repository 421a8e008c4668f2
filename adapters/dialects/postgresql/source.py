"""PostgreSQL as a source: the parts of the dialect contract over one connection, for one thread; its survey.

The survey for `venus assess` only reads: the database's statistics, and samples by COPY, as a fill reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import (
    Numbering,
    OtherObject,
    SourceCapabilities,
    SourceDictionary,
    UncapturedTable,
)
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql.capture.capture import PostgresCapture
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import structure
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.installation.check import find_uncaptured_tables
from venus.adapters.dialects.postgresql.installation.installer import PostgresInstaller
from venus.adapters.dialects.postgresql.registry import PostgresRegistry
from venus.adapters.dialects.postgresql.sql import OWN_SCHEMA, quote, statement
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
    sample_tables,
)
from venus.config import Settings
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import Kind, TableSchema


def open_source(settings: Settings) -> PostgresSource:
    """Connect to the source in the settings."""
    url, columns = settings.source.url.get_secret_value(), ColumnChoice.from_settings(settings)
    return PostgresSource(url, columns=columns, log_bytes_max=settings.source.log_bytes_max)


class PostgresSource:
    """A PostgreSQL database whose changes are captured."""

    name = "postgresql"
    capabilities = SourceCapabilities(transactional_ddl=True)

    def __init__(
        self,
        url: str,
        *,
        columns: ColumnChoice = NO_CHOICE,
        monotonic: Callable[[], float] = time.monotonic,
        log_bytes_max: int = 0,
    ) -> None:
        self._connection = PostgresConnection(url, columns=columns)
        self._connection.log_bytes_max = log_bytes_max
        self.dictionary = PostgresSourceDictionary(self._connection)
        self.registry = PostgresRegistry(self._connection)
        self.installer = PostgresInstaller(self._connection, self.registry.invalidate)
        self.capture = PostgresCapture(self._connection, self.registry, monotonic)

    def close(self) -> None:
        self._connection.close()


class PostgresSourceDictionary(SourceDictionary):
    """The part of a source that reads its dictionary."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        connection = self._connection
        with connection.snapshot():
            known = {}
            if registry.is_installed(connection):
                known = {
                    (t.schema.namespace, t.schema.name): t.schema
                    for t, _ in registry.read_registered_tables(connection)
                }
            rows = dictionary.choose_tables(dictionary.read_all_tables(connection), include, exclude)
            found = []
            for table in dictionary.read_tables(connection, rows):
                schema = known.get((table.namespace, table.name))
                if table.key and not table.unsupported and table.kind != "f":
                    found.append(table.to_schema(schema.table_id if schema else 0, schema.version if schema else 1))
        return found

    def read_table_names(self) -> list[str]:
        return [f"{r[1]}.{r[2]}" for r in dictionary.application_tables(dictionary.read_all_tables(self._connection))]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        with self._connection.snapshot():
            return find_uncaptured_tables(self._connection, include, exclude)

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        return dictionary.find_unmatched_patterns(dictionary.read_all_tables(self._connection), patterns)

    def read_numberings(self) -> list[Numbering]:
        return structure.read_numberings(self._connection, self._read_namespaces())

    def read_other_objects(self) -> list[OtherObject]:
        return structure.read_other_objects(self._connection, self._read_namespaces())

    def _read_namespaces(self) -> list[str]:
        known = registry.read_registered_tables(self._connection) if registry.is_installed(self._connection) else []
        return sorted({t.schema.namespace for t, _ in known} - {OWN_SCHEMA})


PACE = ReadingPace(row_us=0.4, value_us=0.15, kib_us=1.5, trigger_us=40.0, log_row_bytes=45)
#: A table with at least this many times as many rows as a sample is sampled across all of its blocks.
_SPREAD = 20


def survey(settings: Settings, request: SurveyRequest) -> Survey:
    """Survey the database in the settings, in one read-only snapshot."""
    url = settings.source.url.get_secret_value()
    columns = ColumnChoice.from_settings(settings)
    with (
        closing(PostgresConnection(url, application="venus assess", columns=columns)) as connection,
        connection.snapshot(),
    ):
        rows = dictionary.choose_tables(dictionary.read_all_tables(connection), request.include, request.exclude)
        tables = dictionary.read_tables(connection, rows)
        version, over_s, since_reset, counts = connection.row(statement("survey", "server"))
        sizes = _read_sizes(connection, tables, float(over_s), counts=bool(counts))
        if request.count_rows:
            sizes = [_count_rows(connection, table, size) for table, size in zip(tables, sizes, strict=True)]
        namespaces, by_name = sorted({t.namespace for t in tables}), {f"{t.namespace}.{t.name}": t for t in tables}
        return Survey(
            server=f"PostgreSQL {version}",
            pace=PACE,
            sizes=sample_tables(sizes, partial(_sample_table, connection, by_name, Sampler(request))),
            numberings=tuple(structure.read_numberings(connection, namespaces)),
            others=tuple(structure.read_other_objects(connection, namespaces)),
            unknown=tuple(_unknown_figures(sizes, since_reset=bool(since_reset), counts=bool(counts))),
            facts=tuple(_read_facts(connection, namespaces)),
            log_rates=LogRates(redo=float(connection.row(statement("survey", "wal"))[0])),
        )


def _read_facts(connection: PostgresConnection, namespaces: Seq[str]) -> list[SourceFact]:
    """Read the facts of an assessment: the role, the character set, stored code and invalid objects."""
    role, encoding = connection.row(statement("survey", "database"))
    places = {"namespaces": list(namespaces)}
    code, invalid = (connection.rows(statement("survey", block), places) for block in ("code", "invalid"))
    facts = [SourceFact(what="role", value=str(role)), SourceFact(what="character set", value=str(encoding))]
    return facts + code_facts(code, invalid)


def _read_sizes(
    connection: PostgresConnection, tables: Seq[PostgresTable], over_s: float, *, counts: bool
) -> list[TableSize]:
    oids = {"tables": [t.oid for t in tables]}
    found = {r[0]: r[1:] for r in connection.rows(statement("survey", "sizes"), oids)}
    attached: dict[int, list[str]] = {}
    for oid, trigger in connection.rows(statement("survey", "table_triggers"), oids):
        attached.setdefault(oid, []).append(trigger)
    sizes = []
    for table in tables:
        rows, known, data, indexes, changes = found[table.oid]
        sizes.append(
            TableSize(
                namespace=table.namespace,
                name=table.name,
                rows=max(0, round(rows)) if known else None,
                counted=False,
                data_bytes=int(data),
                index_bytes=int(indexes),
                changes=int(changes) if counts else None,
                over_s=over_s,
                attached=tuple(attached.get(table.oid, ())),
            )
        )
    return sizes


def _count_rows(connection: PostgresConnection, table: PostgresTable, size: TableSize) -> TableSize:
    if table.kind == "f":
        return size
    with _ignore_refusals(connection):
        rows = int(connection.row(statement("survey", "count", table=table.from_sql))[0])
        return replace(size, rows=rows, counted=True)
    return size


@contextmanager
def _ignore_refusals(connection: PostgresConnection) -> Iterator[None]:
    """Ignore the error if this role may not read a table: `check` reports such tables."""
    connection.run("SAVEPOINT tried")
    try:
        yield
    except DatabaseUnavailable:
        raise
    except SourceError:
        connection.run("ROLLBACK TO SAVEPOINT tried")


@dataclass(slots=True)
class _CopyCounter:
    """A destination of COPY that counts rows and bytes. Each row is one line, whatever its values contain."""

    rows: int = 0
    nbytes: int = 0

    def write(self, data: bytes, /) -> int:
        self.rows += data.count(b"\n")
        self.nbytes += len(data)
        return len(data)


def _sample_table(
    connection: PostgresConnection, tables: Mapping[str, PostgresTable], sampler: Sampler, size: TableSize
) -> TableSize:
    """Sample a table if this role may read its rows."""
    table = tables[size.qualified_name]
    if table.kind == "f":
        return size
    share = 100 * SAMPLE_ROWS / size.rows if size.rows else 100
    spread = f" TABLESAMPLE SYSTEM ({share:.6f})" if share < 100 / _SPREAD else ""
    text = statement("survey", "sample", table=table.from_sql, sample=spread, rows=str(SAMPLE_ROWS))

    def read_sample() -> tuple[int, int]:
        weight = _CopyCounter()
        connection.copy_out(text, weight)
        return weight.rows, weight.nbytes

    with _ignore_refusals(connection):
        size = replace(size, sample=sampler.take(read_sample))
        if (size.sample or size.counted) and (largest := _largest_query(table, spread, every=size.counted)):
            size = replace(size, largest_bytes=int(connection.row(largest)[0] or 0))
        return size
    return size


def _largest_query(table: PostgresTable, spread: str, *, every: bool) -> str:
    """Return the query for the size of the largest values, of all rows or of some; empty without such columns."""
    large = choose_large_columns(table.columns)
    if not large:
        return ""
    texts = [f"t.{quote(c.name)}" + ("" if c.type.kind is Kind.BYTES else "::text") for c in large]
    columns = ", ".join(quote(c.name) for c in large)
    some = statement("survey", "some_rows", columns=columns, table=table.from_sql, sample=spread, rows=str(SAMPLE_ROWS))
    lengths = ", ".join(f"max(octet_length({text}))" for text in texts)
    return statement("survey", "largest", lengths=lengths, rows=table.from_sql if every else some)


def _unknown_figures(sizes: Seq[TableSize], *, since_reset: bool, counts: bool) -> list[str]:
    """Return a sentence for each figure that the server does not know, with the remedy."""
    found = []
    if nameless := [size.qualified_name for size in sizes if size.rows is None]:
        names = ", ".join(nameless[:5]) + (" ..." if len(nameless) > 5 else "")
        found.append(f"rows of {names}: never analysed; run ANALYZE, or `venus assess --count-rows`")
    if not counts:
        found.append("change rate: track_counts is off")
    elif not since_reset:
        found.append(
            "change rate: the server does not report since when it counts; its start is assumed, so the true rate may"
            " be lower"
        )
    return found
