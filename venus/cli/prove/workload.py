"""Six concurrent writers during capture, and the cost of triggers; in portable SQL, for every dialect.

Each writer holds its transaction open for a random while, so that numbers drawn early commit late. A writer inserts,
updates, deletes, changes keys and rolls back. A refusal by the database (a deadlock, a duplicate key) is rolled back,
as an application does, and counted.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

from venus.adapters.dialects.proving_contract import Application, ScratchSchema, run_transaction
from venus.cli.prove.follower import Follower
from venus.errors import VenusError

WRITERS = 6
KEYS = 200
STEPS_MAX = 4
HOLD_MAX_S = 0.05
#: Fewer transactions prove nothing, so the writers get more time on a busy machine.
COMMITS_MIN = 20
#: Every fifth transaction is rolled back.
ROLLBACK_SHARE = 0.2
#: After this many refusals in a row a writer gives up, because the database refuses everything.
REFUSALS_MAX = 200
#: How long a writer may need for its last transaction.
END_S = 120.0
#: How many rows a statement of the bulk load has, and the greatest number of single-row statements.
BATCH_ROWS = 1000
SINGLE_ROWS_MAX = 5000


@dataclass(slots=True)
class WriterCounts:
    """How the transactions of the writers have ended, and the errors that stopped writers."""

    ended: Counter[str] = field(default_factory=Counter)
    failures: list[Exception] = field(default_factory=list)


class WorkloadFailed(VenusError):
    """The captured rows differ from the table, or a writer could not work."""


def count_writers(scratch: ScratchSchema) -> int:
    """Return how many writers work concurrently: SQLite allows one at a time."""
    return WRITERS if scratch.concurrent_writers else 1


def run_writers(scratch: ScratchSchema, *, seed: int, seconds: float) -> WriterCounts:
    """Let the writers work for a while during capture, then compare the rows. Raises WorkloadFailed."""
    with closing(scratch.connect()) as app:
        run_transaction(
            app, f"CREATE TABLE proof_writers (id {scratch.types['int']} NOT NULL PRIMARY KEY, v varchar(40))"
        )
    with closing(scratch.open()) as source:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        counts = _write_and_follow(scratch, follower, seed=seed, seconds=seconds)
        follower.drain()
        _compare(scratch, follower, "proof_writers")
        source.installer.uninstall()
    if not counts.ended["commit"]:
        raise WorkloadFailed("no writer has committed anything")
    return counts


def _write_and_follow(scratch: ScratchSchema, follower: Follower, *, seed: int, seconds: float) -> WriterCounts:
    """Capture while the writers work; return when all of them have ended."""
    stop, counts = threading.Event(), WriterCounts()
    writers = [
        threading.Thread(target=_run_writer, args=(scratch, random.Random(seed * 1000 + n), stop, counts), daemon=True)
        for n in range(count_writers(scratch))
    ]
    for writer in writers:
        writer.start()
    end = time.monotonic() + seconds
    try:
        while not counts.failures and not _is_over(counts, time.monotonic() - end):
            if follower.cut() is None:
                stop.wait(0.02)
    finally:
        stop.set()
        for writer in writers:
            writer.join(END_S)
    if counts.failures:
        raise WorkloadFailed("a writer could not work") from counts.failures[0]
    return counts


def _is_over(counts: WriterCounts, late_s: float) -> bool:
    """Return whether the time is up, and the writers have done enough. `late_s`: seconds since the end was due."""
    return late_s > END_S or (late_s > 0 and counts.ended["commit"] >= COMMITS_MIN)


def _run_writer(scratch: ScratchSchema, rng: random.Random, stop: threading.Event, counts: WriterCounts) -> None:
    """Run random transactions until `stop`, and count how they end."""
    refused = 0
    try:
        with closing(scratch.connect()) as app:
            while not stop.is_set():
                try:
                    for _ in range(rng.randint(1, STEPS_MAX)):
                        _change_row(app, rng)
                    stop.wait(rng.uniform(0, HOLD_MAX_S))
                    outcome = "rollback" if rng.random() < ROLLBACK_SHARE else "commit"
                    app.rollback() if outcome == "rollback" else app.commit()
                    refused = 0
                except Exception:  # each driver has its own classes for a duplicate key and a deadlock
                    app.rollback()
                    outcome, refused = "refused", refused + 1
                    if refused > REFUSALS_MAX:
                        raise
                counts.ended[outcome] += 1
    except Exception as error:  # the caller reports the error
        counts.failures.append(error)


def _change_row(app: Application, rng: random.Random) -> None:
    """Change a random row: insert, update or delete it, or change its key."""
    key, value = rng.randrange(KEYS), f"{rng.random()}"
    match rng.choice(("insert", "update", "update", "delete", "move")):
        case "insert":
            app.execute("DELETE FROM proof_writers WHERE id = ?", key)
            app.execute("INSERT INTO proof_writers VALUES (?, ?)", key, value)
        case "update":
            app.execute("UPDATE proof_writers SET v = ? WHERE id = ?", value, key)
        case "delete":
            app.execute("DELETE FROM proof_writers WHERE id = ?", key)
        case "move":
            app.execute("UPDATE proof_writers SET id = ?, v = ? WHERE id = ?", rng.randrange(KEYS), value, key)


def _compare(scratch: ScratchSchema, follower: Follower, table: str) -> None:
    """Compare the captured rows with the table."""
    with closing(scratch.connect()) as app:
        there = {str(int(key)): value for key, value in app.execute(f"SELECT id, v FROM {table}")}
    captured = {str(key[0]): row["v"] for key, row in follower.rows(table).items()}
    if differing := sum(there.get(key) != captured.get(key) for key in there.keys() | captured.keys()):
        raise WorkloadFailed(f"{differing} rows differ between the table and what was captured")


def measure_cost(scratch: ScratchSchema, rows: int) -> list[tuple[str, float, str]]:
    """Insert rows without and with triggers, and capture them; return figures as name, value and unit."""
    figures: list[tuple[str, float, str]] = []
    rates: dict[tuple[str, bool], float] = {}
    for has_triggers in (False, True):
        _create_cost_tables(scratch)
        with closing(scratch.open()) as source:
            follower = None
            if has_triggers:
                source.installer.install(["proof_cost"], [])
                follower = Follower(source)
                follower.drain()
            with closing(scratch.connect()) as app:
                rates["bulk", has_triggers] = _time_rows(_insert_batches(app, rows))
                rates["single", has_triggers] = _time_rows(_insert_rows(app, rows, min(rows, SINGLE_ROWS_MAX)))
            if follower is not None:
                began = time.monotonic()
                captured = sum(cut.count for cut in follower.drain())
                figures.append(("captured", captured / (time.monotonic() - began), "rows/s"))
                source.installer.uninstall()
        with closing(scratch.connect()) as app:
            run_transaction(app, "DROP TABLE proof_cost", "DROP TABLE proof_seed")
    for way, what in (("bulk", f"statements of {BATCH_ROWS:,} rows"), ("single", "statements of one row")):
        without, with_ = rates[way, False], rates[way, True]
        figures += [
            (f"{what}, without triggers", without, "us/row"),
            (f"{what}, with triggers", with_, "us/row"),
            (f"{what}, factor", with_ / without, ""),
        ]
    return figures


def _create_cost_tables(scratch: ScratchSchema) -> None:
    columns = f"(id {scratch.types['int']} NOT NULL PRIMARY KEY, v varchar(40))"
    with closing(scratch.connect()) as app:
        run_transaction(app, f"CREATE TABLE proof_seed {columns}", f"CREATE TABLE proof_cost {columns}")
        for number in range(BATCH_ROWS):
            app.execute("INSERT INTO proof_seed VALUES (?, ?)", number, f"the value of row {number}")
        app.commit()


def _time_rows(inserted: tuple[int, float]) -> float:
    """Return the microseconds that each inserted row took."""
    rows, seconds = inserted
    return seconds / rows * 1_000_000


def _insert_batches(app: Application, rows: int) -> tuple[int, float]:
    """Insert rows in large statements, each a transaction; the first is a warm-up. Return rows and seconds."""
    batches = max(1, rows // BATCH_ROWS)
    began = 0.0
    for batch in range(batches + 1):
        began = time.monotonic() if batch == 1 else began
        app.execute(f"INSERT INTO proof_cost SELECT id + {batch * BATCH_ROWS}, v FROM proof_seed")
        app.commit()
    return batches * BATCH_ROWS, time.monotonic() - began


def _insert_rows(app: Application, first: int, rows: int) -> tuple[int, float]:
    """Insert rows one by one in transactions of a hundred."""
    first = max(first, BATCH_ROWS) + BATCH_ROWS
    began = time.monotonic()
    for number in range(rows):
        app.execute("INSERT INTO proof_cost VALUES (?, ?)", first + number, f"the value of row {number}")
        if number % 100 == 99:
            app.commit()
    app.commit()
    return rows, time.monotonic() - began
