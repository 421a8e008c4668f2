"""Scenario 80: a schema of 500 tables. An idle table must not add to the cost of an active one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, slowdown_by_others, with_password

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

TABLES = 500
#: On an otherwise idle machine; a busy one may take longer by the factor that a computation takes.
INSTALLED_S = 20.0
CHANGES = 15
VISIBLE_S = 0.1
IDLE_S = 10.0
IDLE_SHARE = 0.03


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    source, target = (postgres_server.create_database() for _ in range(2))
    made = Pipeline(folder=tmp_path, source=with_password(source), targets={"main": with_password(target)})
    made.configure()
    try:
        yield made
    finally:
        made.close()
        for url in (source, target):
            postgres_server.drop_database(url)


def test_five_hundred_tables_are_installed_soon_and_use_no_cpu_while_idle(pipeline: Pipeline) -> None:
    with (
        closing(psycopg2.connect(libpq(pipeline.source))) as source,
        closing(psycopg2.connect(libpq(pipeline.targets["main"]))) as target,
    ):
        source.autocommit = target.autocommit = True
        writer, reader = source.cursor(), target.cursor()
        for n in range(TABLES):
            writer.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, v text); INSERT INTO t{n} VALUES (1, 'one')")
        crowded = slowdown_by_others()
        began = time.monotonic()
        pipeline.venus("install-triggers")
        installed_s = time.monotonic() - began
        pipeline.start_broker()
        pipeline.venus("migrate", "--target", "main")
        pipeline.start("sync", "sync")
        pipeline.wait_until_caught_up("main")
        idle = _share([pipeline.running[name].pid for name in ("broker", "sync")])
        times = []
        for n in range(CHANGES):
            writer.execute(f"UPDATE t{7 * n} SET v = 'two' WHERE id = 1")
            times.append(_wait_for_rows(reader, f"SELECT v FROM t{7 * n} WHERE id = 1", [("two",)]))
    crowded = max(crowded, slowdown_by_others())
    pipeline.venus("verify")

    assert installed_s <= INSTALLED_S * crowded
    assert statistics.median(times) <= VISIBLE_S * crowded
    assert idle <= IDLE_SHARE


def _share(pids: list[int]) -> float:
    """Return the share of a core that the processes and their children use while the source is idle."""
    family = [each for pid in pids for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]

    def used_s() -> float:
        return sum(sum(each.cpu_times()[:2]) for each in family)

    before = used_s()
    time.sleep(IDLE_S)
    return (used_s() - before) / IDLE_S


def _wait_for_rows(reader: psycopg2.extensions.cursor, statement: str, rows: list[tuple[str]]) -> float:
    """Query until the answer is `rows`; return how many seconds that took."""
    began = time.monotonic()
    while time.monotonic() - began < 30:
        reader.execute(statement)
        if reader.fetchall() == rows:
            break
        time.sleep(0.002)
    return time.monotonic() - began
