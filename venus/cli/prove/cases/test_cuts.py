"""A cut is one snapshot: it is shipped completely or not at all, in bounded pieces, by one instance (VENUS 3.3)."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.cli.prove.follower import Follower
from venus.errors import Fenced, VenusError
from venus.model import BatchNo, ChangeKind, Epoch


def fill_items(app: Application, first: int, count: int) -> None:
    """Insert rows into the table item, and commit."""
    for i in range(first, first + count):
        app.execute("INSERT INTO item VALUES (?, ?, NULL)", i, f"name {i}")
    app.commit()


def test_sections_stay_within_the_limit_of_rows(app: Application, item: Follower) -> None:
    fill_items(app, 0, 250)
    seen = item.cut(rows_max=100)
    assert seen is not None
    assert [s.count for s in seen.sections] == [100, 100, 50]
    assert len(item.rows("item")) == 250


def test_sections_stay_within_the_limit_of_bytes(app: Application, item: Follower) -> None:
    for i in range(100):
        app.execute("INSERT INTO item VALUES (?, ?, NULL)", i, "x" * 1000)
    app.commit()
    seen = item.cut(bytes_max=10_500)
    assert seen is not None
    assert len(seen.sections) >= 10
    assert all(s.nbytes <= 10_500 for s in seen.sections)
    assert len(item.rows("item")) == 100


def test_a_row_larger_than_the_limit_travels_alone(app: Application, item: Follower) -> None:
    for i, size in enumerate((10, 5000, 10, 10)):
        app.execute("INSERT INTO item VALUES (?, ?, NULL)", i, "x" * size)
    app.commit()
    seen = item.cut(bytes_max=1000)
    assert seen is not None
    assert any(s.count == 1 and s.nbytes > 1000 for s in seen.sections)
    assert len(item.rows("item")) == 4


def test_the_batch_table_holds_every_batch_of_a_committed_cut(app: Application, item: Follower) -> None:
    fill_items(app, 0, 30)
    seen = item.cut(rows_max=10)
    assert seen is not None
    assert len(seen.batches) == 3
    numbers = [b.batch_no for b in seen.batches]
    found = item.source.registry.read_batches([*numbers, BatchNo(numbers[-1] + 1)])
    assert found == {b.batch_no: b for b in seen.batches}
    state = item.source.registry.read_state()
    assert (state.next_sequence, state.last_batch) == (seen.batches[-1].last_sequence + 1, numbers[-1])


def test_old_batches_are_forgotten_when_the_caller_says_so(app: Application, item: Follower) -> None:
    fill_items(app, 0, 30)
    seen = item.cut(rows_max=10)
    assert seen is not None
    fill_items(app, 100, 1)
    cut = item.open([])
    assert cut is not None
    second = item.read(cut, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
    cut.commit(item.epoch, second.batches, [], seen.batches[-1].batch_no)
    kept = item.source.registry.read_batches([b.batch_no for b in seen.batches + second.batches])
    assert sorted(kept) == [seen.batches[-1].batch_no, second.batches[0].batch_no]


def test_a_rolled_back_cut_is_delivered_again_in_full(app: Application, item: Follower) -> None:
    fill_items(app, 0, 25)
    before = item.source.registry.read_state()
    cut = item.open([])
    assert cut is not None
    seen = item.read(cut, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
    cut.rollback()
    assert item.source.registry.read_state() == before
    assert item.source.registry.read_batches([b.batch_no for b in seen.batches]) == {}
    (again,) = item.drain()
    assert again.count == seen.count == 25
    assert len(item.rows("item")) == 25


def test_a_cut_abandoned_half_way_is_delivered_again_in_full(app: Application, item: Follower) -> None:
    fill_items(app, 0, 2000)
    cut = item.open([])
    assert cut is not None
    sections = cut.read_sections(rows_max=10, bytes_max=1 << 20)
    next(sections)
    next(sections)
    sections.close()  # type: ignore[attr-defined]
    cut.rollback()
    item.drain()
    assert len(item.rows("item")) == 2000


def test_what_is_committed_after_the_snapshot_is_in_the_next_cut(
    place: Place, app: Application, item: Follower
) -> None:
    if not place.concurrent_writers:
        pytest.skip("one writer at a time")
    fill_items(app, 0, 3)
    cut = item.open([])
    assert cut is not None
    run_transaction(app, "UPDATE item SET name = 'later' WHERE id = 1", "INSERT INTO item VALUES (9, 'later', NULL)")
    seen = item.read(cut, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
    cut.commit(item.epoch, seen.batches, [], BatchNo(0))
    item.take(seen)
    assert {k[0]: r["name"] for k, r in item.rows("item").items()} == {"0": "name 0", "1": "name 1", "2": "name 2"}
    item.drain()
    assert item.rows("item")["1",]["name"] == item.rows("item")["9",]["name"] == "later"


def test_a_transaction_that_commits_late_loses_nothing(place: Place, app: Application, item: Follower) -> None:
    if not place.concurrent_writers:
        pytest.skip("one writer at a time")
    late = place.connect()
    late.execute("INSERT INTO item VALUES (1, 'late', NULL)")
    run_transaction(app, "INSERT INTO item VALUES (2, 'early', NULL)")
    item.drain()
    assert list(item.rows("item")) == [("2",)]
    late.commit()
    late.close()
    item.drain()
    assert list(item.rows("item")) == [("1",), ("2",)]


def test_a_newer_instance_fences_the_older_one(place: Place, app: Application, item: Follower) -> None:
    fill_items(app, 0, 3)
    cut = item.open([])
    assert cut is not None
    seen = item.read(cut, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
    other = place.open()
    try:
        successor = Follower(other)
        with pytest.raises(Fenced):
            cut.commit(item.epoch, seen.batches, [], BatchNo(0))
        assert other.registry.read_batches([b.batch_no for b in seen.batches]) == {}
        (again,) = successor.drain()
        assert again.count == 3
        with pytest.raises(Fenced):
            item.source.registry.raise_epoch(item.epoch)
        fill_items(app, 10, 1)
        late = item.source.capture.open_cut([])
        assert late is not None
        seen = item.read(late, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
        with pytest.raises(Fenced):
            late.commit(item.epoch, seen.batches, [], BatchNo(0))
        successor.drain()
        assert len(successor.rows("item")) == 4 - 3 + 3
    finally:
        other.close()


def test_raising_the_same_epoch_again_is_allowed(item: Follower) -> None:
    assert item.source.registry.raise_epoch(item.epoch).epoch == item.epoch
    assert item.source.registry.raise_epoch(Epoch(item.epoch + 5)).epoch == item.epoch + 5


def test_an_instance_that_died_leaves_nothing_undone(place: Place, app: Application, item: Follower) -> None:
    fill_items(app, 0, 40)
    cut = item.open([])
    assert cut is not None
    item.read(cut, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
    item.source.close()  # as the server sees a killed process
    other = place.open()
    try:
        successor = Follower(other)
        successor.drain()
        assert len(successor.rows("item")) == 40
    finally:
        other.close()


def test_the_backlog_counts_what_waits(app: Application, item: Follower) -> None:
    table_id = item.table_id("item")
    assert item.source.capture.read_backlog()[table_id][0] == 0
    fill_items(app, 0, 12)
    assert item.source.capture.read_backlog()[table_id][0] == 12
    item.drain()
    assert item.source.capture.read_backlog()[table_id][0] == 0


def test_a_paused_table_waits_and_drains_in_order(app: Application, item: Follower) -> None:
    table_id = item.table_id("item")
    item.source.registry.set_table_state(table_id, "PAUSED", "by hand")
    fill_items(app, 0, 5)
    assert item.cut() is None
    assert item.source.capture.read_backlog()[table_id][0] == 5
    (paused,) = [t for t in item.source.registry.read_registered_tables() if t.schema.table_id == table_id]
    assert (paused.state, paused.reason) == ("PAUSED", "by hand")
    item.source.registry.set_table_state(table_id, "ACTIVE", "")
    item.drain()
    assert len(item.rows("item")) == 5


def test_another_process_can_pause_a_table(place: Place, app: Application, item: Follower) -> None:
    other = place.open()
    try:
        other.registry.set_table_state(item.table_id("item"), "PAUSED", "by hand")
        fill_items(app, 0, 5)
        assert item.cut() is None
        other.registry.set_table_state(item.table_id("item"), "ACTIVE", "")
    finally:
        other.close()
    item.drain()
    assert len(item.rows("item")) == 5


def test_a_state_of_an_unknown_table_is_refused(item: Follower) -> None:
    with pytest.raises(VenusError):
        item.source.registry.set_table_state(4711, "PAUSED", "by hand")


def test_the_clock_of_a_cut_is_the_sources(app: Application, item: Follower) -> None:
    fill_items(app, 0, 1)
    cut = item.open([])
    assert cut is not None
    assert cut.captured_at_us > 1_600_000_000_000_000
    cut.rollback()


def test_a_large_transaction_is_one_cut_of_many_sections(app: Application, item: Follower) -> None:
    fill_items(app, 0, 6000)
    cuts = item.drain(rows_max=500)
    assert [s.kind for c in cuts for s in c.sections] == [ChangeKind.CHANGES] * 12
    assert len(cuts) == 1
