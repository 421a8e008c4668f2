"""How fast a target catches up by `venus sync --engine spark`, by plain `venus sync`, by bare staging + ON CONFLICT.

`python -m bench.spark_sync [--rows 300000] [--rounds 2]`. One source transaction deletes, updates and inserts a third
each of a narrow table of that size. Both engines apply it to the same target, one after the other, each in a process
that already runs. In a *burst* the time runs from the source's commit to the target's. For *catching up* the whole
transaction waits at the broker, and the time runs from the end of a pause to the target's commit. The peer gets the
same rows as text.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.processes import EmbeddedPostgres, VenusProcesses
from bench.shapes import NARROW
from venus.adapters.targets.relational.control import pause, resume
from venus.config import load
from venus.rpc.admin import AdminClient

WAIT_S = 300.0
ENGINES = ("local", "spark")
PEER = "staging + ON CONFLICT"
NAMES = [name for name, _, _ in NARROW.columns]


class SparkSyncBench:
    """Source, broker and target; the engine that applies can change from one measurement to the next."""

    def __init__(self, home: Path) -> None:
        self.postgres = EmbeddedPostgres(home)
        self.source = self.postgres.connect("source").cursor()
        self.target = self.postgres.connect("target").cursor()
        self.venus = VenusProcesses(home, self.postgres)
        self.settings = load(self.venus.file)
        self._mark = 0
        self._version = 0

    def start(self) -> None:
        """Install, load the empty tables, and start the processes."""
        for statement in (
            NARROW.create,
            "CREATE TABLE mark (id integer PRIMARY KEY, n integer)",
            "INSERT INTO mark VALUES (1, 0)",
        ):
            self.source.execute(statement)
        self.venus.run("install-triggers")
        self.venus.start("broker", "broker")
        self._wait_until(self._broker_answers)
        self.venus.run("migrate", "--target", "main")
        self.venus.start("capture", "sync", "--capture-only")
        self.target.execute(f"CREATE TABLE peer (LIKE {NARROW.name} INCLUDING ALL)")

    def _broker_answers(self) -> bool:
        try:
            with AdminClient(self.settings.broker.listen) as admin:
                admin.status()
        except Exception:
            return False
        return True

    def _next_offset(self) -> int:
        """Return the end of the queue at the broker."""
        with AdminClient(self.settings.broker.listen) as admin:
            return int(admin.status("main").businesses[0].next_offset)

    @contextmanager
    def apply_with(self, engine: str) -> Iterator[None]:
        """Run an engine as the apply process within the block, which begins when the engine has applied a change."""
        self.venus.start("apply", "sync", "--apply-only", "--target", "main", "--engine", engine)
        try:
            self.change([])
            self.wait_for_mark()
            yield
        finally:
            self.venus.end("apply")

    def fill(self, rows: int) -> None:
        """Make this number of rows at the source and at both targets."""
        self.change([NARROW.insert(1, rows)])
        self.wait_for_mark()
        self.target.execute(f"INSERT INTO peer SELECT * FROM {NARROW.name}")
        for cursor, name in ((self.source, NARROW.name), (self.target, NARROW.name), (self.target, "peer")):
            cursor.execute(f"VACUUM ANALYZE {name}")

    def changes(self, rows: int) -> tuple[list[str], bytes]:
        """Return the statements of the next burst, and their changes as text; the number of rows stays the same."""
        self._version += 1
        third, version = rows // 3, self._version + 1
        first = (self._version - 1) * third + 1
        gone, changed = (first, first + third - 1), (first + third, first + 2 * third - 1)
        new = (first + rows, first + rows + third - 1)
        text = self.text(f"{NARROW.rows(*changed, version)} UNION ALL {NARROW.rows(*new, version)}")
        keys = b"".join(b"%d" % n + b"\t\\N" * (len(NAMES) - 1) + b"\tt\n" for n in range(gone[0], gone[1] + 1))
        statements = [NARROW.delete(*gone), NARROW.update(*changed, version), NARROW.insert(*new, version)]
        return statements, text.replace(b"\n", b"\tf\n") + keys

    def change(self, statements: list[str]) -> None:
        """Run statements in a source transaction that also writes a mark row, by which its arrival is recognised."""
        self._mark += 1
        self.source.execute("BEGIN")
        for statement in [*statements, f"UPDATE mark SET n = {self._mark}"]:
            self.source.execute(statement)
        self.source.execute("COMMIT")

    def wait_for_mark(self) -> float:
        """Wait for the mark row; return the time of the target's commit in Unix seconds."""
        self._wait_until(lambda: self._read_value(self.target, "SELECT n FROM mark") == self._mark)
        return self._commit_time(self.target)

    def burst(self, statements: list[str]) -> float:
        """Run a source transaction; return the seconds from its commit to the target's."""
        self.change(statements)
        arrived = self.wait_for_mark()
        return arrived - self._commit_time(self.source)

    def measure_catching_up(self, statements: list[str], rows: int) -> float:
        """Let a transaction wait at the broker; return the seconds from the end of the pause to the target's commit."""
        pause(self.settings, "main")
        before = self._next_offset()
        self.change(statements)
        self._wait_until(lambda: self._next_offset() > before + rows)
        began = time.time()
        resume(self.settings, "main")
        return self.wait_for_mark() - began

    def staging(self, text: bytes) -> float:
        """Merge the burst's changes from ready text by a staging table; return the seconds."""
        columns, sets = ", ".join(NAMES), ", ".join(f"{n} = excluded.{n}" for n in NAMES[1:])
        self.target.execute("CHECKPOINT")
        began = time.monotonic()
        self.target.execute("BEGIN")
        self.target.execute(
            f"CREATE TEMP TABLE staging ON COMMIT DROP AS SELECT {columns}, false AS gone FROM peer LIMIT 0"
        )
        self.target.copy_expert(f"COPY staging ({columns}, gone) FROM STDIN", io.BytesIO(text))
        self.target.execute("DELETE FROM peer USING staging s WHERE s.gone AND s.id = peer.id")
        self.target.execute(
            f"INSERT INTO peer SELECT {columns} FROM staging WHERE NOT gone ON CONFLICT (id) DO UPDATE SET {sets}"
        )
        self.target.execute("COMMIT")
        return time.monotonic() - began

    def text(self, query: str) -> bytes:
        """Return the rows of a query as COPY text."""
        out = io.BytesIO()
        self.source.copy_expert(f"COPY ({query}) TO STDOUT", out)
        return out.getvalue()

    def check(self) -> None:
        """Raise an error unless source, target and peer have equal rows."""
        found = []
        for cursor, name in ((self.source, NARROW.name), (self.target, NARROW.name), (self.target, "peer")):
            texts = ", ".join(f"t.{n}::text" for n in NAMES)
            cursor.execute(f"SELECT count(*), sum(hashtextextended(concat_ws('|', {texts}), 0)::numeric) FROM {name} t")
            found.append(cursor.fetchone())
        if len(set(found)) != 1:
            raise RuntimeError(f"source, target and peer differ: {found}")

    def cpu_s(self) -> float:
        """Return the CPU time of apply so far: its process, Spark's JVM and workers, including ended ones."""
        process = psutil.Process(self.venus.pid("apply"))
        return sum(sum(p.cpu_times()[:4]) for p in (process, *process.children(recursive=True)))

    def _commit_time(self, cursor: Any) -> float:
        """Return when the mark row was committed, in Unix seconds."""
        return float(
            self._read_value(cursor, "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM mark")
        )

    @staticmethod
    def _read_value(cursor: Any, query: str) -> Any:
        cursor.execute(query)
        return cursor.fetchone()[0]

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises RuntimeError after a limited time."""
        end = time.monotonic() + WAIT_S
        while not condition():
            self.venus.check()
            if time.monotonic() > end:
                raise RuntimeError("waited in vain")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop everything."""
        self.venus.stop()
        for cursor in (self.source, self.target):
            cursor.connection.close()
        self.postgres.stop()


