"""The survey of `venus assess`: optimizer statistics, changes since then, segments, a small sample. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.dictionary import structure
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary, open_dictionary
from venus.adapters.dialects.oracle.dictionary.tables import ListedTable, OracleTable, choose_tables
from venus.adapters.dialects.oracle.dictionary.types import LONGS
from venus.adapters.dialects.oracle.names import quote
from venus.adapters.dialects.oracle.session.column_choice import OracleColumnChoice
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.driver import parse_driver_url
from venus.adapters.dialects.oracle.sql import statement
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
from venus.errors import SourceError
from venus.model import TableSchema

#: Measured on the stand-in (docs/reference/oracle-evidence.md), not on an Oracle.
PACE = ReadingPace(row_us=9.0, value_us=1.2, kib_us=4.0, trigger_us=80.0, log_row_bytes=110)
NO_ORACLE_MEASURED = "pace of reading and cost of triggers: measured on a stand-in for Oracle, not on an Oracle"
_FETCH_ROWS = 500
#: A sample is spread over all blocks of a table that has at least this multiple of its rows.
_SPREAD = 20


def survey(settings: Settings, asked: SurveyRequest) -> Survey:
    """Survey the database that the settings name."""
    driver, options = parse_driver_url(settings.source.url.get_secret_value())
    with closing(OracleSession(driver)) as session:
        columns = OracleColumnChoice(settings.source.columns.include, settings.source.columns.exclude)
        _, dictionary = open_dictionary(session, options.schemas, settings.source.type_map, columns)
        user = dictionary.user
        listed = choose_tables(dictionary.list_tables(), asked.include, asked.exclude)
        figures = {owner: _read_figures(session, owner, user) for owner in dictionary.schemas}
        sizes = [_table_size(at, figures[at.owner]) for at in listed]
        if asked.count_rows:
            sizes = [_count_rows(session, at, size) for at, size in zip(listed, sizes, strict=True)]
        return Survey(
            server=str(session.fetch_row(statement("survey", "banner"))[0]),
            pace=PACE,
            sizes=tuple(_sample_tables(session, dictionary, listed, sizes, Sampler(asked))),
            numberings=tuple(
                structure.read_numberings(session, dictionary.schemas, dictionary.read_structure, dictionary.is_own)
            ),
            others=tuple(structure.read_other_objects(session, dictionary.schemas, dictionary.is_own)),
            unknown=tuple(_unknown_figures(sizes, figures, user)),
        )


@dataclass(frozen=True, slots=True)
class _SchemaFigures:
    """The dictionary's figures about a schema, by table."""

    statistics: Mapping[str, Row]
    changes: Mapping[str, tuple[int, int, int]]
    #: By (table, TABLE, INDEX or LOB); None if this user may not see them.
    segments: Mapping[tuple[str, str], int] | None = field(default=None)


def _read_figures(session: OracleSession, owner: str, user: str) -> _SchemaFigures:
    return _SchemaFigures(*_read_statistics(session, owner), _read_segment_sizes(session, owner, user))


def _read_statistics(
    session: OracleSession, owner: str
) -> tuple[Mapping[str, Row], Mapping[str, tuple[int, int, int]]]:
    """Return the statistics of a schema's tables, and the changes since they were gathered."""
    binds = {"owner": owner}
    statistics = {str(r[0]): r[1:] for r in session.fetch_rows(statement("survey", "sizes"), binds)}
    changes = {
        str(name): (int(inserts or 0), int(updates or 0), int(deletes or 0))
        for name, inserts, updates, deletes in session.fetch_rows(statement("survey", "modifications"), binds)
    }
    return statistics, changes


def read_row_counts(session: OracleSession, tables: Seq[TableSchema]) -> dict[int, int]:
    """Return, by table_id, the approximate row count of each table that has statistics."""
    counts = {owner: _read_schema_row_counts(session, owner) for owner in {t.namespace for t in tables}}
    return {t.table_id: counts[t.namespace][t.name] for t in tables if t.name in counts[t.namespace]}


def _read_schema_row_counts(session: OracleSession, owner: str) -> dict[str, int]:
    statistics, changes = _read_statistics(session, owner)
    found = {name: (rows, changes.get(name, (0, 0, 0))) for name, (rows, *_) in statistics.items()}
    return {
        name: max(0, int(rows) + plus - minus) for name, (rows, (plus, _, minus)) in found.items() if rows is not None
    }


