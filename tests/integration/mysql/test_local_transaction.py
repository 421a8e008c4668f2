"""The local transaction deletes exactly the log rows that its snapshot read; it neither scans nor waits."""

from __future__ import annotations

import threading
import time

import pytest

from tests.integration.mysql.conftest import Shop
from venus.adapters.dialects.mysql.capture import cut as module
from venus.adapters.dialects.mysql.capture.cut import LogNumbers, delete_exactly
from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.cli.prove.follower import Follower
from venus.errors import Deadlock
from venus.model import BatchNo

OPEN = "INSERT INTO item VALUES (%s, 'open')"


@pytest.fixture
def item(shop: Shop) -> Follower:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, v varchar(20))")
    return shop.capture()


def test_it_does_not_wait_for_uncommitted_log_rows(shop: Shop, item: Follower) -> None:
    """An open writer has a log row before, between and after those that are deleted."""
    early, late = shop.server.connect(shop.database), shop.server.connect(shop.database)
    try:
        early.cursor().execute(OPEN, (1,))
        shop.run("INSERT INTO item VALUES (2, 'a')")
        late.cursor().execute(OPEN, (3,))
        shop.run(*(f"INSERT INTO item VALUES ({i}, 'a')" for i in range(4, 40)))
        late.cursor().execute(OPEN, (99,))
        started = time.monotonic()
        item.drain()
        waited = time.monotonic() - started
        assert len(item.rows("item")) == 37
        assert waited < 45, "the server would wait 50 s for a lock"
        early.commit()
        late.commit()
    finally:
        early.close()
        late.close()
    item.drain()
    assert len(item.rows("item")) == 40


def test_the_deletion_reads_only_the_deleted_rows(shop: Shop, item: Follower) -> None:
    """Ten rows of ten thousand are deleted: the server reads about as many rows."""
    table_id = item.table_id("item")
    shop.run("INSERT INTO item SELECT seq, 'x' FROM seq_1_to_10000")
    writer = MysqlConnection(parse_address(shop.url), "READ COMMITTED")
    log = f"venus_l_{table_id:05}"
    first = int(str(shop.run(f"SELECT min(seq) FROM {log}")[0][0]))
    numbers = LogNumbers()
    numbers.add(range(first + 500, first + 10_000, 1000))
    try:
        writer.run("CREATE TEMPORARY TABLE venus_claimed (seq BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB")
        with writer.transaction():
            writer.run("FLUSH STATUS")
            delete_exactly(writer, log, numbers)
            counted = {n: int(v) for n, v in writer.rows("SHOW SESSION STATUS LIKE 'Handler_read%'")}
    finally:
        writer.close()
    assert counted["Handler_read_key"] >= 10
    assert sum(counted.values()) < 200
    assert shop.run(f"SELECT count(*) FROM {log}") == [(10_000 - 10,)]


def test_rows_committed_between_snapshot_and_deletion_stay(shop: Shop, item: Follower) -> None:
    """The late row's number lies between those that the snapshot read: a range would delete it."""
    late = shop.server.connect(shop.database)
    try:
        shop.run("INSERT INTO item VALUES (1, 'a')")
        late.cursor().execute(OPEN, (2,))
        shop.run("INSERT INTO item VALUES (3, 'a')")
        cut = item.open([])
        assert cut is not None
        seen = item.read(cut, [], rows_max=100, bytes_max=1 << 20, fill_rows=1)
        late.commit()
        cut.commit(item.epoch, seen.batches, [], BatchNo(0))
        item.take(seen)
    finally:
        late.close()
    assert len(item.rows("item")) == 2
    item.drain()
    assert len(item.rows("item")) == 3


def test_a_review_waits_for_a_transaction_that_is_just_committing(shop: Shop, item: Follower) -> None:
    other = shop.server.connect(shop.database)
    answers: list[object] = []
    asked = threading.Thread(target=lambda: answers.append(shop.source.registry.read_batches([BatchNo(77)])))
    try:
        cursor = other.cursor()
        cursor.execute("SELECT epoch FROM venus_checkpoint WHERE id = 1 FOR UPDATE")
        cursor.execute("INSERT INTO venus_batch VALUES (77, 1, 1, 1, '00000000000000ff')")
        asked.start()
        waiting = (
            f"SELECT 1 FROM information_schema.processlist WHERE db = '{shop.database}'"
            " AND info LIKE '%FOR UPDATE%' AND time_ms > 200 AND id <> connection_id()"
        )
        shop.wait_for(waiting)
        assert not answers, "it answered while the transaction was still open"
        other.commit()
        asked.join(60)
    finally:
        other.close()
    (found,) = answers
    assert list(found) == [77]  # type: ignore[call-overload]


def test_a_deadlock_is_retried(shop: Shop, item: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def deadlock_once(writer: MysqlConnection, log: str, numbers: LogNumbers) -> None:
        tried.append(1)
        if len(tried) == 1:
            writer.rollback()
            raise Deadlock("reported by the server")
        delete_exactly(writer, log, numbers)

    monkeypatch.setattr(module, "delete_exactly", deadlock_once)
    shop.run("INSERT INTO item VALUES (1, 'a')")
    (seen,) = item.drain()
    assert len(tried) == 2
    assert item.source.registry.read_batches([b.batch_no for b in seen.batches]) == {
        b.batch_no: b for b in seen.batches
    }
