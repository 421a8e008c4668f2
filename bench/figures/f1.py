"""F1: seconds without a writable database at a switch, there and back, with an application that writes 1,000 tx/s.

The application stops, and the switch begins at once. The time runs from its last commit at one database to the first
write that the other one accepts. The switch compares schemas, rows and foreign keys; this part depends on the size of
the tables, and is listed separately. A probe measures how long neither database accepts a write.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from bench.figures.figure import Figure, FigureResult, at_most
from bench.processes import EmbeddedPostgres, VenusProcesses
from bench.trickle import SteadyApplication
from venus.adapters.cutover.direction import check_pair
from venus.adapters.cutover.run import CutoverRequest, run_cutover
from venus.adapters.targets.switching import OLD
from venus.config import load

GOAL_S = 5.0
RATE = 1_000
TABLE = "tick"
_CREATE = f"CREATE TABLE {TABLE} (id integer PRIMARY KEY, v text)"
_WRITE = f"UPDATE {TABLE} SET v = v WHERE false"
#: First words of the steps in which a switch compares.
_COMPARES = ("compares", "hashes", "checks the foreign keys")
_ARRIVE_S = 60.0
#: The database that gets the changes, by the database that the application uses.
OTHER = {"source": "target", "target": "source"}


class SwitchedSite:
    """Two databases with `venus sync` between them; `owner` is the one that the application uses."""

    def __init__(self, home: Path) -> None:
        self.postgres = EmbeddedPostgres(home)
        self.venus = VenusProcesses(home, self.postgres)
        self.cursors: dict[str, Any] = {name: self.postgres.connect(name).cursor() for name in OTHER}
        self.owner = "source"
        self._next = 0

    def start(self) -> None:
        """Install, load the empty table, and start the processes."""
        self.cursors["source"].execute(_CREATE)
        self.venus.run("install-triggers")
        self.venus.start("broker", "broker")
        _wait_for_broker(load(self.venus.file).broker.listen)
        self.venus.run("migrate", "--target", "main")
        self.venus.start("sync", "sync")

    def stop(self) -> None:
        """Stop everything."""
        self.venus.stop()
        for cursor in self.cursors.values():
            cursor.connection.close()
        self.postgres.stop()

    def commit(self, rate: int, seconds: float) -> range:
        """Let the application commit rows at its database for a time; return their keys."""
        application = SteadyApplication(self.postgres, rate, self.owner)
        application.open()
        application.take(self._next)
        keys = application.commit(TABLE, seconds)
        application.close()
        self._next = keys.stop
        return keys

    def wait_for_rows(self, keys: range) -> None:
        """Wait until the other database has these rows."""
        end = time.monotonic() + _ARRIVE_S
        text = f"SELECT count(*) FROM {TABLE} WHERE id BETWEEN {keys[0]} AND {keys[-1]}"
        while self._count(OTHER[self.owner], text) < len(keys):
            self.venus.check()
            if time.monotonic() > end:
                raise RuntimeError(f"rows did not arrive: {self.venus.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def _count(self, database: str, text: str) -> int:
        self.cursors[database].execute(text)
        return int(self.cursors[database].fetchone()[0])

    def switch(self) -> float:
        """Switch the application to the other database; return the seconds that the comparisons of the switch took."""
        settings = load(self.venus.file)
        pair = check_pair(settings, "main")
        name = "main" if self.owner == "source" else OLD
        clock = _StepClock()
        request = CutoverRequest(pair=pair, quiet_s=0.0, wait_s=_ARRIVE_S, head=_HEAD)
        run_cutover(pair.settings_to(name), name, request, clock.on_step)
        clock.on_step("", 0, 0)
        self.owner = OTHER[self.owner]
        return sum(seconds for step, seconds in clock.seconds.items() if step.startswith(_COMPARES))


def _wait_for_broker(address: str) -> None:
    """Wait until the broker accepts connections."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _ARRIVE_S
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


_HEAD = {"venus": "", "made_at": "", "made_by": "bench", "source_url": "", "target_url": ""}


class _StepClock:
    """Clock that measures how many seconds a switch spends in each step that it reports."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._step, self._began = "", time.monotonic()

    def on_step(self, step: str, _done: int, _total: int) -> None:
        """Add the time since the last step to that step."""
        now = time.monotonic()
        self.seconds[self._step] = self.seconds.get(self._step, 0.0) + now - self._began
        self._step, self._began = step, now


class _WriteClock:
    """Probe that writes to both databases continually, and records when each accepts a write."""

    def __init__(self, site: SwitchedSite) -> None:
        self._site = site
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_repeatedly, daemon=True)
        #: Times of the last accepted write, and of the first accepted one since the last rejected one.
        self.last: dict[str, float] = {}
        self.since: dict[str, float] = {}

    @contextmanager
    def probe(self) -> Iterator[None]:
        """Probe both databases within the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _write_repeatedly(self) -> None:
        """Write to both databases repeatedly until the end; record which writes they accept."""
        cursors = {name: self._site.postgres.connect(name).cursor() for name in OTHER}
        while not self._stop.wait(0.002):
            for name, cursor in cursors.items():
                try:
                    cursor.execute(_WRITE)
                except psycopg2.Error:
                    self.since.pop(name, None)
                else:
                    self.last[name] = time.monotonic()
                    self.since.setdefault(name, self.last[name])
        for cursor in cursors.values():
            cursor.connection.close()


def measure_switch(site: SwitchedSite, seconds: float) -> tuple[float, float, float]:
    """Switch once; return the seconds without a write, of comparisons, and with both databases closed to writes."""
    before = site.owner
    site.wait_for_rows(site.commit(RATE, 1.0))  # wait until changes flow in this direction
    site.commit(RATE, seconds)
    stopped_at = time.monotonic()
    clock = _WriteClock(site)
    with clock.probe():
        compared_s = site.switch()
        time.sleep(0.05)
    opened_at = clock.since[site.owner]
    return opened_at - stopped_at, compared_s, opened_at - clock.last[before]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure F1 and return its lines."""
    times, seconds = (2, 2.0) if quick else (6, 10.0)
    with tempfile.TemporaryDirectory() as name:
        site = SwitchedSite(Path(name))
        try:
            site.start()
            found = [measure_switch(site, seconds) for _ in range(times)]
        finally:
            site.stop()
    what = f"last write to first write, {times} switches at {RATE:,} tx/s, without comparison"
    away = max(total - compared for total, compared, _ in found)
    closed = max(closed for *_, closed in found)
    compared = max(compared for _, compared, _ in found)
    return [
        at_most(what, away, GOAL_S, "s"),
        at_most("of that: neither database accepts a write", closed, GOAL_S, "s"),
        FigureResult(
            what="comparison of schemas, rows and keys", ours=f"{compared:.2f} s", goal="named apart", met=True
        ),
    ]


FIGURE = Figure(id="F1", title="a switch of the application between two databases", measure=run)
