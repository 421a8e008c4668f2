"""F3: rows a second into a MariaDB and a SQLite target, beside bare statements that write the same rows.

Two ways are measured, each over one connection: a load of the table from the broker's full data, and increments that
insert the rows. The peers are multi-row INSERT and LOAD DATA for MariaDB, and executemany with equal transactions for
SQLite.
"""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures.figure import Figure, FigureResult, times_peer
from tests.support.brokers.feed import INT, TEXT, Change, Feed, column, settings_for, table
from tests.support.brokers.real_broker import RealBroker
from tests.support.databases.mariadb import DEFAULT_MODE, MariaServer, running_mariadb
from venus.adapters.targets.relational.apply_loop import ApplyReport
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.load_plan import SPLITS_PER_WORKER
from venus.config import Settings
from venus.model import TableSchema
from venus.process.runners import LocalRunner

GOAL = 0.6
STATEMENT_ROWS = 1_000
CUT_ROWS = 10_000
STUDENTS = table(1, "students", column(1, "id", INT), column(2, "name", TEXT), column(3, "class", TEXT))
_CREATE = "CREATE TABLE {} (id bigint PRIMARY KEY, name longtext, class longtext) CHARACTER SET utf8mb4"


def make_rows(first: int, rows: int) -> list[tuple[str, str, str]]:
    """Return the rows that VENUS and its peers write."""
    return [(str(n), f"student {n}", f"class {n % 100}") for n in range(first, first + rows)]


def measure_rate(rows: int, work: Callable[[], object]) -> float:
    """Return rows a second."""
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def insert_bare(server: MariaServer, database: str, rows: Sequence[tuple[str, str, str]]) -> None:
    """Insert by multi-row statements, in transactions as large as those of VENUS."""
    server.execute(_CREATE.format("inserted"), database)
    connection = server.connect(database)
    cursor = connection.cursor()
    for at in range(0, len(rows), STATEMENT_ROWS):
        values = ",".join(f"({n},'{name}','{group}')" for n, name, group in rows[at : at + STATEMENT_ROWS])
        cursor.execute(f"INSERT INTO inserted VALUES {values}")
        if (at + STATEMENT_ROWS) % CUT_ROWS == 0:
            connection.commit()
    connection.commit()
    connection.close()


def load_data(server: MariaServer, database: str, table: str, files: Sequence[Path]) -> None:
    """Load files by LOAD DATA, one transaction per file."""
    server.execute(_CREATE.format(table), database)
    connection = server.connect(database, local_infile=True, autocommit=True)
    for file in files:
        connection.cursor().execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {table} CHARACTER SET utf8mb4")
    connection.close()


def write_files(folder: Path, rows: Sequence[tuple[str, str, str]], most: int) -> list[Path]:
    """Write rows to files of at most `most` rows each."""
    files = []
    for at in range(0, len(rows), most):
        files.append(folder / f"rows-{most}-{at}")
        files[-1].write_text("".join("\t".join(row) + "\n" for row in rows[at : at + most]))
    return files


@contextmanager
def open_site(folder: Path) -> Iterator[tuple[MariaServer, str, Feed]]:
    """Start a MariaDB server, and a broker that knows the table."""
    with running_mariadb(DEFAULT_MODE, "--local-infile=1") as server:
        real = RealBroker(folder)
        try:
            feed = Feed(real)
            feed.describe(STUDENTS)
            yield server, server.create_database(), feed
        finally:
            real.stop()


def write_cuts(feed: Feed, schema: TableSchema, rows: Sequence[tuple[str, str, str]]) -> None:
    """Commit the rows at the broker as inserts, in cuts of `CUT_ROWS` rows."""
    for at in range(0, len(rows), CUT_ROWS):
        changes = [Change(schema.table_id, row[:1], row[1:]) for row in rows[at : at + CUT_ROWS]]
        feed.cut(*changes, inserts_only=True)


def insert_many(file: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert by executemany into a file like a target's, in transactions as large as those of VENUS."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE inserted (id INTEGER PRIMARY KEY, name TEXT, class TEXT) STRICT")
        for at in range(0, len(rows), CUT_ROWS):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO inserted VALUES (?, ?, ?)", rows[at : at + CUT_ROWS])
            connection.execute("COMMIT")


@dataclass(frozen=True, slots=True)
class BareRate:
    """Rate of bare statements in rows a second, and the name of these statements."""

    rate: float
    said: str


@dataclass(slots=True)
class MeasuredTarget:
    """A target with the rates that VENUS reaches there and those of bare statements."""

    product: str
    url: str
    broker: str
    load_peer: BareRate
    stream_peer: BareRate
    load: float = 0.0
    stream: float = 0.0

    @property
    def settings(self) -> Settings:
        """The configuration of VENUS for this target."""
        return settings_for(self.broker, {"m": self.url})

    def follow(self, goal: int) -> None:
        """Apply the broker's increments until the offset `goal` is reached."""
        stop = threading.Event()

        def on_report(report: ApplyReport) -> None:
            if report.offset >= goal:
                stop.set()

        run_apply(self.settings, "m", stop, on_report)

    def results(self, rows: int) -> list[FigureResult]:
        """Return the result lines for this target."""
        load = f"{self.product}: load of {rows:,} rows, one connection"
        stream = f"{self.product}: increments of {rows:,} new rows, cuts of {CUT_ROWS:,}"
        return [
            times_peer(load, self.load, self.load_peer.rate, GOAL, said=self.load_peer.said),
            times_peer(stream, self.stream, self.stream_peer.rate, GOAL, said=self.stream_peer.said),
        ]


def measure_maria(
    server: MariaServer, database: str, folder: Path, rows: Sequence[tuple[str, str, str]]
) -> tuple[BareRate, BareRate]:
    """Return the rate of INSERT or LOAD DATA without VENUS, whichever is faster, for a load and for increments."""
    bare = measure_rate(len(rows), lambda: insert_bare(server, database, rows))
    found = []
    for name, most in (("loaded", len(rows) // SPLITS_PER_WORKER), ("increments", CUT_ROWS)):
        files = write_files(folder, rows, most)
        loaded = measure_rate(len(rows), partial(load_data, server, database, name, files))
        best, said = max((bare, "multi-row INSERT"), (loaded, f"LOAD DATA of {most:,} rows"))
        found.append(BareRate(best, f"{said}; the other {min(bare, loaded):,.0f}, better"))
    return found[0], found[1]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure F3 and return its lines."""
    count = 100_000 if quick else 1_200_000
    rows = make_rows(0, count)
    with tempfile.TemporaryDirectory() as name, open_site(Path(name)) as (server, url, feed):
        database, folder = url.rpartition("/")[2], Path(name)
        numbered = [(int(number), *rest) for number, *rest in rows]
        many = BareRate(measure_rate(count, lambda: insert_many(folder / "bare.db", numbered)), "executemany")
        targets = [
            MeasuredTarget("MariaDB", url, feed.broker.address, *measure_maria(server, database, folder, rows)),
            MeasuredTarget("SQLite", f"sqlite:///{name}/copy.db", feed.broker.address, many, many),
        ]
        write_cuts(feed, STUDENTS, rows)
        for target in targets:
            target.load = measure_rate(count, partial(full_sync, target.settings, "m", runner=LocalRunner(1)))
        write_cuts(feed, STUDENTS, make_rows(count, count))
        for target in targets:
            target.stream = measure_rate(count, partial(target.follow, feed.broker.next_offset))
    return [result for target in targets for result in target.results(count)]


FIGURE = Figure(id="F3", title="rows into MariaDB and SQLite", measure=run)
