"""F3: rows a second into a MariaDB target, beside bare multi-row INSERT and LOAD DATA of the same rows in the same run.

One connection each: the load of a table from the broker's full data, and increments that insert the same rows.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.figures.figure import Figure, FigureResult, times_peer
from tests.support.brokers.feed import INT, TEXT, Change, Feed, column, settings_for, table
from tests.support.brokers.real_broker import RealBroker
from tests.support.databases.mariadb import DEFAULT_MODE, MariaServer, running_mariadb
from venus.adapters.targets.relational.apply_loop import ApplyReport
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.full_sync import full_sync
from venus.model import TableSchema
from venus.process.runners import LocalRunner

GOAL = 0.6
STATEMENT_ROWS = 1_000
CUT_ROWS = 10_000
STUDENTS = table(1, "students", column(1, "id", INT), column(2, "name", TEXT), column(3, "class", TEXT))
_CREATE = "CREATE TABLE {} (id bigint PRIMARY KEY, name longtext, class longtext) CHARACTER SET utf8mb4"


def make_rows(first: int, rows: int) -> list[tuple[str, str, str]]:
    """Return the same rows for everyone."""
    return [(str(n), f"student {n}", f"class {n % 100}") for n in range(first, first + rows)]


def measure_rate(rows: int, work: Callable[[], object]) -> float:
    """Return rows a second."""
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def insert_bare(server: MariaServer, database: str, rows: Sequence[tuple[str, str, str]]) -> None:
    """Insert by statements of many rows, a transaction for as many as VENUS has in one."""
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


def load_data(server: MariaServer, database: str, file: Path) -> None:
    """Load a file that is there already."""
    server.execute(_CREATE.format("loaded"), database)
    connection = server.connect(database, local_infile=True, autocommit=True)
    connection.cursor().execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE loaded CHARACTER SET utf8mb4")
    connection.close()


@contextmanager
def open_site(folder: Path) -> Iterator[tuple[MariaServer, str, Feed]]:
    """Start a server and a broker that describes the table."""
    with running_mariadb(DEFAULT_MODE, "--local-infile=1") as server:
        real = RealBroker(folder)
        try:
            feed = Feed(real)
            feed.describe(STUDENTS)
            yield server, server.create_database(), feed
        finally:
            real.stop()


def write_cuts(feed: Feed, schema: TableSchema, rows: Sequence[tuple[str, str, str]]) -> None:
    """Commit the rows in cuts of new rows."""
    for at in range(0, len(rows), CUT_ROWS):
        changes = [Change(schema.table_id, row[:1], row[1:]) for row in rows[at : at + CUT_ROWS]]
        feed.cut(*changes, inserts_only=True)


def follow(settings_url: tuple[str, str], goal: int) -> None:
    """Apply everything below an offset."""
    broker, url = settings_url
    stop = threading.Event()

    def look(report: ApplyReport) -> None:
        if report.offset >= goal:
            stop.set()

    run_apply(settings_for(broker, {"m": url}), "m", stop, look)


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure."""
    count = 100_000 if quick else 400_000
    rows = make_rows(0, count)
    with tempfile.TemporaryDirectory() as name, open_site(Path(name)) as (server, url, feed):
        database, broker = url.rpartition("/")[2], feed.broker.address
        file = Path(name) / "rows"
        file.write_text("".join("\t".join(row) + "\n" for row in rows))
        bare = measure_rate(count, lambda: insert_bare(server, database, rows))
        loaded = measure_rate(count, lambda: load_data(server, database, file))
        write_cuts(feed, STUDENTS, rows)
        settings = settings_for(broker, {"m": url})
        load = measure_rate(count, lambda: full_sync(settings, "m", runner=LocalRunner(1)))
        write_cuts(feed, STUDENTS, make_rows(count, count))
        stream = measure_rate(count, lambda: follow((broker, url), feed.broker.next_offset))
    best, said = max((bare, "multi-row INSERT"), (loaded, "LOAD DATA"))
    other = f"{said}; the other {min(bare, loaded):,.0f}, better"
    return [
        times_peer(f"load of {count:,} rows, one connection", load, best, GOAL, said=other),
        times_peer(f"increments of {count:,} new rows, cuts of {CUT_ROWS:,}", stream, best, GOAL, said=other),
    ]


FIGURE = Figure(id="F3", title="rows into MariaDB", measure=run)
