"""Large cuts are written to the target before they are decided, and become visible only if they are committed."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.brokers.feed import (
    Change,
    Feed,
    applied_offset,
    column,
    deletion,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    unique_label,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.waiting import eventually
from venus.adapters.targets.relational import apply_loop
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.under.cut_assembler import CutPiece
from venus.codec.batch import Batch, digest, encode
from venus.config import Settings
from venus.model import TableSchema, Verdict
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

LONG = "x" * 1000


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is written ahead until the test decides, however long that takes."""
    monkeypatch.setattr(apply_loop, "DECISION_WAIT_S", 120.0)


class UndecidedBroker(RealBroker):
    """A broker whose producer leaves cuts undecided on request."""

    hold = False
    held = 0, 0

    def commit(self, batch: Batch) -> None:
        if not self.hold:
            super().commit(batch)
            return
        body = encode(batch)
        self.held = int(batch.batch_no), digest(body)
        self._producer.send_half(broker_pb2.Half(batch_no=self.held[0], digest=self.held[1], body=body))
        self._producer.wait_until_persisted(self.held[0])

    def decide(self, verdict: Verdict, batch_no: int = 0, its_digest: int = 0) -> None:
        number, its_digest = (batch_no, its_digest) if batch_no else self.held
        self._producer.decide(number, its_digest, verdict)
        self.next_offset = self._producer.wait_until_decided(number).next_offset
        self.hold = False


@pytest.fixture
def real(tmp_path: Path) -> Iterator[UndecidedBroker]:
    broker = UndecidedBroker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def feed(real: UndecidedBroker) -> Feed:
    return Feed(real)


def load(real: UndecidedBroker, feed: Feed, url: str, schema: TableSchema, rows: int = 1500) -> Settings:
    feed.describe(schema)
    feed.cut(*(put(i, f"label {i}", i) for i in range(rows)), inserts_only=True)
    settings = settings_for(real.address, {"a": url}, apply={"cut_group_rows_max": 300})
    full_sync(settings, "a")
    return settings


def many_changes(first: int, last: int, word: str) -> list[Change]:
    return [put(i, f"{word} {i} {LONG}", i) for i in range(first, last)]


def has_uncommitted_rows(url: str) -> bool:
    """Return whether the under adapter has written rows that it has not committed."""
    open_ = "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'venus apply%%' AND backend_xid IS NOT NULL"
    return bool(query(url, f"{open_} AND state = 'idle in transaction'"))


def wait_until_written(url: str, rows: int = 1) -> None:
    """Wait until the under adapter has written rows and waits for a decision or for more."""
    eventually(lambda: has_uncommitted_rows(url), "the writing ahead")


def half_cut(real: UndecidedBroker, feed: Feed, changes: Sequence[Change]) -> None:
    """Ship all half messages of a cut, and leave it undecided."""
    real.hold = True
    feed.cut(*changes, batch_rows=200)


@pytest.mark.parametrize("indexed", [False, True], ids=["by key", "unique label"])
def test_a_cut_is_written_before_its_decision_and_visible_after_it(
    indexed: bool, database: str, real: UndecidedBroker, feed: Feed
) -> None:
    schema = unique_label(items()) if indexed else items()
    settings = load(real, feed, database, schema)
    before = copy.deepcopy(feed.model[1])
    with following(settings, "a") as reports:
        half_cut(real, feed, [*many_changes(500, 2500, "new"), *(deletion(i) for i in range(100))])
        wait_until_written(database)
        assert rows_at(database, schema) == before
        assert applied_offset(database) < real.next_offset + 1
        transactions = max((r.transactions for r in reports), default=0)
        real.decide(Verdict.COMMIT)
        wait_until_caught_up(database, real)
        eventually(lambda: max((r.transactions for r in reports), default=0) == transactions + 1, "the report")
    assert rows_at(database, schema) == feed.model[1]


def test_rows_written_ahead_are_not_kept_in_memory(database: str, real: UndecidedBroker, feed: Feed) -> None:
    settings = load(real, feed, database, items())
    with following(settings, "a"):
        half_cut(real, feed, many_changes(0, 3000, "kept at the target alone"))
        wait_until_written(database)
        eventually(lambda: len(pieces()) == 15, "the whole cut")
        eventually(lambda: rows_kept() <= 600, "all rows but those that wait until a statement is full to be written")
        real.decide(Verdict.COMMIT)
        wait_until_caught_up(database, real)
    assert rows_at(database, items()) == feed.model[1]


def rows_kept() -> int:
    """Return the number of rows that all pieces hold in memory."""
    return sum(section.count for piece in pieces() for section in piece.batch.sections)


def pieces() -> list[CutPiece]:
    """Return all pieces of cuts that this process still holds."""
    return [found for found in gc.get_objects() if isinstance(found, CutPiece)]


