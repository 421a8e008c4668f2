"""How fast a target is loaded at offset -1, by each engine, against bare COPY of the same rows and Spark's JDBC writer.

An embedded PostgreSQL holds source and targets. `venus migrate` runs as a user runs it, each time into a fresh
database; the rows come from the broker. Bare COPY sends ready text over one and over two connections.

    python -m bench.spark_load [--rows 1000000] [--wide-rows 200000] [--rounds 3] [--only narrow|wide]
    python -m bench.spark_load --memory 1000000 5000000     # peak memory of every process

The JDBC writer is measured if VENUS_BENCH_PGJDBC names its jar.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import statistics
import subprocess
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.jdbc import load_by_jdbc
from bench.loading import LoadSite
from bench.processes import EmbeddedPostgres
from bench.shapes import NARROW, WIDE, Shape

#: Interval between two samples of the processes' memory.
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Durations of one load, of the rows alone and of the whole command, and processor time by process."""

    rows_s: float
    whole_s: float
    cpu_s: dict[str, float] = field(default_factory=dict)


def load_by_venus(home: LoadSite, engine: str) -> LoadResult:
    """Load a new target by `venus migrate` with this engine."""
    name = home.new_target()
    with count_cpu(home) as cpu:
        began = time.perf_counter()
        answer = home.run("migrate", "--target", name, "--engine", engine)
        whole = time.perf_counter() - began
    if answer["rows"] != home.rows:
        raise RuntimeError(f"{answer['rows']} rows instead of {home.rows}")
    taken = LoadResult(rows_s=home.window_s(name), whole_s=whole, cpu_s=dict(cpu))
    home.drop(name)
    return taken


def load_by_copy(home: LoadSite, text: bytes, connections: int) -> LoadResult:
    """Load the rows by COPY of ready text, then add key and statistics."""
    name = home.new_target()
    home.run_sql(name, home.shape.create.replace(", PRIMARY KEY (id)", ""))
    parts = split_text(text, connections)

    def copy(part: bytes) -> None:
        with closing(home.postgres.connect(name)) as connection, connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {home.shape.name} FROM STDIN", io.BytesIO(part), size=1 << 18)

    with count_cpu(home) as cpu:
        began = time.perf_counter()
        with ThreadPoolExecutor(connections) as pool:
            list(pool.map(copy, parts))
        copied = time.perf_counter() - began
        home.run_sql(name, f"ALTER TABLE {home.shape.name} ADD PRIMARY KEY (id)", f"ANALYZE {home.shape.name}")
        whole = time.perf_counter() - began
    home.drop(name)
    return LoadResult(rows_s=copied, whole_s=whole, cpu_s=dict(cpu))


