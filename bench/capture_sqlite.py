"""Cost of capture for a SQLite application, and how fast VENUS reads: rows/s, one process, one file in WAL mode.

Run it with `python bench/capture_sqlite.py [rows]`. The first table compares the application's own rates without and
with triggers; the second has the rates at which VENUS reads a fill and a burst of changes, and how long it holds
the lock.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from venus.adapters.dialects.sqlite.source import SqliteSource
from venus.model import BatchNo, BatchRecord, Epoch, Sequence

TABLE = """
CREATE TABLE student (id INTEGER PRIMARY KEY, name TEXT, address VARCHAR(80), sex CHAR(1), born DATE,
  fee DECIMAL(10, 2), seen DATETIME)
"""
INSERT = "INSERT INTO student VALUES (?, ?, ?, ?, ?, ?, ?)"
SINGLES = 2_000


def application(file: Path) -> sqlite3.Connection:
    """Open the file with the settings that an application uses."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def rows(first: int, count: int) -> list[tuple[object, ...]]:
    """Return rows with consecutive keys."""
    return [
        (n, f"student {n}", f"{n} Long Road, Some Town", "f", "1999-12-31", n % 10_000 / 100, "2026-11-20 10:00:00.123")
        for n in range(first, first + count)
    ]


def rate(count: int, work: Callable[[], object]) -> float:
    """Do the work once; return how many rows a second that was."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def bulk(app: sqlite3.Connection, work: Callable[[], object]) -> None:
    """Run `work` in one transaction of the application."""
    app.execute("BEGIN")
    work()
    app.execute("COMMIT")


def application_rates(file: Path, count: int, *, unique: bool, captured: bool) -> dict[str, float]:
    """Return the rows a second that an application writes in a new file, by kind of statement."""
    with closing(application(file)) as app:
        app.execute(TABLE)
        if unique:
            app.execute("CREATE UNIQUE INDEX names ON student (name)")
        if captured:
            with closing(SqliteSource(file)) as source:
                source.installer.install(["*"], [])
        data, more = rows(0, count), rows(count, SINGLES)
        return {
            "bulk insert": rate(count, lambda: bulk(app, lambda: app.executemany(INSERT, data))),
            "bulk update": rate(count, lambda: bulk(app, lambda: app.execute("UPDATE student SET fee = fee + 1"))),
            "bulk delete": rate(count, lambda: bulk(app, lambda: app.execute("DELETE FROM student WHERE id > 0"))),
            "1-row transactions": rate(SINGLES, lambda: [app.execute(INSERT, row) for row in more]),
        }


def read_rates(file: Path, count: int) -> dict[str, float]:
    """Return the rates at which VENUS reads existing rows, changes and deletions, with its local transactions."""
    with closing(application(file)) as app:
        app.execute(TABLE)
        bulk(app, lambda: app.executemany(INSERT, rows(0, count)))
        with closing(SqliteSource(file)) as source:
            source.installer.install(["*"], [])
            found = {"fill": rate(count, lambda: drain(source))}
            bulk(app, lambda: app.execute("UPDATE student SET fee = fee + 1"))
            found["changes"] = rate(count, lambda: drain(source))
            bulk(app, lambda: app.execute("DELETE FROM student"))
            found["deletions"] = rate(count, lambda: drain(source))
            return found


def drain(source: SqliteSource) -> None:
    """Read and commit all cuts of the source."""
    source.registry.raise_epoch(Epoch(1))
    while True:
        fills = [t.fill for t in source.registry.read_registered_tables() if not t.fill.done]
        cut = source.capture.open_cut(fills[:1])
        if cut is None:
            return
        count = sum(s.count for s in cut.read_sections(rows_max=5000, bytes_max=1 << 20))
        after = []
        for fill in fills[:1]:
            chunk, filled = cut.read_fill_chunk(fill, rows_max=20_000, bytes_max=1 << 20)
            count += sum(s.count for s in chunk)
            after.append(filled)
        state = source.registry.read_state()
        record = BatchRecord(
            batch_no=BatchNo(state.last_batch + 1),
            epoch=state.epoch,
            first_sequence=state.next_sequence,
            last_sequence=Sequence(state.next_sequence + count - 1),
            digest=0,
        )
        cut.commit(Epoch(1), [record], after, BatchNo(state.last_batch))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        for unique in (False, True):
            name = "one more UNIQUE index" if unique else "primary key only"
            plain = application_rates(Path(folder, f"plain{unique}.db"), count, unique=unique, captured=False)
            taken = application_rates(Path(folder, f"taken{unique}.db"), count, unique=unique, captured=True)
            print(f"application, {name}: rows/s without and with capture ({count:,} rows)")
            for what, before in plain.items():
                print(f"  {what:20} {before:12,.0f} {taken[what]:12,.0f}   {taken[what] / before:.2f}")
        print("VENUS reads: rows/s into packed sections, local transactions included")
        for what, per_second in read_rates(Path(folder, "read.db"), count).items():
            print(f"  {what:20} {per_second:12,.0f}")


if __name__ == "__main__":
    main()
