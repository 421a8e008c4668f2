"""Times from the commit at a PostgreSQL source to that at a PostgreSQL target; COPY and other peers in the same run.

`python -m bench.pipeline [--rows 500000] [--rounds 3] [--only narrow,wide,trickle]`. Broker, capture and apply are
separate processes, started by the commands that a user types. Times are differences of the server's own commit
timestamps: of the burst at the source, and of the transaction that makes it visible at the target. The peers get
ready-made COPY text and the same target table, so they measure only PostgreSQL's own work.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.processes import EmbeddedPostgres, VenusProcesses
from bench.shapes import NARROW, WIDE, Shape

WAIT_S = 300.0
TRICKLE_TX_PER_S = 100
GOAL_COPY = 0.35
GOAL_STAGING = 0.6
GOAL_P50_MS = 10.0
GOAL_P99_MS = 50.0


class MeasuredPipeline:
    """The two databases, and VENUS between them."""

    def __init__(self, home: Path) -> None:
        self.postgres = EmbeddedPostgres(home)
        self.source = self.postgres.connect("source").cursor()
        self.target = self.postgres.connect("target").cursor()
        self.venus = VenusProcesses(home, self.postgres)
        self._mark = 0

    def start(self, shapes: list[Shape]) -> None:
        """Install, load the empty tables, and start the processes."""
        for statement in [s.create for s in shapes] + [
            "CREATE TABLE mark (id integer PRIMARY KEY, n integer)",
            "INSERT INTO mark VALUES (1, 0)",
            "CREATE TABLE tick (id integer PRIMARY KEY, v text)",
        ]:
            self.source.execute(statement)
        self.venus.run("install-triggers")
        self.venus.start("broker", "broker")
        time.sleep(2)
        self.venus.run("migrate", "--target", "main")
        self.venus.start("capture", "sync", "--capture-only")
        self.venus.start("apply", "sync", "--apply-only", "--target", "main")
        self.burst([])

    def burst(self, statements: list[str]) -> float:
        """Run statements as one source transaction; return the seconds from its commit to the target's."""
        self._mark += 1
        self.source.execute("BEGIN")
        for statement in [*statements, f"UPDATE mark SET n = {self._mark}"]:
            self.source.execute(statement)
        self.source.execute("COMMIT")
        end = time.monotonic() + WAIT_S
        while self._query_one(self.target, "SELECT n FROM mark") != self._mark:
            self.venus.check()
            if time.monotonic() > end:
                raise RuntimeError("the burst did not arrive")
            time.sleep(0.02)
        stamp = "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM mark"
        return float(self._query_one(self.target, stamp) - self._query_one(self.source, stamp))

    @staticmethod
    def _query_one(cursor: Any, query: str) -> Any:
        cursor.execute(query)
        return cursor.fetchone()[0]

    def checkpoint(self) -> None:
        """Run a CHECKPOINT, so that every measurement starts from the same state."""
        self.target.execute("CHECKPOINT")

    def assert_equal(self, shape: Shape) -> None:
        """Raise an error unless source and target have the same rows in the table."""
        query = f"SELECT count(*), sum(hashtextextended({shape.name}::text, 0)::numeric) FROM {shape.name}"
        both = []
        for cursor in (self.source, self.target):
            cursor.execute("SET timezone = 'UTC'")
            cursor.execute(query)
            both.append(cursor.fetchone())
        if both[0] != both[1]:
            raise RuntimeError(f"{shape.name} differs: source {both[0]}, target {both[1]}")

    def text(self, query: str) -> bytes:
        """Return the rows of a query as COPY text."""
        out = io.BytesIO()
        self.source.copy_expert(f"COPY ({query}) TO STDOUT", out)
        return out.getvalue()

    def stop(self) -> None:
        """Stop everything."""
        self.venus.stop()
        for cursor in (self.source, self.target):
            cursor.connection.close()
        self.postgres.stop()


