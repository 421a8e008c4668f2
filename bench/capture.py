"""Capture at a PostgreSQL source: the paper's table 5, and the cost of triggers for the application.

`python -m bench.capture [rounds]`. Table 5 of the paper has 100,000 inserts, updates and deletes of one table. The
time runs from the application's commit until every section of the cut has been read and the cut is committed at the
source (the paper gives about 18 s for each, on its own hardware). The cost of triggers is the ratio of two medians,
measured alternately on twin tables, one of them captured, so that both see the same noise. One-row transactions are
measured twice: with the disk as it is, and with a commit_delay of one millisecond, as long as a flush takes on a disk
without a volatile cache. The delay does not change what the triggers cost, only their share of the time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg2
import psycopg2.extensions
from rich.console import Console
from rich.table import Table

from tests.support.databases.postgres import libpq, running_server
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.model import BatchNo, BatchRecord, Epoch, Sequence

ROWS = 100_000
STATEMENT_ROWS = 1000
ONE_ROW_TRANSACTIONS = 150
#: Microseconds by which PostgreSQL delays the flush of a commit.
SLOW_DISK_US = 1000
COLUMNS = "id int PRIMARY KEY, name text NOT NULL, class text NOT NULL, address text NOT NULL"
VALUES = "'student ' || i, 'class ' || i % 100, repeat('address ', 8)"
#: VENUS, table 5.
PAPER_S = {"insert": 18.161, "update": 18.084, "delete": 18.358}

Cursor = psycopg2.extensions.cursor


def statements(table: str, kind: str, first: int, last: int) -> str:
    """Return one SQL statement of this kind that changes the rows from `first` to `last`."""
    return {
        "insert": f"INSERT INTO {table} SELECT i, {VALUES} FROM generate_series({first}, {last}) i",
        "update": f"UPDATE {table} SET class = class || '+' WHERE id BETWEEN {first} AND {last}",
        "delete": f"DELETE FROM {table} WHERE id BETWEEN {first} AND {last}",
    }[kind]


def statements_of_all_rows(table: str, kind: str, size: int) -> Iterator[str]:
    """Yield the statements that change all rows, `size` at once."""
    for first in range(1, ROWS + 1, size):
        yield statements(table, kind, first, first + size - 1)


class Drain:
    """Callable that reads and commits one cut per call, like the upper adapter but without a broker."""

    def __init__(self, source: PostgresSource) -> None:
        self.source = source
        state = source.registry.raise_epoch(Epoch(source.registry.read_state().epoch + 1))
        self.epoch, self.batch_no, self.sequence = state.epoch, int(state.last_batch) + 1, int(state.next_sequence)

    def __call__(self) -> int:
        """Read and commit one cut; return the number of its changes."""
        cut = self.source.capture.open_cut([])
        if cut is None:
            return 0
        records = []
        for section in cut.read_sections(rows_max=5000, bytes_max=1 << 20):
            records.append(
                BatchRecord(
                    batch_no=BatchNo(self.batch_no),
                    epoch=self.epoch,
                    first_sequence=Sequence(self.sequence),
                    last_sequence=Sequence(self.sequence + section.count - 1),
                    digest=self.batch_no,
                )
            )
            self.batch_no += 1
            self.sequence += section.count
        cut.commit(self.epoch, records, [], BatchNo(self.batch_no - 10))
        return sum(r.last_sequence - r.first_sequence + 1 for r in records)


def measure_time(action: Callable[[], object]) -> float:
    """Return how many seconds an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def table_5(cursor: Cursor, drain: Drain, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Measure the seconds from commit until the cut is read, for one statement and for many in a transaction."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, size in (("one statement", ROWS), ("1000-row statements", STATEMENT_ROWS)):
            for kind in ("insert", "update", "delete"):
                cursor.execute("BEGIN")
                for statement in statements_of_all_rows("captured", kind, size):
                    cursor.execute(statement)
                cursor.execute("COMMIT")
                began = time.perf_counter()
                count = drain()
                found[name, kind].append(time.perf_counter() - began)
                assert count == ROWS, count
    return found


def bulk_cost(cursor: Cursor, drain: Drain, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Measure one statement over all rows, alternately on a plain table and on a captured one."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(rounds):
        for kind in ("insert", "update", "delete"):
            tables = ("plain", "captured") if number % 2 else ("captured", "plain")
            for table in tables:
                text = statements(table, kind, 1, ROWS)
                found[kind, table].append(measure_time(lambda text=text: cursor.execute(text)))  # type: ignore[misc]
            drain()
    return found


def one_row_cost(cursor: Cursor, drain: Drain, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Measure transactions of one row, each with its own fsync, alternately on a plain and a captured table."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(rounds * ONE_ROW_TRANSACTIONS):
        tables = ("plain", "captured") if number % 2 else ("captured", "plain")
        for kind in ("insert", "update", "delete"):
            for table in tables:
                text = statements(table, kind, number + 1, number + 1)
                found[kind, table].append(measure_time(lambda text=text: cursor.execute(text)))  # type: ignore[misc]
        if number % 50 == 0:
            drain()
    drain()
    return found


@contextmanager
def start_workplace() -> Iterator[tuple[Cursor, Drain]]:
    """Start a PostgreSQL server with a plain and a captured table; yield a cursor and a reader of cuts."""
    with TemporaryDirectory(prefix="venus-bench-") as home, running_server(Path(home) / "data") as server:
        url = server.create_database()
        with closing(psycopg2.connect(libpq(url))) as connection, closing(PostgresSource(url)) as source:
            connection.autocommit = True
            cursor = connection.cursor()
            for table in ("plain", "captured"):
                cursor.execute(f"CREATE TABLE {table} ({COLUMNS})")
            source.installer.install(["captured"], [])
            yield cursor, Drain(source)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    console = Console()
    with start_workplace() as (cursor, drain):
        fast = table_5(cursor, drain, rounds)
        bulk = bulk_cost(cursor, drain, rounds)
        single = one_row_cost(cursor, drain, rounds)
        cursor.execute(f"SET commit_siblings = 0; SET commit_delay = {SLOW_DISK_US}")
        slow = one_row_cost(cursor, drain, rounds)
    shown = Table("100,000 changes", "as", "s", "rows/s", "paper, s")
    for (name, kind), seconds in fast.items():
        middle = statistics.median(seconds)
        shown.add_row(kind, name, f"{middle:.2f}", f"{ROWS / middle:,.0f}", f"{PAPER_S[kind]:.2f}")
    console.print(shown)
    shown = Table("application", "statement", "plain", "captured", "rate kept")
    for found, what in ((bulk, "100,000 rows"), (single, "one row + fsync"), (slow, "one row + fsync + 1 ms")):
        for kind in ("insert", "update", "delete"):
            plain, captured = (statistics.median(found[kind, t]) for t in ("plain", "captured"))
            shown.add_row(what, kind, f"{plain * 1e3:.3f} ms", f"{captured * 1e3:.3f} ms", f"{plain / captured:.2f}")
    console.print(shown)


if __name__ == "__main__":
    main()
