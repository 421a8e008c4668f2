"""Small transactions, one row each: latency, and the cost of each part of VENUS, beside logical replication.

`python -m bench.trickle [--rate 100] [--seconds 10] [--rounds 5] [--idle 10] [--tables 0] [--no-peer] [--stages]`. An
application commits at a fixed rate, in as many sessions as that needs. Three runs alternate: into a captured table;
into one under PostgreSQL's logical replication; into one without either, for the cost of the application's session
alone. Latency is from the source's commit timestamp to the target's: one server stamps both. Logical replication keeps
the source's timestamp, so its rows note when they were inserted, which is a little before their commit. `--stages`
shows where VENUS's time goes (bench/stages.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import stages
from bench.processes import EmbeddedPostgres, VenusProcesses
from bench.usage import Usage, read_usage, usage_between

#: A session commits at most about this many transactions a second.
SESSION_TX_PER_S = 250
#: Seconds before a run is measured.
WARM_UP_S = 1.0
ARRIVE_S = 30.0
GOAL_P50_MS, GOAL_P99_MS, GOAL_CORE = 5.0, 15.0, 0.30
GOAL_FAST_P99_MS = 50.0
GOAL_IDLE_CORE = 0.01
#: The captured table, the one under logical replication, the one without either.
VENUS, PEER, PLAIN = "tick", "peer", "plain"
#: Parts whose usage is counted; the triggers' usage is the application's minus that for an uncaptured table.
PARTS = ("source backend", "capture", "broker", "apply", "target backend")
TRIGGERS = "triggers (application's backend, beside an uncaptured table)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Result of one run: milliseconds of each transaction, and CPU usage by part."""

    rate: float
    latencies: list[float]
    used: Mapping[str, Usage]
    seconds: float
    #: Number of cuts that carried the transactions: on a slow machine a cut has several transactions.
    cuts: int

    def percentile(self, part: float) -> float:
        """Return the latency percentile `part` (0 to 1)."""
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * part))]


