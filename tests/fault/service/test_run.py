"""`venus run` under faults while an application writes: every row arrives, none twice.

Capture, broker and apply die together here: between a half message and its local transaction, between that and the
decision, between the delivery and the target's commit. A run is repeated by its seed; the timing of the processes still
depends on the machine.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.databases.shops import PostgresShop, Shop, SqliteShop
from tests.support.engines import power
from tests.support.pipelines.pipeline import Pipeline, with_password

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(900)]

#: A start takes about a second: some faults come before all parts are connected, most while they work.
ALIVE_MAX_S = 3.0
FROZEN_S = 1.0
#: Bytes by which a file may grow before the disk is full.
ROOM_BYTES = 64 << 10
#: All power cuts may come when nothing is unsynced: then up to this many times as many cuts are made.
MORE = 4
SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'venus %'"""


@dataclass
class DisturbedRun:
    """A `venus run` under faults; its store notes the bytes that are synced."""

    pipeline: Pipeline
    draw: random.Random
    #: Databases in which the faults end the sessions of VENUS.
    databases: list[str]
    lost_bytes: int = 0

    @property
    def synced_note(self) -> Path:
        return self.pipeline.folder / "synced.note"

    def start(self) -> None:
        """Start the process, unless it still runs."""
        if "run" not in self.pipeline.running:
            self.pipeline.start("run", str(self.synced_note), "run", module="tests.support.faults.noted_command")

    def wait(self, most_s: float) -> None:
        """Wait for a random time of at most `most_s` seconds; no condition exists to wait for."""
        threading.Event().wait(self.draw.uniform(0.2, most_s))

    def follow(self) -> None:
        """Wait until the newest process follows the queue."""
        start = "run &\n"
        self.pipeline.until(lambda: "main: following" in self.pipeline.log.read_text().rpartition(start)[2], "the end")

    # -- faults --------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.pipeline.kill("run")

    def cut_power(self) -> None:
        """Kill the process, and drop all or some of the bytes after the last fsync of its store."""
        self.pipeline.kill("run")
        loss = power.lose_some_bytes if self.draw.random() < 0.3 else power.lose_unsynced_bytes
        self.lost_bytes += power.cut(self.pipeline.folder / "data", self.synced_note, self.draw, loss)

    def freeze(self) -> None:
        """Stop the process with SIGSTOP for a while, as a suspended machine would."""
        process = self.pipeline.running["run"]
        os.kill(process.pid, signal.SIGSTOP)
        threading.Event().wait(FROZEN_S)
        os.kill(process.pid, signal.SIGCONT)

    def end_sessions(self) -> None:
        """Let the servers end all sessions of VENUS."""
        for url in self.databases:
            with closing(psycopg2.connect(libpq(url))) as connection, connection.cursor() as cursor:
                cursor.execute(SESSIONS)

    def fill_disk(self) -> None:
        """Let no file of the store grow for a while, as on a full disk; forget a process that ended because of it."""
        process = self.pipeline.running["run"]
        files = (self.pipeline.log, *(self.pipeline.folder / "data" / "db").glob("*"))
        limit_files(process.pid, max(map(file_size, files)) + ROOM_BYTES)
        self.wait(ALIVE_MAX_S)
        limit_files(process.pid, psutil.RLIM_INFINITY)
        before = file_time(self.synced_note)
        # a failed write ends the process within a moment; a write that succeeds now shows that none has failed
        self.pipeline.until(
            lambda: process.poll() is not None or file_time(self.synced_note) > before, "a write, or the end"
        )
        if process.poll() is not None:
            self.pipeline.running.pop("run")

    def use_separate_services(self) -> None:
        """Stop the process in order, run separate services with the same data for a while, then kill their broker."""
        ended = self.pipeline.stop("run")
        assert ended in (0, -signal.SIGTERM), "in order, or before it had begun"
        self.pipeline.start_broker()
        self.pipeline.start("sync", "sync")
        self.wait(ALIVE_MAX_S)
        self.pipeline.kill("broker")
        self.pipeline.stop("sync")


def limit_files(pid: int, nbytes: int) -> None:
    """Limit the file size of a process, unless it has ended."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (nbytes, psutil.RLIM_INFINITY))


def file_size(file: Path) -> int:
    """Return the size of a file, 0 if the store has removed it."""
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def file_time(file: Path) -> int:
    """Return when a file was written, 0 if it does not exist."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns
    return 0


FAULTS: dict[str, list[Callable[[DisturbedRun], None]]] = {
    "kills": [DisturbedRun.kill],
    "power cuts": [DisturbedRun.cut_power],
    "chaos": [
        DisturbedRun.end_sessions,
        DisturbedRun.use_separate_services,
        DisturbedRun.freeze,
        DisturbedRun.fill_disk,
        DisturbedRun.kill,
        DisturbedRun.cut_power,
    ],
}
_SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
_NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server) -> Iterator[Shop]:
    if request.param == "sqlite":
        yield SqliteShop(tmp_path)
        return
    url = postgres_server.create_database()
    yield PostgresShop(postgres_server, url, with_password(url))
    postgres_server.drop_database(url)


@pytest.fixture
def pipeline(shop: Shop, tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    patterns = "" if isinstance(shop, SqliteShop) else 'tables = ["shop.*"]'
    made = Pipeline(folder=tmp_path, source=shop.url, source_options=patterns, targets={"main": with_password(url)})
    made.configure()
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(url)


@pytest.mark.parametrize(
    ("faults", "count", "seed"),
    [pytest.param(name, 6, 1, id=f"{name}-6") for name in FAULTS]
    + [pytest.param(name, 30, 2, marks=_SLOW, id=f"{name}-30") for name in FAULTS]
    + [pytest.param(name, 100, seed, marks=_NIGHTLY, id=f"{name}-100-{seed}") for name in FAULTS for seed in (3, 4)],
)
def test_faults_at_any_moment_lose_and_double_no_row(
    shop: Shop, pipeline: Pipeline, faults: str, count: int, seed: int
) -> None:
    urls = [pipeline.targets["main"], *([] if isinstance(shop, SqliteShop) else [shop.url])]
    running = DisturbedRun(pipeline, random.Random(seed), urls)
    pipeline.venus("install-triggers")
    shop.open_doors()
    number = 0
    while number < count or (faults == "power cuts" and not running.lost_bytes and number < MORE * count):
        running.start()
        running.wait(ALIVE_MAX_S)
        assert pipeline.running["run"].poll() is None, pipeline.tail()
        FAULTS[faults][number % len(FAULTS[faults])](running)
        number += 1
    running.start()
    running.follow()
    shop.close_doors()
    pipeline.wait_until_caught_up("main")

    assert shop.differences(pipeline.targets["main"]) == []
    assert pipeline.ask("verify", "--target", "main")["verdict"] == "same"
    assert pipeline.stop("run") == 0
    if faults == "power cuts":
        assert running.lost_bytes, "nothing was ever unsynced: the power cuts cut nothing"