def split_text(text: bytes, count: int) -> list[bytes]:
    """Cut text at line ends into this number of parts."""
    ends = [text.index(b"\n", len(text) * n // count) + 1 for n in range(1, count)]
    return [text[low:high] for low, high in zip([0, *ends], [*ends, len(text)], strict=True)]


@contextmanager
def count_cpu(home: LoadSite) -> Iterator[dict[str, float]]:
    """Count the processor time of broker, server and commands within the block."""
    used: dict[str, float] = {}
    before, own = home.cpu_s(), _commands_s()
    yield used
    used |= {name: seconds - before[name] for name, seconds in home.cpu_s().items()} | {"client": _commands_s() - own}


def _commands_s() -> float:
    """Return the processor time of this process and of its ended children."""
    ended, own = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    return ended.ru_utime + ended.ru_stime + own.ru_utime + own.ru_stime


def measure(home: LoadSite, rounds: int, jar: str) -> None:
    """Measure all ways to load one table alternately, and print their figures."""
    filled = home.fill()
    text = home.text()
    ways: dict[str, Callable[[], LoadResult]] = {
        "bare COPY, 1 connection": lambda: load_by_copy(home, text, 1),
        "bare COPY, 2 connections": lambda: load_by_copy(home, text, 2),
        "venus migrate --engine local": lambda: load_by_venus(home, "local"),
        "venus migrate --engine spark": lambda: load_by_venus(home, "spark"),
    }
    if jar:
        ways["df.write.jdbc, reWriteBatchedInserts"] = lambda: LoadResult(
            rows_s=(found := load_by_jdbc(home, text, jar)), whole_s=found
        )
    taken: dict[str, list[LoadResult]] = defaultdict(list)
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(way())
    print(f"\n{home.shape.name}: {home.rows:,} rows of {len(text) / home.rows:.0f} bytes; ", end="")
    print(f"the first fill read {filled / 1e3:.0f} thousand rows a second")
    print(f"thousand rows a second, median of {rounds} (min-max)")
    print(f"{'':36s}{'rows alone':>20s}{'of bare COPY':>20s}{'whole, with key':>20s}   CPU, us a row")
    for name, found in taken.items():
        show(name, home.rows, found, next(iter(taken.values())))


def show(name: str, rows: int, found: list[LoadResult], bare: list[LoadResult]) -> None:
    """Print the line of one way to load; its ratio to bare COPY is computed round by round."""
    cpu = {part: statistics.median(t.cpu_s[part] for t in found) / rows * 1e6 for part in found[0].cpu_s}
    parts = ", ".join(f"{part} {spent:.1f}" for part, spent in cpu.items() if spent >= 0.05)
    alone, whole = rates(rows, [t.rows_s for t in found]), rates(rows, [t.whole_s for t in found])
    of = [b.rows_s / t.rows_s for b, t in zip(bare, found, strict=True)]
    line = f"{name:36s}{alone:>20s}{f'{statistics.median(of):.2f} ({min(of):.2f}-{max(of):.2f})':>20s}"
    print(f"{line}{whole:>20s}   {sum(cpu.values()):.1f}: {parts}" if cpu else line)


def rates(rows: int, seconds: list[float]) -> str:
    """Return the median rate and the extremes."""
    found = [rows / s / 1e3 for s in seconds]
    return f"{statistics.median(found):.0f} ({min(found):.0f}-{max(found):.0f})"


def print_memory(home: LoadSite) -> None:
    """Print the peak memory of every kind of process, for each engine."""
    home.fill()
    for engine in ("local", "spark"):
        name = home.new_target()
        process = subprocess.Popen(
            home.command("migrate", "--target", name, "--engine", engine, "--json"), stdout=subprocess.DEVNULL
        )
        peaks: dict[str, float] = defaultdict(float)
        while process.poll() is None:
            note_memory(psutil.Process(process.pid), home.broker_pid, peaks)
            time.sleep(LOOK_S)
        if process.returncode:
            raise RuntimeError(f"the load ended with {process.returncode}")
        home.drop(name)
        print(
            f"{home.rows:>10,} {engine:6s} " + ", ".join(f"{kind} {mib:.0f} MiB" for kind, mib in sorted(peaks.items()))
        )


def note_memory(command: psutil.Process, broker_pid: int, peaks: dict[str, float]) -> None:
    """Update the peaks of resident memory of a command, its child processes, and the broker."""
    try:
        found = {"command": [command], "broker": [psutil.Process(broker_pid)], "worker": [], "JVM": []}
        for child in command.children(recursive=True):
            found["JVM" if "java" in child.name() else "worker"].append(child)
    except psutil.NoSuchProcess:
        return
    for kind, processes in found.items():
        for process in processes:
            try:
                peaks[kind] = max(peaks[kind], process.memory_info().rss / 2**20)
            except psutil.NoSuchProcess:
                continue


@contextmanager
def run_site(shape: Shape, rows: int) -> Iterator[LoadSite]:
    """Start the server and the broker in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        postgres = EmbeddedPostgres(Path(folder))
        home = LoadSite(Path(folder), postgres, shape, rows)
        try:
            yield home
        finally:
            home.stop()
            postgres.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--wide-rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("narrow", "wide"))
    parser.add_argument("--memory", type=int, nargs="+", metavar="ROWS")
    asked = parser.parse_args()
    jar = os.environ.pop("VENUS_BENCH_PGJDBC", "")  # not an option of VENUS, which would report an unknown one
    if asked.memory:
        print("      rows engine  peak memory of each kind of process")
        for rows in asked.memory:
            with run_site(NARROW, rows) as home:
                print_memory(home)
        return
    for shape, rows in ((NARROW, asked.rows), (WIDE, asked.wide_rows)):
        if asked.only in (None, shape.name):
            with run_site(shape, rows) as home:
                measure(home, asked.rounds, jar)


if __name__ == "__main__":
    main()