@dataclass(slots=True)
class SteadyApplication:
    """Application that inserts rows at a fixed rate, one per transaction, over several sessions."""

    postgres: EmbeddedPostgres
    rate: int
    database: str = "source"
    _next: int = 0
    _sessions: list[Any] = field(default_factory=list)

    def open(self) -> None:
        """Open the sessions."""
        for _ in range(-(-self.rate // SESSION_TX_PER_S)):
            self._sessions.append(self.postgres.connect(self.database))

    @property
    def pids(self) -> list[int]:
        """The process ids of the sessions' backends."""
        return [int(session.info.backend_pid) for session in self._sessions]

    def take(self, count: int) -> range:
        """Reserve the next `count` keys and return them."""
        keys = range(self._next, self._next + count)
        self._next += count
        return keys

    def commit(self, table: str, seconds: float) -> range:
        """Insert rows at the rate for a time; return their keys."""
        keys = self.take(int(seconds * self.rate))
        start = time.monotonic()
        threads = [
            threading.Thread(target=self._insert_over_session, args=(session, table, keys, start, n))
            for n, session in enumerate(self._sessions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return keys

    def _insert_over_session(self, session: Any, table: str, keys: range, start: float, first: int) -> None:
        """Insert every n-th of the keys over one session, each at its due time."""
        with session.cursor() as cursor:
            for n in range(first, len(keys), len(self._sessions)):
                time.sleep(max(0.0, start + n / self.rate - time.monotonic()))
                cursor.execute(f"INSERT INTO {table} VALUES ({keys[n]}, 'tick {keys[n]}')")

    def close(self) -> None:
        """Disconnect."""
        for session in self._sessions:
            session.close()


class TrickleBench:
    """Source and target database, with VENUS and logical replication between them."""

    def __init__(self, home: Path, rate: int, *, stages: bool = False) -> None:
        self.postgres = EmbeddedPostgres(home, "wal_level = logical")
        self.source: Any = self.postgres.connect("source").cursor()
        self.target: Any = self.postgres.connect("target").cursor()
        self.venus = VenusProcesses(home, self.postgres, ("-v", "--log-format", "json") if stages else ())
        self.commits: list[tuple[float, float]] = []  # commits at source and target of the rows that VENUS carried
        self.application = SteadyApplication(self.postgres, rate)

    def start(self, tables: int) -> None:
        """Install VENUS, load empty tables, start all processes; `tables`: number of further captured tables, idle."""
        for table in (VENUS, PEER, PLAIN):
            self.source.execute(f"CREATE TABLE {table} (id integer PRIMARY KEY, v text)")
        for n in range(tables):
            self.source.execute(f"CREATE TABLE idle_{n} (id integer PRIMARY KEY, v text)")
        # logical replication's apply worker copies the source's commit timestamp to the target's commit
        self.target.execute(
            f"CREATE TABLE {PEER} (id integer PRIMARY KEY, v text, at timestamptz DEFAULT clock_timestamp())"
        )
        self.source.execute(f"CREATE PUBLICATION peer FOR TABLE {PEER}")
        self.application.open()
        listed = self.venus.file
        names = ", ".join(f'"{name}"' for name in [VENUS, *(["idle_*"] if tables else [])])
        listed.write_text(listed.read_text().replace("[source]", f"[source]\ntables = [{names}]", 1))
        self.venus.run("install-triggers")
        self.venus.start("broker", "broker")
        time.sleep(2)
        self.venus.run("migrate", "--target", "main")
        self.venus.start("capture", "sync", "--capture-only")
        self.venus.start("apply", "sync", "--apply-only", "--target", "main")
        self._wait_for_rows(VENUS, self.application.commit(VENUS, 1.0))

    def stop(self) -> None:
        """Stop everything."""
        self.venus.stop()
        self.application.close()
        for cursor in (self.source, self.target):
            cursor.connection.close()
        self.postgres.stop()

    def parts(self) -> dict[str, list[int]]:
        """Return the process ids of each part: VENUS's, the databases' and the peer's."""
        self.source.execute("SELECT pid, application_name, backend_type FROM pg_stat_activity WHERE pid IS NOT NULL")
        found: dict[str, list[int]] = {"source backend": [], "target backend": [], "peer": []}
        for pid, name, kind in self.source.fetchall():
            if name.startswith("venus capture"):
                found["source backend"].append(pid)
            elif name.startswith("venus apply"):
                found["target backend"].append(pid)
            elif kind in ("walsender", "logical replication apply worker", "logical replication worker"):
                found["peer"].append(pid)
        found |= {name: [self.venus.pid(name)] for name in ("capture", "broker", "apply")}
        return found | {"application": self.application.pids}

    def run(self, table: str, seconds: float) -> MeasuredRun:
        """Commit into a table for a time; return latencies and usage."""
        self.application.commit(table, WARM_UP_S)
        parts = self.parts()
        before, began, cuts = read_usage(parts), time.monotonic(), self._cuts()
        keys = self.application.commit(table, seconds)
        committed_s = time.monotonic() - began
        self._wait_for_rows(table, keys)
        used = usage_between(before, read_usage(parts))
        latencies = [] if table == PLAIN else self._latencies(table, keys)
        cuts = self._cuts() - cuts
        return MeasuredRun(rate=len(keys) / committed_s, latencies=latencies, used=used, seconds=committed_s, cuts=cuts)

    def _cuts(self) -> int:
        """Return the number of cuts so far; a cut of a few rows is one batch."""
        self.source.execute("SELECT last_batch FROM venus.checkpoint")
        return int(self.source.fetchone()[0])

    def _wait_for_rows(self, table: str, keys: range) -> None:
        """Wait until the target has the rows of these keys."""
        end = time.monotonic() + ARRIVE_S
        while table != PLAIN:
            self.target.execute(f"SELECT count(*) FROM {table} WHERE id BETWEEN {keys[0]} AND {keys[-1]}")
            if self.target.fetchone()[0] == len(keys):
                return
            self.venus.check()
            if time.monotonic() > end:
                raise RuntimeError(f"rows of {table} did not arrive")
            time.sleep(0.02)

    def _latencies(self, table: str, keys: range) -> list[float]:
        """Return the milliseconds from the source's commit to the target's, for each key."""
        stamps = []
        for cursor in (self.source, self.target):
            at = "at" if table == PEER and cursor is self.target else "pg_xact_commit_timestamp(xmin)"
            cursor.execute(
                f"SELECT id, extract(epoch FROM {at})::float8 FROM {table} WHERE id BETWEEN {keys[0]} AND {keys[-1]}"
            )
            stamps.append(dict(cursor.fetchall()))
        if table == VENUS:
            self.commits += [(stamps[0][key], stamps[1][key]) for key in keys]
        return sorted((stamps[1][key] - stamps[0][key]) * 1000 for key in keys)

    def first_ms(self) -> float:
        """Commit one row; return the milliseconds from the source's commit to the target's."""
        keys = self.application.commit(VENUS, 1.5 / self.application.rate)
        self._wait_for_rows(VENUS, keys)
        return self._latencies(VENUS, keys)[0]

    def across_ms(self, tables: int) -> float:
        """Insert a row into each captured table in one transaction; return the milliseconds until all have arrived."""
        (key,) = keys = self.application.take(1)
        self.source.execute("BEGIN")
        self.source.execute("".join(f"INSERT INTO idle_{n} VALUES ({key}, 'all');" for n in range(tables)))
        self.source.execute(f"INSERT INTO {VENUS} VALUES ({key}, 'all')")
        self.source.execute("COMMIT")
        self._wait_for_rows(VENUS, keys)
        return self._latencies(VENUS, keys)[0]

    def measure_idle(self, seconds: float) -> dict[str, Usage]:
        """Leave everything idle for a time; return what each part used."""
        time.sleep(5)
        parts = self.parts()
        before = read_usage(parts)
        time.sleep(seconds)
        return usage_between(before, read_usage(parts))


class LogicalReplication:
    """PostgreSQL's logical replication. Both databases are on one server, so the slot is created separately."""

    def __init__(self, bench: TrickleBench) -> None:
        self._source, self._target = bench.source, bench.target
        dsn = bench.postgres.connect("source").dsn
        self._source.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
        self._target.execute(
            f"CREATE SUBSCRIPTION peer CONNECTION '{dsn}' PUBLICATION peer "
            "WITH (create_slot = false, slot_name = 'peer', copy_data = false)"
        )
        time.sleep(1)

    def close(self) -> None:
        """Drop subscription, publication and slot, and disconnect."""
        self._target.execute("ALTER SUBSCRIPTION peer DISABLE")
        self._target.execute("ALTER SUBSCRIPTION peer SET (slot_name = NONE)")
        self._target.execute("DROP SUBSCRIPTION peer")
        end = time.monotonic() + ARRIVE_S
        while True:
            try:
                self._source.execute("SELECT pg_drop_replication_slot('peer')")
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
            else:
                return


def rounds(bench: TrickleBench, count: int, seconds: float, *, peer: bool) -> dict[str, list[MeasuredRun]]:
    """Measure the tables alternately; return the runs by table."""
    found: dict[str, list[MeasuredRun]] = {VENUS: [], PEER: [], PLAIN: []}
    for _ in range(count):
        found[VENUS].append(bench.run(VENUS, seconds))
        if peer:
            with closing(LogicalReplication(bench)):
                found[PEER].append(bench.run(PEER, seconds))
        found[PLAIN].append(bench.run(PLAIN, seconds))
    return found


def report(console: Console, rate: int, found: dict[str, list[MeasuredRun]]) -> None:
    """Print the medians."""
    shared = statistics.median(s.rate * s.seconds / max(1, s.cuts) for s in found[VENUS])
    table = Table(
        title=f"{rate} one-row transactions/s, {shared:.1f} of them a cut, medians of {len(found[VENUS])} runs",
        min_width=80,
    )
    for heading in ("", "p50 ms", "p99 ms", "max ms", "tx/s"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, label in ((VENUS, "VENUS"), (PEER, "logical replication")):
        if found[name]:
            runs = found[name]
            figures = [statistics.median(s.percentile(part) for s in runs) for part in (0.5, 0.99, 1.0)]
            table.add_row(label, *(f"{f:.1f}" for f in figures), f"{statistics.median(s.rate for s in runs):,.0f}")
    console.print(table)
    report_use(console, found, shared)


def costs_by_part(found: dict[str, list[MeasuredRun]]) -> dict[str, tuple[float, float, float]]:
    """Return the usage of each part: CPU ms and switches per transaction, share of a core; medians of the runs."""
    used = {part: _median(found[VENUS], part) for part in PARTS}
    base = _median(found[PLAIN], "application")
    ms, switches, share = (a - b for a, b in zip(_median(found[VENUS], "application"), base, strict=True))
    return {TRIGGERS: (ms, switches, share), **used}


def _median(runs: list[MeasuredRun], part: str) -> tuple[float, float, float]:
    """Return the median usage of a part over the runs: CPU ms and switches per transaction, share of a core."""
    each = []
    for run in runs:
        transactions = run.rate * run.seconds
        used = run.used.get(part, Usage(cpu_s=0, switches=0))
        each.append((used.cpu_s * 1000 / transactions, used.switches / transactions, used.cpu_s / run.seconds))
    ms, switches, share = (statistics.median(column) for column in zip(*each, strict=True))
    return ms, switches, share


def report_use(console: Console, found: dict[str, list[MeasuredRun]], shared: float) -> None:
    """Print the usage of each part per transaction, per cut (of `shared` transactions), and as a share of a core."""
    table = Table(title="of it by part")
    for heading in ("", "CPU ms a transaction", "a cut", "switches a transaction", "of a core"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = costs_by_part(found)
    ms, switches, share = (sum(column) for column in zip(*rows.values(), strict=True))
    rows["VENUS together"] = (ms, switches, share)
    for label, (ms, switches, share) in rows.items():
        table.add_row(label, *_format_row(ms, switches, share, shared))
    if found[PEER]:
        table.add_row("logical replication", *_format_row(*_median(found[PEER], "peer"), 1.0))
    console.print(table)


def _format_row(ms: float, switches: float, of_a_core: float, shared: float) -> tuple[str, ...]:
    return f"{ms:.2f}", f"{ms * shared:.2f}", f"{switches:.1f}", f"{of_a_core:.1%}"


def idle_shares(used: Mapping[str, Usage], seconds: float) -> dict[str, float]:
    """Return the share of a core that each part of VENUS uses while idle."""
    return {name: usage.cpu_s / seconds for name, usage in used.items() if name not in ("application", "peer")}


def report_idle(console: Console, used: Mapping[str, Usage], seconds: float) -> None:
    """Print the cost of idling."""
    shares = idle_shares(used, seconds)
    said = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    console.print(f"idle, of a core: {said}; together {sum(shares.values()):.1%} (goal {GOAL_IDLE_CORE:.0%})")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="measure idling too")
    parser.add_argument("--tables", type=int, default=0, help="number of idle captured tables beside it")
    parser.add_argument("--no-peer", action="store_true", help="without logical replication")
    parser.add_argument("--stages", action="store_true", help="where the time goes; every process then logs each cut")
    chosen = parser.parse_args()
    console = Console(width=120)
    console.print(f"load of the machine before: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home, ExitStack() as stack:
        bench = TrickleBench(Path(home), chosen.rate, stages=chosen.stages)
        stack.callback(bench.stop)
        bench.start(chosen.tables)
        if chosen.idle:
            report_idle(console, bench.measure_idle(chosen.idle), chosen.idle)
        report(console, chosen.rate, rounds(bench, chosen.rounds, chosen.seconds, peer=not chosen.no_peer))
        if chosen.stages:
            stages.report(console, stages.of_transactions(stages.read(bench.venus.log), bench.commits))


if __name__ == "__main__":
    main()
