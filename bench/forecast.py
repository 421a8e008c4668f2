"""Forecasts of `venus assess` beside measurements, from which the constants of its forecast come.

    python -m bench.forecast [--only sqlite postgresql mysql oracle] [--narrow 100000] [--wide 20000] [--pace]

Three tables (4 columns with few rows, 4 columns with many rows, 20 columns) are assessed, filled, loaded into an
embedded PostgreSQL and rehearsed for a cut-over. MariaDB in Oracle mode stands in for Oracle. Each forecast is one
line: the forecast, the measurement, and the factor between the larger and the smaller of the two. The last line is the
verdict; the exit code is 1 if a factor is above 1.5. `--parts` prints more about each forecast. `--pace` measures only
the reading of a fill and the triggers, in processor time where possible, so that a busy machine gives the same result.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from tests.support.databases.mariadb import ORACLE_MODE, running_mariadb
from tests.support.databases.postgres import Server, libpq, running_server
from tests.support.oracle.driver import python_path
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.pipelines.pipeline import Pipeline
from venus.adapters.dialects.contract import SchemaChanged, Source
from venus.adapters.dialects.registry import open_source
from venus.config import Settings
from venus.model import BatchNo, BatchRecord, Epoch, Sequence

#: Number of one-row statements in one transaction, with and without triggers.
CHANGES = 5_000
#: Repetitions, of which the fastest counts.
TRIES = 3
#: A forecast may be off by this factor, either way.
FACTOR_MAX = 1.5
FORECASTS = {"whole s": "fill and load", "cut-over s": "cut-over"}
TYPES = {
    "sqlite": ("INTEGER", "VARCHAR(80)", "DECIMAL(14,2)"),
    "postgresql": ("integer", "varchar(80)", "numeric(14,2)"),
    "mysql": ("int", "varchar(80)", "decimal(14,2)"),
    "oracle": ("NUMBER(9)", "VARCHAR2(80)", "NUMBER(14,2)"),
}
LOG_BYTES = {
    "sqlite": "SELECT sum(pgsize) FROM dbstat WHERE name GLOB 'venus_l_*'",
    "postgresql": "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c"
    " WHERE c.relnamespace = 'venus'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^l_'",
    "mysql": "SELECT sum(data_length + index_length) FROM information_schema.tables WHERE table_name LIKE 'venus!_l!_%' ESCAPE '!'",  # noqa: E501
    "oracle": "SELECT sum(data_length + index_length) FROM information_schema.tables WHERE table_name LIKE 'VENUS!_L!_%' ESCAPE '!'",  # noqa: E501
}


@dataclass(frozen=True, slots=True)
class ForecastPlace:
    """A source database, and a function that connects to it as the application does."""

    kind: str
    url: str
    connect: Callable[[], Any]
    mark: str  # of a bind
    environ: dict[str, str]


@contextmanager
def place(kind: str, folder: Path, server: Server) -> Iterator[ForecastPlace]:
    """Start an empty source database of this kind."""
    with ExitStack() as stack:
        if kind == "sqlite":
            file = folder / "source.db"
            with closing(sqlite3.connect(file)) as made:
                made.execute("PRAGMA journal_mode = WAL")
            yield ForecastPlace(kind, f"sqlite:///{file}", lambda: sqlite3.connect(file), "?", {})
        elif kind == "postgresql":
            url = server.create_database()
            yield ForecastPlace(kind, url, lambda: psycopg2.connect(libpq(url)), "%s", {})
        elif kind == "mysql":
            maria = stack.enter_context(running_mariadb())
            maria.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
            url = f"mysql+pymysql://root@127.0.0.1:{maria.port}/shop"
            yield ForecastPlace(kind, url, lambda: maria.connect("shop"), "%s", {})
        else:
            maria = stack.enter_context(running_mariadb(ORACLE_MODE))
            StandIn(maria).prepare()
            url = f"oracle+cx_oracle://root@127.0.0.1:{maria.port}/?service_name=SCHOOL"
            environ = {"PYTHONPATH": python_path(folder / "driver")}
            yield ForecastPlace(kind, url, lambda: maria.connect(SCHEMA), "%s", environ)


def _column_value(row: int, n: int) -> str | int:
    """Return the value of column `n` in a row: a text, an integer or a decimal, depending on `n`."""
    by_kind = f"text number {n} of row {row:09}", row * n % 999_983, f"{row * 7 % 100_000}.{n:02}"
    return by_kind[n % 3]


def fill(at: ForecastPlace, columns: int, rows: int) -> None:
    """Create and fill a table with this number of columns and rows."""
    number, text, money = TYPES[at.kind]
    types = [number, *(text if n % 3 == 0 else number if n % 3 == 1 else money for n in range(columns - 1))]
    upper = at.kind == "oracle"
    quote = '"{}"' if upper else "{}"
    names = [quote.format(name.upper() if upper else name) for name in ["id", *(f"c{n}" for n in range(columns - 1))]]
    body = ", ".join(f"{name} {type_} NOT NULL" for name, type_ in zip(names, types, strict=True))
    table = quote.format("T" if upper else "t")
    with closing(at.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE {table} ({body}, PRIMARY KEY ({names[0]}))")
        marks = ", ".join([at.mark] * columns)
        for first in range(0, rows, 5_000):
            made = [
                (row, *(_column_value(row, n) for n in range(columns - 1)))
                for row in range(first, min(first + 5_000, rows))
            ]
            if at.kind == "postgresql":  # psycopg2's executemany takes a round trip for each row
                values = b", ".join(cursor.mogrify(f"({marks})", row) for row in made)
                cursor.execute(b"INSERT INTO t VALUES " + values)
            else:
                cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", made)
        connection.commit()
        if at.kind == "postgresql":
            connection.autocommit = True
            cursor.execute("ANALYZE")
        elif at.kind != "sqlite":
            cursor.execute(f"ANALYZE TABLE {table}")


def change(at: ForecastPlace) -> float:
    """Update rows by many one-row statements in a transaction; return the microseconds per row."""
    upper = at.kind == "oracle"
    text = 'UPDATE "T" SET "C1" = "C1" + 1 WHERE "ID" = ' if upper else "UPDATE t SET c1 = c1 + 1 WHERE id = "
    with closing(at.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(text + "0")  # the first statement loads what later ones share
        started = time.perf_counter()
        for row in range(CHANGES):
            cursor.execute(text + str(row))
        took = time.perf_counter() - started
        connection.commit()
    return took / CHANGES * 1e6


def query_number(at: ForecastPlace, query: str) -> int:
    """Run a query that selects a single number, and return it."""
    with closing(at.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(query)
        return int(cursor.fetchone()[0] or 0)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; a file may vanish while they are counted."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(Path(root) / name).st_size
            except FileNotFoundError:
                continue
    return total


def measure_case(kind: str, columns: int, rows: int, server: Server, *, pace_only: bool) -> dict[str, Any]:
    """Measure one kind and size of source: forecast, load and rehearsal of a cut-over, or only the pace of reading."""
    with tempfile.TemporaryDirectory() as name, place(kind, Path(name), server) as at:
        fill(at, columns, rows)
        if pace_only:
            return pace(at, at.environ)
        folder = Path(name) / "run"
        folder.mkdir()
        pipeline = Pipeline(folder=folder, source=at.url, targets={"main": server.create_database()})
        pipeline.environ = at.environ
        pipeline.new_interpreters = True  # as a user starts a command: the imports cost time
        pipeline.configure()
        try:
            return measure(pipeline, at, server)
        finally:
            pipeline.close()


def read_cpu_s(pipeline: Pipeline, server: Server) -> float:
    """Return the CPU seconds that VENUS's processes and the embedded server have used so far."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime
    postmaster = psutil.Process(int(server.pg.get_postmaster_info().pid))
    running = [psutil.Process(process.pid) for process in pipeline.running.values()]
    for process in (*running, postmaster, *postmaster.children()):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        ended = times.children_user + times.children_system if process == postmaster else 0.0
        seconds += times.user + times.system + ended
    return seconds


