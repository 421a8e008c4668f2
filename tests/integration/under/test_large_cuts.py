"""Large cuts need limited memory at the target: many bytes in few rows, and a table that catches up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    Broker,
    Change,
    Feed,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.waiting import eventually
from venus.adapters.targets.relational import held_tables
from venus.adapters.targets.relational.control import list_quarantine, pause, read_progress, read_table_states, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.held_tables import CatchUp
from venus.adapters.targets.relational.writer import RowWriter
from venus.adapters.under import cut_assembler
from venus.adapters.under.cut_assembler import CutAssembler, CutPiece
from venus.config import Settings

pytestmark = pytest.mark.integration

LABEL = "x" * 20_000


@pytest.fixture
def waiting_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many rows wait in a reader's assembler each time an increment arrives."""
    found: list[int] = []

    def record_call(assembler: CutAssembler, piece: CutPiece) -> None:
        add(assembler, piece)
        found.append(assembler.rows)

    add = CutAssembler.add
    monkeypatch.setattr(CutAssembler, "add", record_call)
    return found


def load(database: str, feed: Feed, rows_max: int, on_error: str = "halt") -> Settings:
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"old {i}", i) for i in range(200)), put(1, "old", 1, table=2))
    settings = settings_for(
        feed.broker.address,
        {"a": database},
        on_error=on_error,
        apply={"cut_group_rows_max": rows_max, "credit_bytes": 1 << 20},
    )
    full_sync(settings, "a")
    return settings


def many_changes(*, first: int = 0, count: int = 200) -> list[Change]:
    return [put(i, f"{i} {LABEL}", i) for i in range(first, first + count)]


@contextmanager
def hold_back(database: str, broker: Broker, settings: Settings) -> Iterator[None]:
    """Hold the table items back for the time of the block, then let it catch up."""
    pause(settings, "a", ["items"])
    with following(settings, "a"):
        yield
        wait_until_caught_up(database, broker)
        resume(settings, "a", ["items"])
        eventually(
            lambda: read_table_states(settings, "a")[0].state in ("ACTIVE", "HALTED"), "the end of the catching up"
        )


def wait_until_active(settings: Settings) -> None:
    eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")


def test_a_table_catches_up_with_a_cut_that_is_larger_than_memory_allows(
    database: str, real: RealBroker, waiting_rows: list[int]
) -> None:
    feed = Feed(real)
    settings = load(database, feed, 20)
    with hold_back(database, real, settings):
        feed.cut(put(1, "small", 1), put(2, "x", 2, table=2))
        feed.cut(*many_changes(), put(3, "x", 3, table=2), batch_rows=5)
        feed.cut(put(2, "later", 1))
        wait_until_caught_up(database, real)
        waiting_rows.clear()
    with following(settings, "a"):
        wait_until_active(settings)

    assert max(waiting_rows) < 120, "the whole cut has 200 rows of 20 kB"
    assert rows_at(database, items()) == feed.model[1]
    assert read_progress(settings, "a").unaccounted == 0


def test_a_row_that_is_refused_in_such_a_cut_is_quarantined(database: str, real: RealBroker) -> None:
    feed = Feed(real)
    settings = load(database, feed, 20, "quarantine")
    query(database, "ALTER TABLE shop.items ADD CONSTRAINT not_odd CHECK (amount <> 666)")
    with hold_back(database, real, settings):
        changes = many_changes()
        changes[150] = put(150, "bad", 666)
        feed.cut(*changes, batch_rows=5)
    with following(settings, "a"):
        wait_until_active(settings)

    (row,) = list_quarantine(settings, "a")
    assert row.key == '{"id": "150"}'
    wanted = dict(feed.model[1])
    wanted["150",] = ("old 150", "150")
    assert rows_at(database, items()) == wanted
    assert read_progress(settings, "a").unaccounted == 0


