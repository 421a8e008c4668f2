"""The local transaction is atomic, belongs to one epoch, and deletes exactly the rows that the snapshot read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases.sqlite import Copy, Shop, open_shop
from tests.support.processes.forks import ForkedModule
from venus.adapters.dialects.sqlite import connection as locks
from venus.adapters.dialects.sqlite.source import SqliteSource
from venus.errors import DatabaseUnavailable, Fenced, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, Sequence

pytestmark = pytest.mark.integration

DDL = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT);"
BATCH = BatchRecord(
    batch_no=BatchNo(1), epoch=Epoch(0), first_sequence=Sequence(1), last_sequence=Sequence(1), digest=2**64 - 1
)


@pytest.fixture(scope="module")
def victim() -> Iterator[ForkedModule]:
    with ForkedModule("tests.support.faults.killed_sqlite") as victim:
        yield victim


def read_everything(shop: Shop) -> list[object]:
    names = ("checkpoint", "batch", "captured_table")
    return [shop.app.execute(f"SELECT * FROM venus_{name}").fetchall() for name in names]


def test_a_raised_epoch_fences_the_open_cut(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.run("INSERT INTO t VALUES (1, 'a')")
        cut = shop.source.capture.open_cut([])
        assert cut is not None
        list(cut.read_sections(rows_max=10, bytes_max=1000))
        other = SqliteSource(shop.file)
        other.registry.raise_epoch(Epoch(5))
        before = read_everything(shop)
        with pytest.raises(Fenced, match="epoch 5"):
            cut.commit(Epoch(0), [BATCH], [], BatchNo(0))
        assert read_everything(shop) == before
        with pytest.raises(Fenced):
            other.registry.raise_epoch(Epoch(4))

        copy = Copy(other)
        copy.catch_up()
        assert copy.content("t") == {("1",): ("a",)}
        other.close()


def test_a_cut_that_was_not_read_to_its_end_cannot_be_committed(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.app.executemany("INSERT INTO t VALUES (?, 'x')", ((n,) for n in range(20)))
        cut = shop.source.capture.open_cut([])
        assert cut is not None
        next(iter(cut.read_sections(rows_max=5, bytes_max=1000)))
        with pytest.raises(SourceError, match="not read to their end"):
            cut.commit(Epoch(0), [BATCH], [], BatchNo(0))
        cut.rollback()
        shop.run("INSERT INTO t VALUES (50, 'seen by the next cut')")
        shop.copy.catch_up()

        assert len(shop.copy.content("t")) == 21


def test_changes_written_while_a_cut_is_open_belong_to_the_next(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.copy.catch_up()
        shop.run("INSERT INTO t VALUES (1, 'old')")
        follower = shop.copy.follower
        cut = follower.open([])
        assert cut is not None
        shop.run("UPDATE t SET v = 'new'; INSERT INTO t VALUES (2, 'late')")
        seen = follower.read(cut, [], rows_max=10, bytes_max=1000, fill_rows=10)
        cut.commit(follower.epoch, seen.batches, [], BatchNo(0))
        follower.take(seen)
        assert shop.copy.content("t") == {("1",): ("old",)}

        shop.copy.catch_up()
        assert shop.copy.content("t") == {("1",): ("new",), ("2",): ("late",)}


def test_batches_are_answered_and_then_forgotten(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        for n in range(3):
            shop.run(f"INSERT INTO t VALUES ({n}, 'x')")
            assert shop.copy.follow()
        last = shop.source.registry.read_state().last_batch
        found = shop.source.registry.read_batches([BatchNo(1), last, BatchNo(99)])
        assert set(found) == {1, last}
        assert found[last].digest == 0xFFFF_FFFF_0000_0000 + last

        shop.run("DELETE FROM t")
        cut = shop.source.capture.open_cut([])
        assert cut is not None
        list(cut.read_sections(rows_max=10, bytes_max=1000))
        cut.commit(shop.source.registry.read_state().epoch, [], [], last)
        assert set(shop.source.registry.read_batches([BatchNo(1), last])) == {last}


def test_a_review_waits_for_the_local_transaction_that_is_just_committing(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.run("BEGIN IMMEDIATE; INSERT INTO venus_batch VALUES (7, 1, 1, 1, 'ff')")
        child = subprocess.Popen(
            [sys.executable, "-c", _REVIEW, str(shop.file)], stdout=subprocess.PIPE, text=True, env=_environment()
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "asking\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        shop.run("COMMIT")

        assert child.communicate(timeout=60)[0] == "[7]\n"


def test_waiting_for_the_lock_ends_with_a_retryable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        monkeypatch.setattr(locks, "LOCK_WAIT_S", 0.1)
        shop.run("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            shop.source.capture.write_heartbeat()
        shop.run("ROLLBACK")
        shop.source.capture.write_heartbeat()


@pytest.mark.fault
@pytest.mark.parametrize("statement", range(12))
def test_a_process_killed_at_any_statement_of_the_local_transaction_loses_and_doubles_nothing(
    tmp_path: Path, victim: ForkedModule, statement: int
) -> None:
    with open_shop(tmp_path / "a.db", DDL, install=False) as shop:
        shop.app.executemany("INSERT INTO t VALUES (?, 'x')", ((n,) for n in range(50)))
        shop.source.installer.install(["*"], [])
        shop.copy.catch_up()
        shop.run("DELETE FROM t WHERE id < 10; UPDATE t SET v = 'y' WHERE id > 40; INSERT INTO t VALUES (77, 'z')")
        before = shop.source.registry.read_state()
        killed = victim.run(statement, shop.file)
        state = shop.source.registry.read_state()

        committed = state.last_batch > before.last_batch
        assert committed == (not killed)
        assert (state.next_sequence > before.next_sequence) == committed
        assert (shop.source.capture.read_backlog()[2][0] == 0) == committed
        assert bool(shop.source.registry.read_batches([BatchNo(before.last_batch + 1)])) == committed
        if not committed:
            shop.copy.catch_up()
            assert {k + v for k, v in shop.copy.content("t").items()} == {
                (str(i), v) for i, v in shop.rows("SELECT id, v FROM t")
            }


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


_REVIEW = """
import sys
from pathlib import Path
from venus.adapters.dialects.sqlite.source import SqliteSource
source = SqliteSource(Path(sys.argv[1]))
print("asking", flush=True)
print(list(source.registry.read_batches([7, 8])))
"""


def test_an_open_snapshot_ends_with_the_cut_even_if_rows_were_left_unread(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.app.executemany("INSERT INTO t VALUES (?, 'x')", ((n,) for n in range(100)))
        cut = shop.source.capture.open_cut([])
        assert cut is not None
        sections = cut.read_sections(rows_max=5, bytes_max=1000)
        next(sections)
        cut.rollback()

        shop.run("DELETE FROM t")
        shop.app.execute("PRAGMA busy_timeout = 0")
        assert shop.app.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0), "no reader is in the way"
        with pytest.raises(SourceError, match="closed"):
            next(sections)