def pace(at: ForecastPlace, environ: dict[str, str]) -> dict[str, float]:
    """Measure what a row costs: CPU time to read an existing one, time of the triggers, bytes in the log."""
    for name, value in environ.items():
        if name == "PYTHONPATH":
            sys.path[:0] = value.split(":")
    source = open_source(Settings.model_validate({"source": {"url": at.url}}))
    try:
        bare_us = min(change(at) for _ in range(TRIES))
        source.installer.install(["*"], [])
        captured_us = min(change(at) for _ in range(TRIES))
        epoch = Epoch(source.registry.read_state().epoch + 1)
        state = source.registry.raise_epoch(epoch)
        rows, seconds = read_all(source, epoch, int(state.last_batch) + 1, int(state.next_sequence))
    finally:
        source.close()
        sys.modules.pop("cx_Oracle", None)
    return {
        "rows": rows,
        "a row read us": seconds / rows * 1e6,
        "trigger us": captured_us - bare_us,
        "log row bytes": query_number(at, LOG_BYTES[at.kind]) / CHANGES / TRIES,
    }


def read_all(source: Source, epoch: Epoch, batch: int, sequence: int) -> tuple[int, float]:
    """Read all existing rows, cut by cut as capture does; return their number and the CPU seconds of the reading."""
    rows, seconds = 0, 0.0
    while due := [t.fill for t in source.registry.read_registered_tables() if not t.fill.done]:
        try:
            cut = source.capture.open_cut(due)
        except SchemaChanged:
            source.capture.refresh_schemas()
            continue
        if cut is None:
            break
        sections = list(cut.read_sections(rows_max=5_000, bytes_max=1 << 20))
        started = time.process_time()
        after = []
        for fill_state in due:
            found, state = cut.read_fill_chunk(fill_state, rows_max=20_000, bytes_max=1 << 20)
            sections += found
            after.append(state)
            rows += sum(section.count for section in found)
        seconds += time.process_time() - started
        count = sum(section.count for section in sections)
        record = BatchRecord(
            batch_no=BatchNo(batch),
            epoch=epoch,
            first_sequence=Sequence(sequence),
            last_sequence=Sequence(sequence + count - 1),
            digest=batch,
        )
        cut.commit(epoch, [record], after, BatchNo(0))
        batch, sequence = batch + 1, sequence + count
    return rows, seconds


