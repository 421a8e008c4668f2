"""Writers against the poller: no change is lost, and the application never waits long for VENUS."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.databases.sqlite import Shop, application, open_shop
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.capture import capture, cut
from venus.adapters.dialects.sqlite.capture.cut import PIECE_ROWS, SLACK_ROWS
from venus.adapters.dialects.sqlite.connection import write_transaction

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.integration

#: So many have to follow each other.
CUTS = 5
DDL = """
    CREATE TABLE a (id INTEGER PRIMARY KEY, u TEXT UNIQUE, v INT);
    CREATE TABLE b (x INT, y TEXT COLLATE NOCASE, v INT, PRIMARY KEY (x, y)) WITHOUT ROWID;
    CREATE TABLE account (id INTEGER PRIMARY KEY, branch INT, money INT);
"""
ACTIONS = (
    "INSERT OR REPLACE INTO a VALUES (:i, 'u' || :j, :n)",
    "INSERT OR IGNORE INTO a VALUES (:i, 'u' || :j, :n)",
    "UPDATE OR REPLACE a SET u = 'u' || :j, id = id + :i WHERE id = :j",
    "DELETE FROM a WHERE id = :i",
    "UPDATE a SET v = :n WHERE id BETWEEN :i AND :j",
    "INSERT OR REPLACE INTO b VALUES (:i % 5, CASE :n % 2 WHEN 0 THEN 'k' ELSE 'K' END || :j, :n)",
    "UPDATE OR REPLACE b SET y = upper(y), v = :n WHERE x = :i % 5",
    "DELETE FROM b WHERE x = :i % 5 AND v < :n",
)


def write(file: Path, seed: int, ended: threading.Event, waits: list[float], errors: list[BaseException]) -> None:
    """Write as an application: short random transactions, some rolled back, some held open for a while."""
    draw = random.Random(seed)
    app = application(file)
    app.execute("PRAGMA busy_timeout = 60000")
    try:
        while not ended.is_set():
            start = time.monotonic()
            app.execute("BEGIN IMMEDIATE")
            waits.append(time.monotonic() - start)
            for _ in range(draw.randint(1, 6)):
                values = {"i": draw.randrange(60), "j": draw.randrange(60), "n": draw.randrange(1000)}
                app.execute(draw.choice(ACTIONS), values)
            money = draw.randint(1, 50)
            app.execute("UPDATE account SET money = money - ? WHERE id = ?", (money, draw.randrange(10)))
            app.execute("UPDATE account SET money = money + ? WHERE id = ?", (money, draw.randrange(10)))
            time.sleep(draw.choice((0, 0, 0.001)))
            app.execute("ROLLBACK" if draw.random() < 0.2 else "COMMIT")
    except BaseException as e:
        errors.append(e)
    finally:
        app.close()


def race(shop: Shop, seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[float], int]:
    """Let four writers write while the copy follows, for a time and until there are cuts of several sizes.

    Return their waits, VENUS's lock times, and how many cuts there were.
    """
    waits: list[float] = []
    errors: list[BaseException] = []
    held: list[float] = []
    _measure_locks(held, monkeypatch)
    ended, until = threading.Event(), time.monotonic() + seconds
    threads = [threading.Thread(target=write, args=(shop.file, s, ended, waits, errors)) for s in range(4)]
    for thread in threads:
        thread.start()
    cuts = 0
    try:
        while any(t.is_alive() for t in threads):
            if time.monotonic() >= until and cuts > CUTS:
                ended.set()
            if shop.copy.follow():
                cuts += 1
                total = sum(int(str(v[1])) for v in shop.copy.content("account").values())
                assert total in (0, 1000), "a cut shows whole transactions"
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    shop.copy.catch_up()
    assert not errors, errors
    return waits, held, cuts


def _measure_locks(held: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def measure(connection: sqlite3.Connection, what: object) -> Iterator[None]:
        with write_transaction(connection, what):
            start = time.thread_time()  # a wait for the machine is none for VENUS
            yield
        held.append(time.thread_time() - start)

    for module in (cut, capture, registry):
        monkeypatch.setattr(module, "write_transaction", measure)


def log_length(shop: Shop) -> int:
    return int(shop.app.execute("SELECT count(*) FROM venus_l_00002").fetchone()[0])


@pytest.mark.parametrize("seconds", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_four_writers_lose_no_change_and_do_not_wait(
    tmp_path: Path, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.app.executemany("INSERT INTO account VALUES (?, 1, 100)", ((n,) for n in range(10)))
        waits, held, cuts = race(shop, seconds, monkeypatch)

        for name, query in (("a", "id, u, v"), ("b", "x, y, v"), ("account", "id, branch, money")):
            expected = {tuple(map(str, row)) for row in shop.rows(f"SELECT {query} FROM {name}")}
            got = {tuple(map(str, k + v)) for k, v in shop.copy.content(name).items()}
            assert got == expected, f"{name}: {len(got ^ expected)} rows differ"
        logger.info(
            "%d transactions, %d cuts; lock held %.1f ms at most, %.2f ms on average; writers waited %.0f ms at most",
            *(len(waits), cuts, max(held) * 1000, sum(held) / len(held) * 1000, max(waits) * 1000),
        )
        assert cuts > CUTS
        assert max(held) < 5, "an application with SQLite's usual busy timeout of 5 s never sees an error"


def test_the_lock_is_held_briefly_however_many_log_rows_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.app.execute("BEGIN")
        shop.app.executemany("INSERT INTO a (id, v) VALUES (?, 1)", ((n,) for n in range(100_000)))
        shop.app.execute("COMMIT")
        held: list[float] = []
        _measure_locks(held, monkeypatch)
        shop.copy.catch_up()
        lengths = [log_length(shop)]
        while lengths[-1] > SLACK_ROWS:
            assert not shop.copy.follow(), "an idle poll"
            lengths.append(log_length(shop))

        assert lengths[0] > 50_000, "it was not all removed at once"
        assert max(a - b for a, b in pairwise(lengths)) <= PIECE_ROWS
        logger.info("lock held %.1f ms at most over %d transactions", max(held) * 1000, len(held))
        assert max(held) < 5


def test_capture_waits_for_a_commit_that_locks_all_others_out(tmp_path: Path) -> None:
    """Without WAL; otherwise a reconnection would carry large rows again each time."""
    with open_shop(tmp_path / "a.db", DDL, wal=False) as shop:
        shop.copy.catch_up()
        shop.source.capture.write_heartbeat()  # after a transaction of the application

        def read_registry() -> None:
            shop.source.registry.read_registered_tables()

        def poll() -> None:
            cut = shop.source.capture.open_cut([])
            assert cut is not None
            cut.rollback()

        asked = (
            shop.source.capture.read_backlog,
            shop.source.registry.read_state,
            shop.source.capture.refresh_schemas,
            read_registry,
            poll,
        )
        for ask in asked:
            shop.app.execute("BEGIN EXCLUSIVE")
            shop.app.execute("INSERT INTO account (branch) VALUES (1)")
            with ThreadPoolExecutor(1) as other:
                waiting = other.submit(ask)
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
                shop.app.execute("COMMIT")
                waiting.result(60)
