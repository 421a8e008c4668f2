"""The steps of the demo, which use only commands that a user has.

Each comparison covers every row of every table, by code that shares nothing with VENUS (shop.py).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import psycopg2
import sqlalchemy as sa

from venus.cli.demo.servers import (
    CommandRunner,
    DemoFailed,
    Postgres,
    find_free_ports,
    is_listening,
    peak_rss_bytes,
    wait_for,
)
from venus.cli.demo.shop import Workload, build_shop, compare_shop
from venus.cli.spark import can_use_spark
from venus.config import Settings
from venus.text.formatting import format_bytes, format_duration


def compare_with_forecast(forecast: Mapping[str, Any], *, rows: int, seconds: float, disk_bytes: int) -> str:
    """Compare the forecast of `venus assess` with the load, in one line. Row counts differ: the shop kept writing."""
    off = max(forecast["fill_seconds"] / seconds, seconds / forecast["fill_seconds"]) if seconds else 1.0
    expected = f"{forecast['rows']:,} rows in {format_duration(forecast['fill_seconds'])}"
    bound = f"at most {format_bytes(forecast['broker_bytes'])} at the broker"
    happened = f"it took {format_duration(seconds)} (factor {off:.1f}) for {rows:,} rows, {format_bytes(disk_bytes)}"
    return f"forecast {expected}, {bound}; {happened}"


def largest_folder_bytes(folders: Iterable[Path]) -> int:
    """Return the bytes of the largest of these folders; files may disappear during the count."""
    return max((sum(_file_sizes(folder)) for folder in folders), default=0)


def _file_sizes(folder: Path) -> Iterable[int]:
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                yield (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue


#: Statements that damage a target, each with the finding that `venus verify` must report.
_DAMAGE = {
    "UPDATE customers SET balance = balance + 0.01 WHERE id = 7": ("main.customers", "different", "apply"),
    "DELETE FROM order_lines WHERE (order_id, line_no) = (SELECT order_id, line_no FROM order_lines LIMIT 1)": (
        "main.order_lines",
        "missing",
        "apply",
    ),
    "INSERT INTO products (sku, name, price, stock, active) VALUES ('GHOST', 'g', 1, 1, true)": (
        "main.products",
        "extra",
        "apply",
    ),
}


def damage_and_repair(commands: CommandRunner, target: str, url: str, engine: str) -> dict[str, Any]:
    """Damage a target, let verify find and repair it, and return the document of a second comparison by `engine`."""
    with closing(psycopg2.connect(sa.make_url(url).set(drivername="postgresql").render_as_string(False))) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            for statement in _DAMAGE:
                cursor.execute(statement)
                if cursor.rowcount != 1:
                    raise DemoFailed(f"the target could not be damaged: {statement}")
        connection.commit()
    found = commands.run("verify", "--target", target, "--repair", "--wait-s", "60", codes=(0, 1, 3))
    reported = sorted((f["table"], f["kind"], f["fault"]) for f in found["findings"])
    if reported != sorted(_DAMAGE.values()) or found["repair"]["repaired"] != len(_DAMAGE):
        raise DemoFailed(f"verify did not find and repair exactly the damage: {reported}, {found['repair']}")
    document: dict[str, Any] = commands.run(
        "verify", "--target", target, "--leg", "all", "--engine", engine, codes=(0, 1, 3)
    )
    return document


#: How long the workload runs in each part.
BUSY_S = 3.0
#: Long enough for a busy machine, where two seconds of work may take a minute.
CATCH_UP_TIMEOUT_S = 240.0
CONFIGURATION = """\
[source]
url = "sqlite:///shop.db"

[targets.main]
url = "{main}"
{more}
[broker]
listen = "127.0.0.1:{grpc}"
http = "127.0.0.1:{http}"
data_dir = "data"
free_bytes_min = 67108864
review_after_s = 1.0

