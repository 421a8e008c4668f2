"""`venus assess` at a SQLite file: counts rows and adds up pages; SQLite counts no changes. Reads only."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from venus.adapters.dialects.columns import ColumnChoice
from venus.adapters.dialects.sqlite import structure
from venus.adapters.dialects.sqlite.connection import connect, file_of, quoted, read_transaction
from venus.adapters.dialects.sqlite.dictionary import NAMESPACE, Dictionary, chosen, table_names
from venus.adapters.dialects.sqlite.statements import statement
from venus.adapters.dialects.surveying import SAMPLE_ROWS, Asked, Pace, Sampler, Size, Survey, largest_first, weighed
from venus.config import Settings

PACE = Pace(row_us=1.5, value_us=0.55, kib_us=4.0, trigger_us=25.0, log_row_bytes=15)
#: The pages of each table are added up in files up to this size only, because that reads the whole file.
PAGES_BYTES_MAX = 1 << 30
NO_CHANGES = "change rate: SQLite counts no changes; measure one working day, or ask the developers of the application"


def survey(settings: Settings, asked: Asked) -> Survey:
    """Survey the file in the settings."""
    file = file_of(settings.source.url.get_secret_value())
    with closing(connect(file)) as connection, read_transaction(connection, file):
        names = chosen(table_names(connection)[0], asked.include, asked.exclude)
        pages, unknown = _pages(connection, file)
        sizes = [_size(connection, name, pages) for name in names]
        sampler = Sampler(asked)
        sampled = {size.name: _sampled(connection, size, sampler) for size in largest_first(sizes)}
        dictionary = Dictionary(connection, ColumnChoice.of(settings))
        return Survey(
            server=f"SQLite {sqlite3.sqlite_version}",
            pace=PACE,
            sizes=tuple(sampled[size.name] for size in sizes),
            numberings=tuple(structure.numberings(connection, [dictionary.table(name).schema for name in names])),
            others=tuple(structure.others(connection)),
            unknown=(*unknown, NO_CHANGES),
        )


def _pages(connection: sqlite3.Connection, file: Path) -> tuple[dict[tuple[str, str], int], list[str]]:
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


def _size(connection: sqlite3.Connection, name: str, pages: dict[tuple[str, str], int]) -> Size:
    rows = connection.execute(statement("survey", "count", table=quoted(name))).fetchone()[0]
    return Size(
        namespace=NAMESPACE, name=name, rows=int(rows), counted=True, data_bytes=pages.get((name, "table")),
        index_bytes=pages.get((name, "index"), 0) if pages else None,
    )  # fmt: skip


def _sampled(connection: sqlite3.Connection, size: Size, sampler: Sampler) -> Size:
    text = statement("survey", "sample", table=quoted(size.name), rows=str(SAMPLE_ROWS))
    return replace(size, sample=sampler.take(lambda: weighed(connection.execute(text))))