def test_a_table_halts_at_such_a_cut_and_continues_after_the_repair(database: str, real: RealBroker) -> None:
    feed = Feed(real)
    settings = load(database, feed, 20)
    query(database, "ALTER TABLE shop.items ADD CONSTRAINT not_odd CHECK (amount <> 666)")
    with hold_back(database, real, settings):
        feed.cut(put(1, "before", 1))
        start = real.next_offset
        changes = many_changes()
        changes[150] = put(150, "bad", 666)
        feed.cut(*changes, batch_rows=5)
    state = read_table_states(settings, "a")[0]
    assert (state.state, state.held_from) == ("HALTED", start)
    query(database, "ALTER TABLE shop.items DROP CONSTRAINT not_odd")
    with following(settings, "a"):
        resume(settings, "a", ["items"])
        wait_until_active(settings)

    assert rows_at(database, items()) == feed.model[1]
    assert read_progress(settings, "a").unaccounted == 0


def test_rows_that_exchange_a_value_far_apart_in_such_a_cut_are_merged_together(
    database: str, real: RealBroker
) -> None:
    feed = Feed(real)
    settings = load(database, feed, 20)
    query(database, "CREATE UNIQUE INDEX only_here ON shop.items (md5(label))")
    with hold_back(database, real, settings):
        changes = many_changes()
        changes[60], changes[180] = put(60, "old 180", 60), put(180, "old 60", 180)
        feed.cut(*changes, batch_rows=5)
    with following(settings, "a"):
        wait_until_active(settings)

    assert rows_at(database, items()) == feed.model[1]
    assert read_progress(settings, "a").unaccounted == 0


def test_only_a_few_tables_catch_up_at_once(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_tables, "CATCH_UPS_MAX", 2, raising=False)
    feed.describe(*(items(n, f"t{n}") for n in range(1, 10)))
    feed.cut(*(put(1, "old", 1, table=n) for n in range(1, 10)))
    settings = settings_for(broker.address, {"a": database})
    full_sync(settings, "a")
    now: set[CatchUp] = set()
    most: list[int] = []
    step, close = CatchUp.step, CatchUp.close

    def record_step(self: CatchUp, *args: object, **options: object) -> bool:
        now.add(self)
        most.append(len(now))
        return step(self, *args, **options)  # type: ignore[arg-type]

    def record_close(self: CatchUp) -> None:
        now.discard(self)
        close(self)

    monkeypatch.setattr(CatchUp, "step", record_step)
    monkeypatch.setattr(CatchUp, "close", record_close)
    names = [f"t{n}" for n in range(1, 9)]
    pause(settings, "a", names)
    with following(settings, "a"):
        for round_ in range(5):
            feed.cut(*(put(round_, f"{round_}", 1, table=n) for n in range(1, 10)))
        wait_until_caught_up(database, broker)
        resume(settings, "a", names)
        eventually(lambda: all(t.state == "ACTIVE" for t in read_table_states(settings, "a")), "the tables' return")

    assert 1 <= max(most) <= 2
    for n in range(1, 10):
        assert rows_at(database, feed.schemas[n]) == feed.model[n]


def test_few_large_rows_of_one_cut_are_streamed_into_the_target(
    database: str, real: RealBroker, waiting_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(real)
    for module in (cut_assembler, "venus.adapters.targets.relational.writer"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.GROUP_BYTES_MAX", 1 << 20, raising=False)
    settings = load(database, feed, 20_000)
    most: list[int] = []
    make_room = RowWriter.make_room

    def record_call(writer: RowWriter) -> None:
        make_room(writer)
        most.append(sum(len(part.rows.data) for pending in writer._pending.values() for part in pending.parts))

    monkeypatch.setattr(RowWriter, "make_room", record_call)
    with following(settings, "a"):
        feed.cut(put(1, "small", 1))
        feed.cut(*many_changes(), *(put(n, LABEL, 1, table=2) for n in range(100)), batch_rows=5)
        feed.cut(*(put(n, "last", 1) for n in range(10)))
        wait_until_caught_up(database, real)

    assert max(most) < 3 << 19, "the cut has 6 MB"
    assert max(waiting_rows) < 200
    assert rows_at(database, items()) == feed.model[1]
    assert rows_at(database, feed.schemas[2]) == feed.model[2]
    assert read_progress(settings, "a").unaccounted == 0