def _read_segment_sizes(session: OracleSession, owner: str, user: str) -> Mapping[tuple[str, str], int] | None:
    """Return the sizes of segments from the view of all segments, which needs a grant, else from the user's own."""
    for view in ("segments_of_anybody", *(["segments_of_own"] if owner == user else [])):
        text = statement("survey", "segments", segments=statement("survey", view))
        try:
            return {(str(t), str(kind)): int(n) for t, kind, n in session.fetch_rows(text, {"owner": owner})}
        except (SourceError, SchemaChanged):
            session.rollback()
    return None


def _table_size(at: ListedTable, figures: _SchemaFigures) -> TableSize:
    rows, age_s = figures.statistics.get(at.name, (None, None))
    changes = figures.changes.get(at.name, (0, 0, 0))
    segments = figures.segments
    large = segments.get((at.name, "LOB"), 0) if segments is not None else 0
    return TableSize(
        namespace=at.owner,
        name=at.name,
        rows=None if rows is None else max(0, int(rows) + changes[0] - changes[2]),
        counted=False,
        data_bytes=None if segments is None else segments.get((at.name, "TABLE"), 0) + large,
        index_bytes=None if segments is None else segments.get((at.name, "INDEX"), 0),
        large_bytes=large,
        changes=None if age_s is None else sum(changes),
        over_s=float(age_s or 0),
    )


def _count_rows(session: OracleSession, at: ListedTable, size: TableSize) -> TableSize:
    table = f"{quote(at.owner)}.{quote(at.name)}"
    try:
        rows = int(session.fetch_row(statement("survey", "count", table=table))[0])
    except (SourceError, SchemaChanged):  # the check reports tables that may not be read
        return size
    return replace(size, rows=rows, counted=True)


def _sample_tables(
    session: OracleSession,
    dictionary: OracleDictionary,
    listed: Seq[ListedTable],
    sizes: Seq[TableSize],
    sampler: Sampler,
) -> list[TableSize]:
    places = {f"{at.owner}.{at.name}": at for at in listed}
    found = {}
    for size in largest_first(sizes):
        found[size.qualified] = size
        text = _sample_query(dictionary.read_table(places[size.qualified]), size.rows)
        if not text:
            continue
        try:
            sample = sampler.take(lambda text=text: measure_rows(_stream_rows(session, text)))  # type: ignore[misc]
            found[size.qualified] = replace(size, sample=sample)
        except (SourceError, SchemaChanged):  # the check reports tables that may not be read
            session.rollback()
    return [found[size.qualified] for size in sizes]


def _sample_query(table: OracleTable, rows: int | None) -> str:
    """Return the query of a sample, which selects like a fill but omits large values: their segments have a size."""
    columns = [
        f"{reading.expression(quote(name))} AS C{number}"
        for number, (name, reading) in enumerate(table.readings.items())
        if not reading.mapping.located and reading.declared.data_type not in LONGS
    ]
    if not columns:
        return ""
    share = 100 * SAMPLE_ROWS / rows if rows else 100
    spread = f" SAMPLE BLOCK ({share:.6f})" if share < 100 / _SPREAD else ""
    return statement(
        "survey", "sample", columns=", ".join(columns), table=table.keyed.sql, sample=spread, rows=str(SAMPLE_ROWS)
    )


def _stream_rows(session: OracleSession, text: str) -> Iterator[Row]:
    for piece in session.stream(text, None, _FETCH_ROWS):
        yield from piece


def _unknown_figures(sizes: Seq[TableSize], figures: Mapping[str, _SchemaFigures], user: str) -> Iterator[str]:
    yield NO_ORACLE_MEASURED
    for owner, found in figures.items():
        if found.segments is None:
            yield f"size of the tables of {owner}: GRANT SELECT ON DBA_SEGMENTS TO {quote(user)};"
    bare = [size for size in sizes if size.changes is None]
    if bare:
        names = ", ".join(size.qualified for size in bare[:5]) + (" ..." if len(bare) > 5 else "")
        gather = f"EXEC DBMS_STATS.GATHER_TABLE_STATS('{bare[0].namespace}', '{bare[0].name}')"
        yield f"rows and change rate of {names}: no statistics; {gather}, or `venus assess --count-rows` for the rows"
