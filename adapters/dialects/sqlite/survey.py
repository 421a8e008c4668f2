"""`venus assess` at a SQLite file: counts rows and adds up pages; SQLite counts no changes. Reads only."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.sqlite.connection import connect, parse_file_url, quote, read_transaction
from venus.adapters.dialects.sqlite.dictionary import structure
from venus.adapters.dialects.sqlite.dictionary.tables import (
    NAMESPACE,
    SqliteDictionary,
    choose_tables,
    read_table_names,
)
from venus.adapters.dialects.sqlite.sql import statement
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

PACE = ReadingPace(row_us=1.5, value_us=0.55, kib_us=4.0, trigger_us=25.0, log_row_bytes=15)
#: The pages of each table are added up in files up to this size only, because that reads the whole file.
PAGES_BYTES_MAX = 1 << 30
NO_CHANGES = "change rate: SQLite counts no changes; measure one working day, or ask the developers of the application"


def survey(settings: Settings, request: SurveyRequest) -> Survey:
    """Survey the file in the settings."""
    file = parse_file_url(settings.source.url.get_secret_value())
    with closing(connect(file)) as connection, read_transaction(connection, file):
        names = choose_tables(read_table_names(connection)[0], request.include, request.exclude)
        pages, unknown = _read_page_sizes(connection, file)
        sizes = [_table_size(connection, name, pages) for name in names]
        sampler = Sampler(request)
        sampled = {size.name: _sample_table(connection, size, sampler) for size in largest_first(sizes)}
        dictionary = SqliteDictionary(connection, ColumnChoice.from_settings(settings))
        return Survey(
            server=f"SQLite {sqlite3.sqlite_version}",
            pace=PACE,
            sizes=tuple(sampled[size.name] for size in sizes),
            numberings=tuple(
                structure.read_numberings(connection, [dictionary.read_table(name).schema for name in names])
            ),
            others=tuple(structure.read_other_objects(connection)),
            unknown=(*unknown, NO_CHANGES),
        )


def _read_page_sizes(connection: sqlite3.Connection, file: Path) -> tuple[dict[tuple[str, str], int], list[str]]:
    """Return the bytes of tables and indexes by (table, type)."""
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


def _table_size(connection: sqlite3.Connection, name: str, pages: dict[tuple[str, str], int]) -> TableSize:
    rows = connection.execute(statement("survey", "count", table=quote(name))).fetchone()[0]
    return TableSize(
        namespace=NAMESPACE, name=name, rows=int(rows), counted=True, data_bytes=pages.get((name, "table")),
        index_bytes=pages.get((name, "index"), 0) if pages else None,
    )  # fmt: skip


def _sample_table(connection: sqlite3.Connection, size: TableSize, sampler: Sampler) -> TableSize:
    text = statement("survey", "sample", table=quote(size.name), rows=str(SAMPLE_ROWS))
    return replace(size, sample=sampler.take(lambda: measure_rows(connection.execute(text))))