def test_a_cut_that_is_rolled_back_leaves_nothing(database: str, real: UndecidedBroker, feed: Feed) -> None:
    settings = load(real, feed, database, items())
    with following(settings, "a"):
        for word in ("wrong", "wrong again"):
            was = copy.deepcopy((feed.model, feed.batch_no, feed.sequence, feed.committed))
            first = feed.batch_no + 1
            half_cut(real, feed, many_changes(0, 1500, word))
            wait_until_written(database)
            with AdminClient(real.address) as admin:
                refs = {h.batch_no: h.digest for b in admin.status("main").businesses for h in b.halves}
            real.decide(Verdict.ROLLBACK, first, refs[first])
            feed.model, feed.batch_no, feed.sequence, feed.committed = was
        feed.cut(*many_changes(700, 2000, "right"), *(deletion(i) for i in range(5)), batch_rows=200)
        wait_until_caught_up(database, real)
    assert rows_at(database, items()) == feed.model[1]


def test_values_that_change_places_across_the_pieces_of_a_cut(database: str, real: UndecidedBroker, feed: Feed) -> None:
    """The source's dictionary shows no unique index, but the target has one: only the complete cut can be merged."""
    settings = load(real, feed, database, items(), rows=1500)
    query(database, "CREATE UNIQUE INDEX ON shop.items (label)")
    with following(settings, "a"):
        feed.cut(*(put(i, f"label {(i + 700) % 1500}", i) for i in range(1500)), batch_rows=100)
        wait_until_caught_up(database, real)
        half_cut(
            real, feed, [put(i, f"label {(i + 300) % 1500}", i) for i in range(1500)] + many_changes(2000, 3500, "more")
        )
        wait_until_written(database)
        real.decide(Verdict.COMMIT)
        wait_until_caught_up(database, real)
    assert rows_at(database, items()) == feed.model[1]


@pytest.mark.parametrize("what", ["new column", "truncate"])
def test_commands_that_lock_or_alter_a_table_wait_for_the_decision(
    what: str, database: str, real: UndecidedBroker, feed: Feed
) -> None:
    settings = load(real, feed, database, items())
    with following(settings, "a"):
        real.hold = True
        if what == "truncate":
            feed.truncate(1, *many_changes(0, 1500, "new"))
            schema = items()
        else:
            schema = replace(items(), version=2, columns=(*items().columns, column(4, "note")))
            feed.describe(schema)
            feed.cut(*(put(i, f"{i} {LONG}", i, "note") for i in range(1500)), batch_rows=200)
            feed.model[1] = {k: (*row, None) if len(row) == 2 else row for k, row in feed.model[1].items()}
        locks = "SELECT 1 FROM pg_locks WHERE relation = 'shop.items'::regclass AND mode = 'AccessExclusiveLock'"
        for _ in range(20):
            assert not query(database, locks)
            assert len(rows_at(database, items())) == 1500
        real.decide(Verdict.COMMIT)
        wait_until_caught_up(database, real)
    assert rows_at(database, schema) == feed.model[1]


def test_a_silent_producer_does_not_hold_locks_at_the_target(
    database: str, real: UndecidedBroker, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(real, feed, database, items())
    with following(settings, "a"):
        half_cut(real, feed, many_changes(0, 1500, "late"))
        wait_until_written(database)
        monkeypatch.setattr(apply_loop, "DECISION_WAIT_S", 0.2)
        eventually(lambda: not has_uncommitted_rows(database), "the giving up")
        query(database, "UPDATE shop.items SET amount = amount WHERE id = 1")  # no transaction holds the lock
        real.decide(Verdict.COMMIT)
        wait_until_caught_up(database, real)
    assert rows_at(database, items()) == feed.model[1]


def test_a_refused_row_is_handled_after_the_decision(database: str, real: UndecidedBroker, feed: Feed) -> None:
    settings = load(real, feed, database, items())
    query(database, "ALTER TABLE shop.items ADD CHECK (amount <> 1700)")
    with following(settings, "a"):
        half_cut(real, feed, many_changes(600, 2100, "one of them refused"))
        eventually(lambda: not has_uncommitted_rows(database), "the hesitation")
        assert query(database, "SELECT count(*) FROM venus.quarantine") == [(0,)]
        real.decide(Verdict.COMMIT)
        wait_until_caught_up(database, real)
    assert query(database, "SELECT count(*), min(key) FROM venus.quarantine")[0][0] == 1
    assert query(database, "SELECT state FROM venus.target_table WHERE name = 'items'") == [("HALTED",)]


def test_a_refused_row_that_is_rolled_back_halts_nothing(
    database: str, real: UndecidedBroker, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = load(real, feed, database, items())
    query(database, "ALTER TABLE shop.items ADD CHECK (amount <> 1700)")
    with following(settings, "a"):
        was = copy.deepcopy((feed.model, feed.batch_no, feed.sequence, feed.committed))
        first = feed.batch_no + 1
        half_cut(real, feed, many_changes(600, 2100, "one of them refused"))
        eventually(lambda: "the target refuses a row of it" in caplog.text, "the hesitation")
        with AdminClient(real.address) as admin:
            refs = {h.batch_no: h.digest for b in admin.status("main").businesses for h in b.halves}
        real.decide(Verdict.ROLLBACK, first, refs[first])
        feed.model, feed.batch_no, feed.sequence, feed.committed = was
        feed.cut(*many_changes(600, 1600, "right"), batch_rows=200)
        wait_until_caught_up(database, real)
    assert query(database, "SELECT state FROM venus.target_table WHERE name = 'items'") == [("ACTIVE",)]
    assert rows_at(database, items()) == feed.model[1]