def measure(bench: SparkSyncBench, rows: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds by engine and kind of measurement, those of the peer, and the engines' processor time."""
    found: dict[str, list[float]] = defaultdict(list)

    def apply_one(name: str, way: Callable[[list[str]], float], *, counts: bool) -> None:
        """Measure one burst by VENUS and the same by the peer; `counts`: whether the results are kept."""
        statements, text = bench.changes(rows)
        bench.target.execute("CHECKPOINT")
        cpu = bench.cpu_s()
        seconds = way(statements)
        used = bench.cpu_s() - cpu
        peer = bench.staging(text)
        if counts:
            found[name].append(seconds)
            found[f"{name}, CPU"].append(used)
            found[f"{name}, {PEER}"].append(peer)
            found[PEER].append(peer)

    for engine in ENGINES:
        with bench.apply_with(engine):
            if engine == ENGINES[0]:
                bench.fill(rows)
            apply_one("warming up", bench.burst, counts=False)
            for _ in range(rounds):
                apply_one(f"{engine}, burst", bench.burst, counts=True)
                apply_one(f"{engine}, catching up", lambda s: bench.measure_catching_up(s, rows), counts=True)
            bench.check()
    return found


def report(console: Console, rows: int, found: dict[str, list[float]]) -> None:
    """Print the medians, the rates and the ratios."""
    median = {name: statistics.median(times) for name, times in found.items()}
    table = Table(title=f"{rows:,} changes, a third each of deletes, updates and inserts, {NARROW.name}; medians")
    for heading in ("", "seconds (from-to)", "changes/s", f"of {PEER}", "CPU us/change"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in (PEER, *(f"{engine}, {way}" for way in ("burst", "catching up") for engine in ENGINES)):
        seconds, times = median[name], found[name]
        cpu, peer = median.get(f"{name}, CPU"), median.get(f"{name}, {PEER}", seconds)
        table.add_row(
            name,
            f"{seconds:.2f} ({min(times):.2f}-{max(times):.2f})",
            f"{rows / seconds:,.0f}",
            f"{peer / seconds:.2f}",
            "" if cpu is None else f"{cpu / rows * 1e6:.1f}",
        )
    console.print(table)
    console.print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        bench = SparkSyncBench(Path(home))
        try:
            bench.start()
            report(Console(width=120), chosen.rows, measure(bench, chosen.rows, chosen.rounds))
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