class Peers:
    """PostgreSQL's own ways to write the same rows, as ready COPY text, into the same table."""

    def __init__(self, pipeline: MeasuredPipeline, shape: Shape, rows: int) -> None:
        self._target = pipeline.target
        self._checkpoint = pipeline.checkpoint
        self._shape = shape
        third = rows // 3
        self._all = pipeline.text(shape.rows(1, rows, 1))
        changed = pipeline.text(
            shape.rows(third + 1, 2 * third, 2) + " UNION ALL " + shape.rows(rows + 1, rows + third, 2)
        )
        gone = b"".join(b"%d" % n + b"\t\\N" * (len(shape.columns) - 1) + b"\tt\n" for n in range(1, third + 1))
        self._mix = changed.replace(b"\n", b"\tf\n") + gone
        self._target.execute(f"CREATE TABLE peer (LIKE {shape.name} INCLUDING ALL)")

    def _measure_time(self, work: Callable[[], None]) -> float:
        self._checkpoint()
        started = time.monotonic()
        work()
        return time.monotonic() - started

    def copy(self) -> float:
        """Write the rows by COPY into the empty table; return the seconds."""
        self._target.execute("TRUNCATE peer")
        return self._measure_time(lambda: self._target.copy_expert("COPY peer FROM STDIN", io.BytesIO(self._all)))

    def staging(self) -> float:
        """COPY the rows into a staging table, then INSERT .. ON CONFLICT into the empty table; return the seconds."""
        self._target.execute("TRUNCATE peer")
        return self._measure_time(lambda: self._write_staged(self._all, flagged=False))

    def mix(self) -> float:
        """Apply a mix of updates, deletes and inserts to the full table by staging; return the seconds."""
        self._target.execute("TRUNCATE peer")
        self._target.copy_expert("COPY peer FROM STDIN", io.BytesIO(self._all))
        return self._measure_time(lambda: self._write_staged(self._mix, flagged=True))

    def _write_staged(self, text: bytes, *, flagged: bool) -> None:
        """Copy text into a staging table and merge it; `flagged` text has a column that marks deletions."""
        names = [name for name, _, _ in self._shape.columns]
        columns, sets = ", ".join(names), ", ".join(f"{n} = excluded.{n}" for n in names[1:])
        self._target.execute("BEGIN")
        self._target.execute(
            f"CREATE TEMP TABLE staging ON COMMIT DROP AS SELECT {columns}, false AS gone FROM peer LIMIT 0"
        )
        into = columns + (", gone" if flagged else "")
        self._target.copy_expert(f"COPY staging ({into}) FROM STDIN", io.BytesIO(text))
        if flagged:
            self._target.execute("DELETE FROM peer USING staging s WHERE s.gone AND s.id = peer.id")
        self._target.execute(
            f"INSERT INTO peer SELECT {columns} FROM staging WHERE gone IS NOT TRUE "
            f"ON CONFLICT (id) DO UPDATE SET {sets}"
        )
        self._target.execute("COMMIT")

    def close(self) -> None:
        """Drop the table."""
        self._target.execute("DROP TABLE peer")


def bursts(pipeline: MeasuredPipeline, shape: Shape, rows: int, rounds: int) -> dict[str, list[float]]:
    """Measure VENUS and its peers alternately; return the seconds of each."""
    peers = Peers(pipeline, shape, rows)
    third = rows // 3
    found: dict[str, list[float]] = {name: [] for name in ("COPY", "staging", "inserts", "mix staging", "mix")}
    for _ in range(rounds):
        found["COPY"].append(peers.copy())
        found["staging"].append(peers.staging())
        pipeline.burst([f"TRUNCATE {shape.name}"])
        pipeline.checkpoint()
        found["inserts"].append(pipeline.burst([shape.insert(1, rows)]))
        pipeline.assert_equal(shape)
        found["mix staging"].append(peers.mix())
        pipeline.checkpoint()
        found["mix"].append(
            pipeline.burst(
                [
                    shape.delete(1, third),
                    shape.update(third + 1, 2 * third, 2),
                    shape.insert(rows + 1, rows + third, 2),
                ]
            )
        )
        pipeline.assert_equal(shape)
    peers.close()
    pipeline.burst([f"TRUNCATE {shape.name}"])
    return found


