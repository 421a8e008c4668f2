"""A mirror loses its disk while writers work: its readers become equal by themselves, and see no gap.

The home, the mirror, capture and the targets below the mirror are the processes that a user would start.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.parquet as pq
import pytest

from tests.support.brokers import networks
from tests.support.brokers.feed import query
from tests.support.brokers.servers import business_status
from tests.support.databases.postgres import Server, libpq
from tests.support.databases.sqlite import keep_writing
from tests.support.pipelines.pipeline import Pipeline
from tests.support.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

HOME = """\
[source]
url = "sqlite:///app.db"
[capture]
heartbeat_s = 1.0
[broker]
listen = "{home}"
http = "127.0.0.1:0"
data_dir = "hq"
free_bytes_min = 0
[cluster]
set = "hq"
"""
MIRROR = """\
[broker]
listen = "{mirror}"
http = "127.0.0.1:0"
data_dir = "lyon"
free_bytes_min = 0
[cluster]
set = "lyon"
tier = "access"
level = 1
upstream = ["{home}"]
[lake]
commit_s = 0.1
refresh_s = 0.1
[targets.main]
url = "{main}"
[targets.lake]
url = "parquet://{folder}/lake"
"""
ROWS = 200
OWN = """\
CREATE VIEW total AS SELECT count(*) AS n FROM t;
CREATE ROLE lost_mirror_reader; GRANT SELECT ON t TO lost_mirror_reader"""


class Region:
    """A head office with writers, a mirror below it, and two kinds of targets below the mirror."""

    def __init__(self, folder: Path, url: str) -> None:
        home, self.mirror = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.url, self.folder = url, folder
        with closing(sqlite3.connect(folder / "app.db")) as app, app:
            app.execute("PRAGMA journal_mode = wal")
            app.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
            app.executemany("INSERT INTO t VALUES (?, 'old')", [(n,) for n in range(ROWS)])
        self.pipeline = Pipeline(folder=folder, source="", targets={"main": url})
        (folder / "hq.toml").write_text(HOME.format(home=home))
        (folder / "venus.toml").write_text(MIRROR.format(home=home, mirror=self.mirror, main=url, folder=folder))
        self.pipeline.venus("install-triggers", "-c", "hq.toml")
        self.pipeline.start("broker hq", "broker", "-c", "hq.toml")
        self.pipeline.start("capture", "sync", "--capture-only", "-c", "hq.toml")
        self.start_mirror()
        self.home = home
        self.wait_for_mirror()
        for target in ("main", "lake"):
            self.pipeline.venus("migrate", "--target", target)
        query(url, OWN)
        self.start_sync()

    def start_mirror(self) -> None:
        self.pipeline.start("broker", "broker")

    def start_sync(self) -> None:
        self.pipeline.start("sync", "sync", "--apply-only")

    def wait_for_mirror(self) -> None:
        """Wait until the mirror follows the home."""

        def is_following() -> bool:
            mirror = networks.mirror_of(self.mirror)
            return mirror is not None and mirror.state == "following"

        self.pipeline.until(is_following, "the mirror to follow")

    def count_at_home(self) -> int:
        return business_status(self.home).next_offset

    def write_in_background(self) -> AbstractContextManager[None]:
        """Change rows in a thread until the end of the block."""
        return keep_writing(self.folder / "app.db", keys=300, every_s=0.02)

    @contextmanager
    def reading(self) -> Iterator[list[int]]:
        """Count the rows at the target repeatedly, through a view that belongs to its owner."""
        stop, seen = threading.Event(), list[int]()

        def read_totals() -> None:
            with closing(psycopg2.connect(libpq(self.url))) as connection:
                connection.autocommit = True
                cursor = connection.cursor()
                while not stop.wait(0.005):
                    cursor.execute("SELECT n FROM total")
                    seen.append(cursor.fetchall()[0][0])

        thread = threading.Thread(target=read_totals)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()

    def source(self) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "app.db", timeout=30)) as app:
            return app.execute("SELECT id, v FROM t ORDER BY id").fetchall()

    def lake(self) -> list[tuple[Any, ...]]:
        """Return the newest state, or no rows if two newer states replaced it while it was read."""
        (state,) = (self.folder / "lake" / "current").glob("*.t")
        try:
            rows = pq.read_table(state.resolve(), partitioning=None).select(["id", "v"]).to_pylist()
        except FileNotFoundError:
            return []
        return sorted((row["id"], row["v"]) for row in rows)

    def target_rows(self) -> list[list[tuple[Any, ...]]]:
        return [query(self.url, "SELECT id, v FROM t ORDER BY id"), self.lake()]

    def wait_until_equal(self) -> None:
        self.pipeline.until(lambda: self.target_rows() == [self.source()] * 2, "both targets to be equal", every_s=0.2)

    def lose_mirror(self) -> None:
        """Delete the mirror's data while the queue above continues; its targets lack the changes of that time."""
        self.pipeline.kill("broker")
        shutil.rmtree(self.folder / "lyon")
        end = self.count_at_home()
        self.pipeline.until(lambda: self.count_at_home() > end + 20, "the queue above to continue")
        self.start_mirror()
        self.wait_for_mirror()


@pytest.fixture
def region(tmp_path: Path, postgres_server: Server) -> Iterator[Region]:
    url = postgres_server.create_database()
    made = Region(tmp_path, url)
    yield made
    made.pipeline.close()
    query(url, "DROP OWNED BY lost_mirror_reader; DROP ROLE lost_mirror_reader")
    postgres_server.drop_database(url)


def test_targets_below_a_mirror_that_lost_its_disk_become_equal_by_themselves(region: Region) -> None:
    with region.write_in_background(), region.reading() as seen:
        region.pipeline.until(lambda: region.count_at_home() > ROWS + 100, "changes")
        region.lose_mirror()
        region.pipeline.until(
            lambda: region.pipeline.tail().count("resyncing every table with the full data") >= 1,
            "a target to start over",
        )
    region.wait_until_equal()
    with region.write_in_background():
        end = region.count_at_home()
        region.pipeline.until(lambda: region.count_at_home() > end + 50, "more changes")
    region.wait_until_equal()

    assert min(seen) > 0
    assert query(region.url, "SELECT has_table_privilege('lost_mirror_reader', 't', 'SELECT')") == [(True,)]
    assert region.pipeline.running["sync"].poll() is None

    def has_no_problem() -> bool:
        return not [text for text in region.pipeline.status()["problems"] if "target" in text]

    region.pipeline.until(has_no_problem, "targets without problems")