def measure(pipeline: Pipeline, at: ForecastPlace, server: Server) -> dict[str, Any]:
    """Run `venus assess`, a load and a rehearsed cut-over; return each forecast with its measurement."""
    found = pipeline.ask("assess")["forecast"]
    bare_us = change(at)
    pipeline.ask("install-triggers")
    captured_us = change(at)
    log_bytes = query_number(at, LOG_BYTES[at.kind])
    pipeline.start_broker()
    busy, started = read_cpu_s(pipeline, server), time.monotonic()
    loaded = pipeline.ask("migrate", "--target", "main", "--engine", "local")
    whole_s = time.monotonic() - started
    migrate_cpu_s = read_cpu_s(pipeline, server) - busy
    disk = size_of(pipeline.folder / "data")
    pipeline.start("sync", "sync", "--target", "main")
    pipeline.wait_until_caught_up("main")
    while True:
        busy, started = read_cpu_s(pipeline, server), time.monotonic()
        rehearsed = pipeline.ask("cutover", "--target", "main", "--rehearse", code=(0, 3))
        cutover_s = time.monotonic() - started
        cutover_cpu_s = read_cpu_s(pipeline, server) - busy
        if not rehearsed["blocks"]:
            break
        pipeline.wait_until_caught_up("main")  # on a busy machine a heartbeat may come at the wrong moment
    read_s, load_s = loaded["first_fill_seconds"], loaded["seconds"]
    return {
        "rows": loaded["rows"],
        "speed": found["speed"],
        "read s": (found["read_seconds"], read_s),
        "load s": (found["load_seconds"], load_s),
        "whole s": (found["fill_seconds"], whole_s),
        "of all processors": migrate_cpu_s,
        "cut-over s": (found["cutover_seconds"], cutover_s),
        "of all processors, cut-over": cutover_cpu_s,
        "broker MiB": (found["broker_bytes"] / 2**20, disk / 2**20),
        "trigger us": captured_us - bare_us,
        "log row bytes": log_bytes / CHANGES,
    }


def main() -> int:
    """Measure all cases, and print each beside its forecast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TYPES), default=list(TYPES))
    parser.add_argument("--narrow", type=int, default=100_000)
    parser.add_argument("--wide", type=int, default=20_000)
    parser.add_argument("--pace", action="store_true")
    parser.add_argument("--parts", action="store_true", help="print everything that was measured")
    options = parser.parse_args()
    factors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as home, running_server(Path(home)) as server:
        for kind in options.only:
            for columns, rows in ((4, 1_000), (4, options.narrow), (20, options.wide)):
                found = measure_case(kind, columns, rows, server, pace_only=options.pace)
                if options.pace or options.parts:
                    print(kind, columns, "columns", format_forecast(found), flush=True)
                if not options.pace:
                    factors |= print_comparison(f"{kind} {columns} columns {rows:,} rows", found)
    return verdict(factors) if factors else 0


def print_comparison(case: str, found: dict[str, Any]) -> dict[str, float]:
    """Print each forecast of a case beside its measurement; return the factor between the two, by name."""
    factors = {}
    for name, what in FORECASTS.items():
        forecast, took = found[name]
        factor = factors[f"{case}, {what}"] = max(forecast / took, took / forecast)
        print(f"{case:36} {what:13} forecast {forecast:6.2f} s, took {took:6.2f} s, factor {factor:.2f}", flush=True)
    return factors


def verdict(factors: dict[str, float]) -> int:
    """Print whether all factors are within the limit; return the exit code, 1 if one is not."""
    met = sum(factor <= FACTOR_MAX for factor in factors.values())
    worst = max(factors, key=lambda name: factors[name])
    said = "met" if met == len(factors) else "MISSED"
    print(
        f"forecasts within a factor of {FACTOR_MAX:g}: {met} of {len(factors)}, the worst {factors[worst]:.2f} "
        f"({worst}): {said}"
    )
    return int(met != len(factors))


def format_forecast(found: dict[str, Any]) -> str:
    """Return the forecasts and measurements of a case in one line."""
    parts = (
        f"{name} {value}" if isinstance(value, int) else f"{name} {_format_numbers(value)}"
        for name, value in found.items()
    )
    return "; ".join(parts)


def _format_numbers(value: Any) -> str:
    """Format one number, or a tuple of numbers, as text."""
    return " / ".join(f"{v:.3g}" for v in (value if isinstance(value, tuple) else (value,)))


if __name__ == "__main__":
    sys.exit(main())