def trickle(pipeline: MeasuredPipeline, seconds: int) -> list[float]:
    """Commit small transactions at a fixed rate; return the milliseconds from each commit to the target's."""
    total = seconds * TRICKLE_TX_PER_S
    start = time.monotonic()
    for n in range(total):
        pipeline.source.execute("INSERT INTO tick VALUES (%s, %s)", (n, f"tick {n}"))
        time.sleep(max(0.0, start + (n + 1) / TRICKLE_TX_PER_S - time.monotonic()))
    pipeline.burst([])
    stamps = []
    for cursor in (pipeline.source, pipeline.target):
        cursor.execute("SELECT id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM tick")
        stamps.append(dict(cursor.fetchall()))
    return sorted((stamps[1][n] - stamps[0][n]) * 1000 for n in range(total))


def report_bursts(console: Console, shape: Shape, rows: int, found: dict[str, list[float]]) -> None:
    """Print the medians, the rates and the ratios."""
    median = {name: statistics.median(times) for name, times in found.items()}
    table = Table(title=f"{rows:,} changes, {shape.name}, {len(shape.columns)} columns; medians of {len(found['mix'])}")
    for heading in ("", "seconds", "changes/s", "of COPY", "of staging + ON CONFLICT"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, peers in (
        ("COPY", ()),
        ("staging", ()),
        ("inserts", (("COPY", GOAL_COPY), ("staging", GOAL_STAGING))),
        ("mix staging", ()),
        ("mix", ((None, 0.0), ("mix staging", GOAL_STAGING))),
    ):
        ratios = [f"{median[p] / median[name]:.2f} (goal {goal})" if p else "" for p, goal in peers]
        label = {"inserts": "VENUS inserts", "mix": "VENUS insert/update/delete"}.get(name, f"bare {name}")
        table.add_row(label, f"{median[name]:.2f}", f"{rows / median[name]:,.0f}", *ratios)
    console.print(table)


def report_trickle(console: Console, latencies: list[float]) -> None:
    """Print the percentiles."""
    p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    console.print(
        f"trickle of {TRICKLE_TX_PER_S} transactions/s, source commit to target commit: "
        f"p50 {p50:.1f} ms (goal {GOAL_P50_MS:g}), p99 {p99:.1f} ms (goal {GOAL_P99_MS:g}), max {latencies[-1]:.0f} ms"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=15, help="of the trickle")
    parser.add_argument("--only", default="trickle,narrow,wide")
    chosen = parser.parse_args()
    only = chosen.only.split(",")
    shapes = [s for s in (NARROW, WIDE) if s.name in only]
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        pipeline = MeasuredPipeline(Path(home))
        with closing(_Stopping(pipeline)):
            pipeline.start(shapes)
            if "trickle" in only:
                report_trickle(console, trickle(pipeline, chosen.seconds))
            for shape in shapes:
                report_bursts(console, shape, chosen.rows, bursts(pipeline, shape, chosen.rows, chosen.rounds))
            peaks = ", ".join(f"{n} {b >> 20} MiB" for n, b in pipeline.venus.peak_rss_bytes().items())
            cpu = ", ".join(f"{n} {s:.1f} s" for n, s in pipeline.venus.cpu_s().items())
            console.print(f"peak resident memory: {peaks}; processor time: {cpu}")


class _Stopping:
    """Wrapper that calls `stop` at the end of the benchmark."""

    def __init__(self, pipeline: MeasuredPipeline) -> None:
        self.close = pipeline.stop


if __name__ == "__main__":
    main()
