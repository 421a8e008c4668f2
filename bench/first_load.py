"""A first load, from empty broker and target to an equal target: time, CPU and memory by process and phase.

    python -m bench.first_load [--narrow 3000000] [--large 200000] [--times 10] [--rounds 1] [--source postgresql]

Source and target are separate servers, so that the CPU of each is known. `venus migrate` runs as a user runs it; the
processes that it starts are its workers. The peer is `pg_dump -Fd -j2`, then `pg_restore -j2` of the dump, without
compression, for the same tables between the same servers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.loading import wait_for
from bench.processes import ENVIRONMENT, EmbeddedPostgres, free_port, process_cpu_s, server_cpu_s, venus_command
from bench.shapes import NARROW, Shape
from tests.support.databases.mariadb import running_mariadb

LARGE = Shape(
    name="large",
    columns=(
        ("id", "integer", "g"),
        ("body", "text", "repeat(md5(g::text) || md5((g + v)::text) || ' a line of plain text that was typed ', 10)"),
    ),
)
SHAPES = (NARROW, LARGE)
#: Interval between two samples of the processes.
LOOK_S = 0.1
SOURCES = ("postgresql", "mariadb", "sqlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLoadFigures:
    """Measurements of a first load: seconds, CPU time of each part in each phase, and peak memory of VENUS."""

    rows: int
    seconds: float
    phases: Mapping[str, Mapping[str, float]]
    peak_bytes: Mapping[str, int]

    @property
    def cpu_us(self) -> float:
        """Processor time of everything, in microseconds a row."""
        return sum(sum(parts.values()) for parts in self.phases.values()) / self.rows * 1e6

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    def describe_cpu(self) -> str:
        """Return the CPU microseconds per row of each part as text, split by phase."""
        said = []
        for name in dict.fromkeys(name for parts in self.phases.values() for name in parts):
            spent = [parts.get(name, 0.0) / self.rows * 1e6 for parts in self.phases.values()]
            if sum(spent) >= 0.05:
                phases = f" ({' + '.join(f'{us:.1f}' for us in spent)})" if len(spent) > 1 else ""
                said.append(f"{name} {sum(spent):.1f}{phases}")
        return ", ".join(said)


class SourceDatabase:
    """A source that holds the two tables."""

    def __init__(self, kind: str, url: str, cpu_s: Callable[[], float]) -> None:
        self.kind, self.url, self.cpu_s = kind, url, cpu_s


@contextmanager
def open_source(kind: str, home: Path, counts: Mapping[Shape, int]) -> Iterator[SourceDatabase]:
    """Start a source database of this kind, with two tables of these numbers of rows."""
    if kind == "mariadb":
        if shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            raise LookupError("MariaDB is not installed")
        with running_mariadb() as server:
            url = server.create_database()
            for statement in mariadb_statements(counts):
                server.execute(statement, url.rpartition("/")[2].partition("?")[0])
            pid = server.process.pid
            yield SourceDatabase(kind, url, lambda: server_cpu_s(pid))
        return
    if kind == "sqlite":
        file = home / "source.db"
        fill_sqlite(file, counts)
        yield SourceDatabase(kind, f"sqlite:///{file}", lambda: 0.0)  # SQLite runs in capture's process
        return
    (home / "source").mkdir()
    postgres = EmbeddedPostgres(home / "source")
    try:
        with closing(postgres.connect("source")) as connection, connection.cursor() as cursor:
            for shape, count in counts.items():
                cursor.execute(shape.create)
                cursor.execute(shape.insert(1, count))
            cursor.execute("VACUUM ANALYZE")
            cursor.execute("CHECKPOINT")
        yield SourceDatabase(kind, postgres.url("source"), lambda: server_cpu_s(postgres.pid))
    finally:
        postgres.stop()


def mariadb_statements(counts: Mapping[Shape, int]) -> list[str]:
    """Return the statements that create and fill the two tables in MariaDB."""
    narrow, large = counts[NARROW], counts[LARGE]
    return [
        "CREATE TABLE narrow (id int PRIMARY KEY, name varchar(60), city varchar(60), score int)",
        "INSERT INTO narrow SELECT seq, concat('name of student ', lpad(seq, 9, '0'), ' 1'), concat('city number ', "
        f"lpad(seq % 1000, 4, '0'), ' in the far north'), seq * 3 + 1 FROM seq_1_to_{narrow}",
        "CREATE TABLE large (id int PRIMARY KEY, body varchar(1100))",
        "INSERT INTO large SELECT seq, repeat(concat(md5(seq), md5(seq + 1), ' a line of plain text that was typed '),"
        f" 10) FROM seq_1_to_{large}",
    ]


def fill_sqlite(file: Path, counts: Mapping[Shape, int]) -> None:
    """Create and fill the two tables in a SQLite file."""

    def md5(number: int) -> str:
        return hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()

    text = " a line of plain text that was typed "
    with closing(sqlite3.connect(file)) as app, app:
        app.execute("PRAGMA journal_mode = WAL")
        app.execute("CREATE TABLE narrow (id integer PRIMARY KEY, name text, city text, score integer)")
        app.execute("CREATE TABLE large (id integer PRIMARY KEY, body text)")
        app.executemany(
            "INSERT INTO narrow VALUES (?, ?, ?, ?)",
            (
                (g, f"name of student {g:09d} 1", f"city number {g % 1000:04d} in the far north", g * 3 + 1)
                for g in range(1, counts[NARROW] + 1)
            ),
        )
        bodies = ((g, (md5(g) + md5(g + 1) + text) * 10) for g in range(1, counts[LARGE] + 1))
        app.executemany("INSERT INTO large VALUES (?, ?)", bodies)


class UsageSampler:
    """Thread that samples the CPU time and memory of processes, by part, until it is stopped."""

    def __init__(self, sample_usage: Callable[[], tuple[dict[str, float], dict[str, int]]]) -> None:
        self._sample_usage, self._stop = sample_usage, threading.Event()
        self.cpu_s: list[tuple[float, dict[str, float]]] = []
        self.peak_bytes: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="bench-sampler", daemon=True)

    def __enter__(self) -> UsageSampler:
        self.take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.take()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.take()

    def take(self) -> None:
        """Take one sample."""
        cpu_s, memory = self._sample_usage()
        self.cpu_s.append((time.monotonic(), cpu_s))
        for name, nbytes in {**memory, "all": sum(memory.values())}.items():
            self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), nbytes)

    def between(self, began: float, ended: float) -> dict[str, float]:
        """Return the CPU time that each part used between two times; an ended part keeps its last sample."""
        first, last = self._known_at(began), self._known_at(ended)
        return {name: max(0.0, spent - first.get(name, 0.0)) for name, spent in last.items()}

    def _known_at(self, moment: float) -> dict[str, float]:
        """Return the CPU time that each part had used at a moment, by its last sample before."""
        known = dict(self.cpu_s[0][1])  # servers worked before, and on a busy machine the first sample comes late
        for at, found in self.cpu_s:
            if at > moment + LOOK_S / 2:
                break
            for name, spent in found.items():
                known[name] = max(known.get(name, 0.0), spent)
        return known


class FirstLoadSite:
    """A source, and a target server that gets a new database for each measured load."""

    def __init__(self, home: Path, source: SourceDatabase, counts: Mapping[Shape, int]) -> None:
        self._home, self._source, self._counts = home, source, counts
        (home / "target").mkdir()
        self.postgres = EmbeddedPostgres(home / "target")
        self._number = 0

    @property
    def rows(self) -> int:
        """The number of rows in all tables."""
        return sum(self._counts.values())

    def stop(self) -> None:
        """Stop the target."""
        self.postgres.stop()

    def _new_target(self) -> str:
        self._number += 1
        name = f"t{self._number}"
        self._run_sql("postgres", f"CREATE DATABASE {name}", "CHECKPOINT")
        return name

    def _run_sql(self, database: str, *statements: str) -> list[Any]:
        with closing(self.postgres.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    # -- VENUS -------------------------------------------------------------------------------------------------------

    def by_venus(self) -> FirstLoadFigures:
        """Measure a load by VENUS, from a new broker into a new database."""
        name = self._new_target()
        file, folder = self._home / f"{name}.toml", self._home / f"broker-{name}"
        file.write_text(
            f'[source]\nurl = "{self._source.url}"\n[targets.main]\nurl = "{self.postgres.url(name)}"\n'
            f'[broker]\nlisten = "127.0.0.1:{free_port()}"\nhttp = ""\ndata_dir = "{folder}"\n'
        )
        self._run(file, "install-triggers")
        with (self._home / "venus.log").open("a") as log:
            broker = subprocess.Popen(venus_command("broker", file=file), stdout=log, stderr=log, env=ENVIRONMENT)
        try:
            wait_for(lambda: self._broker_answers(file))
            found = self._measure_load(file, broker.pid)
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait(60)
        self._assert_equal(name)
        self._run(file, "uninstall-triggers")
        shutil.rmtree(folder)
        self._run_sql("postgres", f"DROP DATABASE {name} WITH (FORCE)")
        return found

    def _measure_load(self, file: Path, broker: int) -> FirstLoadFigures:
        """Run `venus migrate`, and sample all processes until it ends."""
        ended_before = _ended_cpu_s()
        began = time.monotonic()
        with (
            subprocess.Popen(
                venus_command("migrate", "--engine", "local", "--json", file=file),
                stdout=subprocess.PIPE,
                env=ENVIRONMENT,
            ) as command,
            UsageSampler(lambda: self._sample_usage(broker, command.pid)) as seen,
        ):
            out, _ = command.communicate()
        ended = time.monotonic()
        if command.returncode:
            raise RuntimeError(f"venus migrate: {out.decode()}")
        answer = json.loads(out)
        if answer["rows"] != self.rows:
            raise RuntimeError(f"{answer['rows']} rows instead of {self.rows}")
        return self._split_by_phase(seen, (began, ended), answer, _ended_cpu_s() - ended_before)

    def _split_by_phase(
        self, seen: UsageSampler, times: tuple[float, float], answer: Mapping[str, Any], commands_s: float
    ) -> FirstLoadFigures:
        """Split the usage into reading and loading; loading before the end of the reading counts as reading."""
        began, ended = times
        read = max(began + float(answer["first_fill_seconds"]), ended - float(answer["seconds"]))
        whole = seen.between(began, ended)
        whole["workers"] = max(whole["workers"], commands_s - whole["command"])  # the last part was not sampled
        reading = seen.between(began, min(read, ended))
        loading = {name: max(0.0, spent - reading[name]) for name, spent in whole.items()}
        return FirstLoadFigures(
            rows=self.rows,
            seconds=ended - began,
            phases={"reading": reading, "loading": loading},
            peak_bytes=seen.peak_bytes,
        )

    def _sample_usage(self, broker: int, command: int) -> tuple[dict[str, float], dict[str, int]]:
        """Return the CPU time and the memory of each part now."""
        cpu_s = {"source": self._source.cpu_s(), "target": server_cpu_s(self.postgres.pid)}
        memory: dict[str, int] = {}
        parts: dict[str, list[psutil.Process]] = {"broker": [psutil.Process(broker)], "command": [], "workers": []}
        try:
            parts["command"] = [psutil.Process(command)]
            parts["workers"] = parts["command"][0].children(recursive=True)
        except psutil.NoSuchProcess:
            pass  # it has just ended
        for name, processes in parts.items():
            cpu_s[name] = sum(map(process_cpu_s, processes))
            memory[name] = sum(map(_resident_bytes, processes))
        return cpu_s, memory

    def _broker_answers(self, file: Path) -> bool:
        done = subprocess.run(venus_command("status", "--json", file=file), capture_output=True, text=True)
        return bool(done.stdout) and not json.loads(done.stdout)["broker"]["error"]

    @staticmethod
    def _run(file: Path, *words: str) -> None:
        done = subprocess.run(venus_command(*words, file=file), capture_output=True, text=True, env=ENVIRONMENT)
        if done.returncode:
            raise RuntimeError(f"venus {' '.join(words)}: {done.stdout}{done.stderr}")

    def _assert_equal(self, name: str) -> None:
        """Compare counts and sums of both tables with those of the source."""
        namespace = {"mariadb": self._source.url.rpartition("/")[2].partition("?")[0]}.get(self._source.kind, "public")
        for shape, count in self._counts.items():
            (found,) = self._run_sql(name, f"SELECT count(*), sum(id::bigint) FROM {namespace}.{shape.name}")
            if tuple(map(int, found)) != (count, count * (count + 1) // 2):
                raise RuntimeError(f"{shape.name} has {found} at the target")

    # -- the peer ----------------------------------------------------------------------------------------------------

    def by_pg_dump(self) -> FirstLoadFigures:
        """Measure a load by pg_dump and pg_restore into a new database, both with two jobs."""
        name, folder = self._new_target(), self._home / "dump"
        tables = [word for shape in self._counts for word in ("-t", f"public.{shape.name}")]
        servers_before = self._source.cpu_s() + server_cpu_s(self.postgres.pid)
        ended_before, began = _ended_cpu_s(), time.monotonic()
        dump = ["-Fd", "-j2", "--compress=0", "-f", str(folder), *tables, _libpq_url(self._source.url)]
        restore = ["-j2", "-d", _libpq_url(self.postgres.url(name)), str(folder)]
        for program, words in (("pg_dump", dump), ("pg_restore", restore)):
            done = subprocess.run([self.postgres.program(program), *words], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{program}: {done.stderr}")
        seconds, programs_s = time.monotonic() - began, _ended_cpu_s() - ended_before
        servers_s = self._source.cpu_s() + server_cpu_s(self.postgres.pid) - servers_before
        self._assert_equal(name)
        shutil.rmtree(folder)
        self._run_sql("postgres", f"DROP DATABASE {name} WITH (FORCE)")
        phases = {"all": {"servers": servers_s, "programs": programs_s}}
        return FirstLoadFigures(rows=self.rows, seconds=seconds, phases=phases, peak_bytes={})


def _libpq_url(url: str) -> str:
    return url.replace("postgresql+psycopg2:", "postgresql:")


def _ended_cpu_s() -> float:
    """Return the processor time of all processes that this one has started and waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def measure(
    kind: str, counts: Mapping[Shape, int], rounds: int, *, peer: bool = True
) -> tuple[list[FirstLoadFigures], list[FirstLoadFigures]]:
    """Measure loads by VENUS and, from PostgreSQL, by pg_dump alternately; return the figures of both."""
    ours, theirs = [], []
    with (
        tempfile.TemporaryDirectory(prefix="venus-bench-") as folder,
        open_source(kind, Path(folder), counts) as source,
    ):
        site = FirstLoadSite(Path(folder), source, counts)
        try:
            for _ in range(rounds):
                if peer and kind == "postgresql":
                    theirs.append(site.by_pg_dump())
                ours.append(site.by_venus())
        finally:
            site.stop()
    return ours, theirs