[capture]
heartbeat_s = 1.0
"""
SECOND = """
[targets.second]
url = "{second}"
"""


Step: TypeAlias = tuple[str, Callable[[], None]]

BY = {"spark": "Spark, with its start", "local": "processes"}


def choose_engine() -> str:
    """Return the engine that moves and compares rows: Spark if it can be started, else local processes."""
    return "spark" if can_use_spark(Settings()) else "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoProof:
    """One check that the demo has made: what was compared, and how many rows differed."""

    what: str
    rows: int = 0
    seconds: float = 0.0
    different: int = 0
    examples: tuple[str, ...] = field(default=())


class Demo:
    """The steps of `venus demo` with one broker, in one folder."""

    def __init__(self, home: Path, sizes: dict[str, int], say: Callable[[str], None]) -> None:
        self._home = home
        self._sizes = sizes
        self._say = say
        self._source = home / "shop.db"
        self._postgres = Postgres(home / "postgres")
        self._commands = CommandRunner(home, home / "venus.log", lambda line: say(f"  {line}"))
        self._workload = Workload(self._source)
        self._figures: dict[str, Any] = {}
        self._forecast: dict[str, Any] = {}
        self._proofs: list[DemoProof] = []
        self._ports: list[int] = []
        self._opened = time.monotonic()

    def run(self) -> list[DemoProof]:
        """Run every step; the first error ends the demo."""
        for title, step in self.steps():
            self._say(f"* {title}")
            step()
        self._record_figures()
        return self._proofs

    def steps(self) -> tuple[Step, ...]:
        """Return the title and the function of each step, in order."""
        return (
            ("A shop in SQLite, an embedded PostgreSQL", self._set_up),
            ("Assess and check", self._assess),
            ("One command installs, loads and follows while the shop is in use", self._run),
            ("Kill it (kill -9) and start it again", self._kill_and_restart),
            ("A second target, with the source file moved away; the broker as a service", self._add_second_target),
            ("The source is back, all in one process again: both targets follow", self._run_both),
            ("Damage rows at a target: verify finds and repairs them", self._verify),
        )

    def figures(self) -> dict[str, Any]:
        """Return the figures that the demo has measured, by name."""
        return self._figures

    def look_around(self) -> dict[str, str]:
        """Return commands with which a user can inspect the demo."""
        home = shlex.quote(str(self._home))
        venus = f"cd {home} && venus"
        return {
            "source": f"sqlite3 {shlex.quote(str(self._source))}",
            "target main": f"{self._postgres.psql} shop",
            "target second": f"{self._postgres.psql} second",
            "status": f"{venus} status",
            "status page": f"http://127.0.0.1:{self._ports[1]}/",
            "metrics": f"curl http://127.0.0.1:{self._ports[1]}/metrics",
            "configuration": str(self._home / "venus.toml"),
            "log": str(self._home / "venus.log"),
            "end it": f"kill {' '.join(map(str, self._pids()))}; rm -r {home}",
        }

    def close(self) -> None:
        """Stop all processes of the demo."""
        try:
            self._workload.stop()
        finally:
            self._commands.stop_all()
            self._postgres.stop()

    # -- the steps -----------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """Create the shop and the configuration, and start PostgreSQL."""
        started = time.monotonic()
        rows = build_shop(self._source, **self._sizes)
        self._postgres.start()
        self._ports = find_free_ports(2)
        self._configure()
        self._say(f"  {rows:,} rows in 4 tables; ready after {time.monotonic() - started:.1f} s")

    def _configure(self, more: str = "") -> None:
        """Write venus.toml; `more` is the section of a second target."""
        main = self._postgres.url("shop")
        text = CONFIGURATION.format(main=main, more=more, grpc=self._ports[0], http=self._ports[1])
        (self._home / "venus.toml").write_text(text)

    def _assess(self) -> None:
        """Run `venus assess` and `venus check`, and keep the forecast."""
        self._forecast = self._commands.run("assess")["forecast"]
        self._commands.run("check")

    def _prove_installed(self) -> None:
        """Check that a second installation of the triggers creates nothing."""
        started = time.monotonic()
        again = self._commands.run("install-triggers")
        if again["created"]:
            raise DemoFailed(f"the second installation of triggers created {again['created']}")
        self._proofs.append(
            DemoProof(what="triggers installed twice, the second time nothing", seconds=elapsed_s(started))
        )

    def _run(self) -> None:
        """Start `venus run` while the shop is in use, wait for the load, and compare the databases."""
        self._workload.start()
        started = time.monotonic()
        self._commands.start("run", "run", "--install", "--json")
        loaded = wait_for(lambda: self._find_event("loaded"), "the load", CATCH_UP_TIMEOUT_S)
        self._record_load(loaded["rows"], elapsed_s(started))
        self._prove_installed()
        self._stay_busy()
        self._workload.stop()
        self._wait_for_targets("main")
        self._compare("loaded and followed under load", "shop", started)

    def _record_load(self, rows: int, seconds: float) -> None:
        """Record the figures of a load, and compare them with the forecast."""
        self._figures["rows loaded into main"] = rows
        self._figures["loaded, rows/s"] = round(rows / seconds)
        self._say(f"  {rows:,} rows in {seconds:.1f} s, while the shop wrote")
        disk = largest_folder_bytes(self._home.glob("data*"))
        happened = compare_with_forecast(self._forecast, rows=rows, seconds=seconds, disk_bytes=disk)
        self._figures["assessed before"] = happened
        self._say(f"  assessed before: {happened}")

    def _find_event(self, name: str) -> dict[str, Any] | None:
        """Return the newest event of this name in the log of `venus run --json`."""
        if not self._commands.is_alive("run"):
            raise DemoFailed("venus run ended", hint=f"see {self._home / 'venus.log'}")
        lines = [line for line in (self._home / "venus.log").read_text().splitlines() if line.startswith('{"')]
        events = (json.loads(line) for line in reversed(lines) if f'"{name}"' in line and line.endswith("}"))
        return next((event for event in events if event.get("event") == name), None)

    def _kill_and_restart(self) -> None:
        """Kill `venus run` under load, start it again, and compare the databases."""
        started = time.monotonic()
        self._workload.start()
        self._stay_busy(BUSY_S / 2)
        self._commands.kill("run")
        self._stay_busy(BUSY_S / 2)  # the shop does not notice
        self._start("run")
        self._stay_busy(BUSY_S / 2)
        self._workload.stop()
        self._wait_for_targets("main")
        self._compare("kill -9 under load", "shop", started)

    def _add_second_target(self) -> None:
        """Load a second target while the source is away, and compare it with the source."""
        self._commands.stop("run")
        self._configure(SECOND.format(second=self._postgres.url("second")))
        self._start("broker")
        away = self._home / "moved-away"
        away.mkdir()
        for file in self._home.glob("shop.db*"):  # with -wal and -shm, if these exist
            shutil.move(file, away / file.name)
        started = time.monotonic()
        engine = choose_engine()
        report = self._commands.run("migrate", "--target", "second", "--engine", engine)
        self._figures["rows loaded into second"] = report["rows"]
        self._figures["loaded without the source"] = f"by {BY[report['engine']]}, in {report['seconds']:.1f} s"
        if self._source.exists():
            raise DemoFailed("the load without a source made a new source file")
        self._compare("second target, the source gone", "second", started, source=away / self._source.name)
        for file in away.iterdir():
            shutil.move(file, self._home / file.name)

    def _run_both(self) -> None:
        """Apply changes to both targets with `venus run`, and compare them with the source."""
        started = time.monotonic()
        self._commands.stop("broker")
        self._start("run")
        self._workload.start()
        self._stay_busy()
        self._workload.stop()
        self._wait_for_targets("main", "second")
        self._compare("source back, first target", "shop", started)
        self._compare("source back, second target", "second", started)

    def _verify(self) -> None:
        """Damage a target, and check that `venus verify` finds and repairs exactly that."""
        started = time.monotonic()
        engine = choose_engine()
        found = damage_and_repair(self._commands, "main", self._postgres.url("shop"), engine)
        self._say(f"  3 differences found and repaired; all legs then, by {BY[engine]}: {found['verdict']}")
        self._figures["all legs compared"] = f"by {BY[engine]}, in {found['seconds']:.1f} s: {found['verdict']}"
        proof = DemoProof(
            what="verify, after it has found and repaired damage",
            seconds=elapsed_s(started),
            rows=sum(t["rows"] for t in found["tables"] if t["compared"].endswith("target")),
            different=len(found["findings"]) + len(found["undecided"]),
        )
        self._proofs.append(proof)

    # -- parts of steps ------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        """Start `venus run` or `venus broker`, and wait until it listens."""
        self._commands.start(name, name)
        wait_for(lambda: is_listening(self._ports[0]) or not self._commands.is_alive(name), f"venus {name}")
        if not self._commands.is_alive(name):
            raise DemoFailed(f"venus {name} ended", hint=f"see {self._home / 'venus.log'}")

    def _stay_busy(self, seconds: float = BUSY_S) -> None:
        """Let the workload run for some seconds; if it fails, raise its error."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._workload.error is None:
            time.sleep(0.05)
        if self._workload.error is not None:
            self._workload.stop()

    def _wait_for_targets(self, *targets: str) -> None:
        """Wait until the log at the source is empty and everything at the broker is applied.

        The source's log in one status is compared with the broker's queue in the next status. Within one status, a cut
        that leaves the log during the read could be missed in both.
        """
        waiting = 1

        def is_done() -> bool:
            """Return whether the source's log is empty and the targets have applied the whole queue."""
            nonlocal waiting
            found = self._commands.run("status", codes=(0, 1), quiet=True)
            waited, waiting = waiting, sum(t["log_rows"] for t in found["source"]["tables"])
            broker = found["broker"]
            offsets = {t["name"]: t["offset"] for t in found["targets"]}
            level = all(offsets[name] >= broker["next_offset"] for name in targets)
            return not waited and not broker["error"] and not broker["halves"] and level

        wait_for(is_done, f"{' and '.join(targets)} to catch up", CATCH_UP_TIMEOUT_S, every_s=0.5)

    def _compare(self, what: str, database: str, started: float, *, source: Path | None = None) -> None:
        """Compare the shop with a database of the target server, and record the result."""
        found = compare_shop(source or self._source, self._postgres.url(database))
        proof = DemoProof(
            what=what,
            rows=found.total,
            seconds=elapsed_s(started),
            different=found.different,
            examples=tuple(found.examples),
        )
        self._proofs.append(proof)
        self._say(f"  compared {found.total:,} rows: {found.different:,} different")

    def _record_figures(self) -> None:
        """Record the figures at the end of the demo, mainly from `venus status`."""
        status = self._commands.run("status", codes=(0, 1))
        counters = status["broker"]["counters"]
        lag = {name: value for name, value in status["lag"]["end_to_end_s"].items() if value is not None}
        figures = self._figures
        figures["transactions of the shop"] = self._workload.transactions
        figures["rolled back by the shop"] = self._workload.rolled_back
        figures["changes through the broker"] = status["broker"]["next_offset"]
        figures["reviews sent by the broker"] = counters.get("reviews_sent", 0)
        figures["duplicates suppressed"] = counters.get("duplicate_rows", 0)
        figures["lag at the end, s"] = max(lag.values(), default=0.0)
        running = [process.pid for process in self._commands.running.values()]
        figures["peak memory of a process"] = format_bytes(max(map(peak_rss_bytes, running)))
        figures["seconds in all"] = elapsed_s(self._opened)
        figures["status"] = status["verdict"]

    def _pids(self) -> list[int]:
        """Return the ids of the processes that still run."""
        own = [process.pid for process in self._commands.running.values()]
        return own + ([pid] if (pid := self._postgres.pid) else [])


def elapsed_s(started: float) -> float:
    """Return the seconds since `started`, to a tenth."""
    return round(time.monotonic() - started, 1)
