"""Snapshots of a PostgreSQL source while the compared table is truncated."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg2
import pytest

from tests.support.databases.postgres import libpq
from tests.support.pipelines.end_to_end import run_at
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.adapters.dialects.postgresql.verify import PostgresSourceReader, open_reader
from venus.adapters.dialects.verify_contract import Slice, Subject
from venus.config import Settings

pytestmark = pytest.mark.integration


def reading(database: str) -> tuple[PostgresSourceReader, Subject]:
    run_at(database, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item SELECT generate_series(1, 50)")
    with closing(PostgresSource(database)) as source:
        source.installer.install(["*"], [])
    reader = open_reader(Settings(source={"url": database}))  # type: ignore[arg-type]
    schema = next(t.schema for t in reader.read_tables() if t.schema.name == "item")
    run_at(database, "DELETE FROM venus.l_00001; DELETE FROM venus.l_00002")
    return reader, Subject(schema=schema)


def test_a_table_is_not_truncated_during_its_comparison(database: str) -> None:
    reader, subject = reading(database)
    with closing(reader):
        reader.begin(subject)
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            run_at(database, "SET lock_timeout = '200ms'; TRUNCATE item")
        assert sum(n for n, _ in reader.read_buckets(subject, Slice()).values()) == 50
        reader.end()
        run_at(database, "TRUNCATE item")


def test_rows_removed_by_a_truncate_are_recognised_by_its_log_entry(database: str) -> None:
    """TRUNCATE is not MVCC-safe: an older snapshot sees the table empty, but does not see the log entry."""
    reader, subject = reading(database)
    with closing(reader), closing(psycopg2.connect(libpq(database))) as other:
        other.cursor().execute("TRUNCATE item")
        begun = threading.Thread(target=reader.begin, args=(subject,), daemon=True)
        begun.start()
        begun.join(1.0)
        other.commit()
        begun.join(60)

        assert reader.read_buckets(subject, Slice()) == {}
        assert reader.find_waiting_keys(subject, [("7",)]) == {("7",)}