def cpu_table(found: FirstLoadFigures) -> Table:
    """Return a printable table of the CPU microseconds per row, by process and phase."""
    laid = Table("us a row", *found.phases, "all", "peak MiB", title=f"{found.rows:,} rows in {found.seconds:.1f} s")
    for name in ("source", "broker", "command", "workers", "target"):
        spent = [parts.get(name, 0.0) / found.rows * 1e6 for parts in found.phases.values()]
        peak = found.peak_bytes.get(name)
        laid.add_row(name, *(f"{us:.2f}" for us in spent), f"{sum(spent):.2f}", f"{peak >> 20}" if peak else "")
    whole = [sum(parts.values()) / found.rows * 1e6 for parts in found.phases.values()]
    laid.add_row("all", *(f"{us:.2f}" for us in whole), f"{sum(whole):.2f}", f"{found.peak_bytes['all'] >> 20}")
    return laid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--narrow", type=int, default=3_000_000)
    parser.add_argument("--large", type=int, default=200_000)
    parser.add_argument("--times", type=int, default=1, help="multiple of the usual number of rows")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--source", choices=SOURCES, default="postgresql")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    counts = {NARROW: options.narrow * options.times, LARGE: options.large * options.times}
    ours, theirs = measure(options.source, counts, options.rounds, peer=not options.no_peer)
    console = Console(width=120)
    for found in ours:
        console.print(cpu_table(found))
    for found in theirs:
        console.print(
            f"pg_dump and pg_restore: {found.seconds:.1f} s, {found.cpu_us:.2f} us a row: {found.describe_cpu()}"
        )


if __name__ == "__main__":
    main()
