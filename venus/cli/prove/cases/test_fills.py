"""Existing rows are read in chunks on the same stream, while the application continues."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from venus.adapters.dialects.contract import FillState, RegisteredTable, Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.adapters.dialects.registry_rules import comparison_reason
from venus.adapters.dialects.rows import FillCursor as Cursor
from venus.cli.prove.follower import Follower
from venus.model import BatchNo, ChangeKind


@pytest.fixture
def old_rows(place: Place, app: Application, source: Source) -> Follower:
    """Capture a table that has 100 rows already; nothing is read yet."""
    t = place.types
    app.execute(f"CREATE TABLE item (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']}, price {t['decimal']})")
    for i in range(100):
        app.execute("INSERT INTO item VALUES (?, ?, NULL)", i, f"v{i}")
    app.commit()
    source.installer.install(["*"], [])
    return Follower(source)


def names(follower: Follower) -> dict[int, str]:
    """Return the captured names of the table item, by id."""
    return {int(str(key[0])): str(row["name"]) for key, row in follower.rows("item").items()}


def test_rows_from_before_the_installation_are_filled_in_chunks(old_rows: Follower) -> None:
    cuts = old_rows.drain(fill_rows=30)
    assert names(old_rows) == {i: f"v{i}" for i in range(100)}
    assert [c.count for c in cuts if c.count and c.fills[0].table_id == old_rows.table_id("item")] == [30, 30, 30, 10]
    (fill,) = [t.fill for t in old_rows.source.registry.read_registered_tables() if t.schema.name == "item"]
    assert (fill.done, fill.rows_done) == (True, 100)
    assert old_rows.cut() is None


def test_a_fill_continues_where_it_was_after_a_restart(place: Place, old_rows: Follower) -> None:
    while sum(len(t) for t in old_rows.tables.values()) < 60:
        old_rows.cut(fill_rows=30)
    old_rows.source.close()
    other = place.open()
    try:
        successor = Follower(other)
        successor.drain(fill_rows=30)
        both = names(old_rows) | names(successor)
        assert both == {i: f"v{i}" for i in range(100)}
        assert len(names(old_rows)) + len(names(successor)) == 100
    finally:
        other.close()


def test_a_chunk_whose_cut_is_rolled_back_is_read_again(old_rows: Follower) -> None:
    fills = [f for f in old_rows.due() if f.table_id == old_rows.table_id("item")]
    cut = old_rows.open(fills)
    assert cut is not None
    seen = old_rows.read(cut, fills, rows_max=100, bytes_max=1 << 20, fill_rows=40)
    assert seen.count == 40
    cut.rollback()
    assert [f for f in old_rows.due() if f.table_id == old_rows.table_id("item")] == fills
    old_rows.drain(fill_rows=40)
    assert len(names(old_rows)) == 100


def test_changes_during_a_fill_arrive_in_order(app: Application, old_rows: Follower) -> None:
    for step in range(8):
        old_rows.cut(fill_rows=20)
        run_transaction(
            app,
            f"UPDATE item SET name = 'changed {step}' WHERE id = {step * 13 % 100}",
            f"DELETE FROM item WHERE id = {90 - step}",
            f"INSERT INTO item VALUES ({200 + step}, 'new', NULL)",
            f"UPDATE item SET id = {300 + step} WHERE id = {40 + step}",
        )
    old_rows.drain(fill_rows=20)
    expected = {int(n): str(name) for n, name in app.execute("SELECT id, name FROM item")}
    app.rollback()
    assert names(old_rows) == expected


def test_a_sweep_finds_what_changed_unseen(app: Application, old_rows: Follower) -> None:
    old_rows.drain()
    table_id = old_rows.table_id("item")
    # the target has a row that the source lacks, and vice versa
    old_rows.tables[table_id]["777",] = (1, {"id": "777", "name": "ghost", "price": None})
    del old_rows.tables[table_id]["5",]
    old_rows.source.capture.restart_fill(table_id)
    run_transaction(app, "INSERT INTO item VALUES (500, 'meanwhile', NULL)")
    cuts = old_rows.drain(fill_rows=40)
    kinds = [s.kind for c in cuts for s in c.sections if s.table_id == table_id]
    assert kinds.count(ChangeKind.SWEEP_BEGIN) == kinds.count(ChangeKind.SWEEP_END) == 1
    assert names(old_rows) == {**{i: f"v{i}" for i in range(100)}, 500: "meanwhile"}


def test_a_fill_started_again_before_it_was_done_is_a_sweep(app: Application, old_rows: Follower) -> None:
    table_id = old_rows.table_id("item")
    while len(old_rows.tables[table_id]) < 40:
        old_rows.cut(fill_rows=20)
    old_rows.tables[table_id]["777",] = (1, {"id": "777", "name": "ghost", "price": None})
    old_rows.source.capture.restart_fill(table_id)
    old_rows.drain(fill_rows=20)
    assert names(old_rows) == {i: f"v{i}" for i in range(100)}


def test_a_comparison_in_place_of_a_fill_ends_only_for_the_request_that_began_it(old_rows: Follower) -> None:
    old_rows.drain()
    table_id, registry = old_rows.table_id("item"), old_rows.source.registry
    first, second, third = (comparison_reason("requested") for _ in range(3))

    def read_table() -> RegisteredTable:
        """Read the table from the registry again."""
        return next(t for t in registry.read_registered_tables() if t.schema.table_id == table_id)

    def end_comparison(reason: str) -> bool:
        """Try to end the comparison that `reason` requested; return whether that succeeded."""
        return registry.advance_comparison(table_id, reason, "", 100, done=True)

    assert not registry.begin_comparison(table_id, first), "it has been read"
    old_rows.source.capture.restart_fill(table_id)
    assert registry.begin_comparison(table_id, first)
    assert registry.advance_comparison(table_id, first, first, 40, done=False)
    assert (read_table().is_compared, read_table().fill.rows_done) == (True, 40)
    assert registry.begin_comparison(table_id, second)
    assert not end_comparison(first), "another request has replaced it"
    registry.set_table_state(table_id, "RESYNC", "missed")
    assert not end_comparison(second), "more was missed meanwhile"
    registry.set_table_state(table_id, "ACTIVE", second)
    old_rows.source.capture.restart_fill(table_id)
    assert not end_comparison(second), "the whole table is to be read"
    assert not read_table().is_compared

    assert registry.begin_comparison(table_id, third)
    assert end_comparison(third)
    assert (read_table().state, read_table().reason, read_table().fill.done, read_table().fill.rows_done) == (
        "ACTIVE",
        "",
        True,
        100,
    )
    assert old_rows.drain() == [], "nothing is read"


def test_a_comparison_that_gives_up_leaves_the_whole_table_to_the_fill(old_rows: Follower) -> None:
    old_rows.drain()
    table_id, registry, reason = old_rows.table_id("item"), old_rows.source.registry, comparison_reason("requested")
    old_rows.tables[table_id]["777",] = (1, {"id": "777", "name": "ghost", "price": None})
    old_rows.source.capture.restart_fill(table_id)
    assert registry.begin_comparison(table_id, reason)
    assert registry.advance_comparison(table_id, reason, "", 0, done=False)
    old_rows.drain(fill_rows=40)
    assert not registry.begin_comparison(table_id, reason)
    assert names(old_rows) == {i: f"v{i}" for i in range(100)}


def test_a_table_of_which_only_changes_were_captured_is_swept(app: Application, old_rows: Follower) -> None:
    table_id = old_rows.table_id("item")
    run_transaction(app, "INSERT INTO item VALUES (500, 'noted', NULL)")
    while old_rows.cut(fill=False) is not None:
        pass
    assert list(names(old_rows)) == [500]
    old_rows.tables[table_id]["777",] = (1, {"id": "777", "name": "ghost", "price": None})
    old_rows.source.capture.restart_fill(table_id)
    old_rows.drain(fill_rows=20)
    assert names(old_rows) == {**{i: f"v{i}" for i in range(100)}, 500: "noted"}


@pytest.mark.parametrize("is_filled", [False, True])
def test_a_table_that_starts_over_is_swept_in_the_version_that_is_wanted(
    is_filled: bool, app: Application, old_rows: Follower
) -> None:
    """The rule holds even if the source never shipped the table: it was restored, and the broker has rows of it."""
    table_id = old_rows.table_id("item")
    if is_filled:
        old_rows.drain()
    old_rows.tables[table_id]["777",] = (0, {"id": "777", "name": "ghost", "price": None})
    old_rows.source.capture.restart_with_sweep(table_id, 7)
    old_rows.read_registry()
    run_transaction(app, "INSERT INTO item VALUES (500, 'now', NULL)")
    cuts = old_rows.drain(fill_rows=40)
    assert names(old_rows) == {**{i: f"v{i}" for i in range(100)}, 500: "now"}
    assert {s.schema_version for c in cuts for s in c.sections if s.table_id == table_id} == {7}
    old_rows.source.capture.restart_with_sweep(table_id, 5)
    assert {t.schema.name: t.schema.version for t in old_rows.source.registry.read_registered_tables()}["item"] == 7


def test_an_empty_table_is_done_at_once(item: Follower) -> None:
    (fill,) = [t.fill for t in item.source.registry.read_registered_tables() if t.schema.name == "item"]
    assert fill.done
    assert fill.rows_done == 0


def test_an_empty_table_is_swept_clean(item: Follower) -> None:
    table_id = item.table_id("item")
    item.source.capture.restart_fill(table_id)
    item.drain()
    item.tables[table_id]["1",] = (0, {"id": "1", "name": "ghost", "price": None})
    item.source.capture.restart_fill(table_id)
    item.drain()
    assert item.rows("item") == {}


def test_chunks_of_large_rows_are_bounded_in_bytes(app: Application, old_rows: Follower) -> None:
    run_transaction(app, *(f"UPDATE item SET name = '{'x' * 3000}' WHERE id = {i}" for i in range(50, 100)))
    cuts = old_rows.drain(fill_rows=100, bytes_max=4000)
    assert all(s.nbytes <= 4000 for c in cuts for s in c.sections)
    assert len(names(old_rows)) == 100


@pytest.mark.parametrize("chunk", [1, 3])
def test_composite_keys_are_filled_in_key_order(chunk: int, place: Place, app: Application, source: Source) -> None:
    t = place.types
    app.execute(f"CREATE TABLE line (b varchar(9) NOT NULL, a {t['int']} NOT NULL, v {t['int']}, PRIMARY KEY (a, b))")
    rows = [(a, b) for a in (-3, 0, 7) for b in ("", "A", "a", "ä", "b'c", "b\\")]
    if place.empty_is_null:
        rows = [(a, b) for a, b in rows if b]
    for a, b in reversed(rows):
        app.execute("INSERT INTO line VALUES (?, ?, 1)", b, a)
    app.commit()
    source.installer.install(["*"], [])
    follower = Follower(source)
    cuts = follower.drain(fill_rows=chunk)
    assert set(follower.rows("line")) == {(str(a), b) for a, b in rows}
    read = sum(c.count for c in cuts if c.fills and c.fills[0].table_id == follower.table_id("line"))
    assert read == len(rows)


def test_a_fill_and_a_change_of_the_same_row_agree_in_one_cut(app: Application, old_rows: Follower) -> None:
    fills = [f for f in old_rows.due() if f.table_id == old_rows.table_id("item")]
    run_transaction(app, "UPDATE item SET name = 'new' WHERE id = 3")
    cut = old_rows.open(fills)
    assert cut is not None
    seen = old_rows.read(cut, fills, rows_max=100, bytes_max=1 << 20, fill_rows=10)
    cut.commit(old_rows.epoch, seen.batches, seen.fills, BatchNo(0))
    old_rows.take(seen)
    assert names(old_rows)[3] == "new"


def _begin_fill(follower: Follower, name: str, fill_rows: int) -> FillState:
    """Take cuts until the first chunk of a table has been read; return the state of its fill."""
    while True:
        follower.cut(fill_rows=fill_rows)
        (fill,) = [t.fill for t in follower.source.registry.read_registered_tables() if t.schema.name == name]
        if fill.cursor:
            return fill


def test_a_fill_ends_while_the_application_appends_faster_than_it_reads(app: Application, old_rows: Follower) -> None:
    _begin_fill(old_rows, "item", 20)
    for step in range(4):
        run_transaction(app, *(f"INSERT INTO item VALUES ({1000 + 40 * step + i}, 'new', NULL)" for i in range(40)))
        old_rows.cut(fill_rows=20)
    old_rows.cut(fill_rows=20)  # if the last chunk was full, another chunk finds nothing more
    (fill,) = [t.fill for t in old_rows.source.registry.read_registered_tables() if t.schema.name == "item"]
    assert (fill.done, fill.rows_done) == (True, 100)
    old_rows.drain()
    assert names(old_rows) == {i: f"v{i}" for i in range(100)} | {1000 + i: "new" for i in range(160)}


def test_a_fill_ends_within_a_composite_key(place: Place, app: Application, source: Source) -> None:
    t = place.types
    app.execute(f"CREATE TABLE line (b varchar(9) NOT NULL, a {t['int']} NOT NULL, v {t['int']}, PRIMARY KEY (a, b))")
    run_transaction(app, *(f"INSERT INTO line VALUES ('{b}', {a}, 1)" for a in (-3, 7) for b in "fhkm"))
    source.installer.install(["*"], [])
    follower = Follower(source)
    _begin_fill(follower, "line", 2)
    for step in range(4):
        run_transaction(app, *(f"INSERT INTO line VALUES ('n{step}{i}', 7, 2)" for i in range(3)))
        run_transaction(app, *(f"INSERT INTO line VALUES ('a', {8 + 3 * step + i}, 2)" for i in range(3)))
        follower.cut(fill_rows=2)
    (fill,) = [t.fill for t in source.registry.read_registered_tables() if t.schema.name == "line"]
    assert (fill.done, fill.rows_done) == (True, 8)
    follower.drain()
    found = app.execute("SELECT a, b FROM line")
    app.rollback()
    assert set(follower.rows("line")) == {(str(int(a)), str(b)) for a, b in found}


def test_a_fill_that_an_older_version_began_continues(old_rows: Follower) -> None:
    """The cursor of such a fill has no end."""
    fill = _begin_fill(old_rows, "item", 30)
    old = replace(fill, cursor=json.dumps(Cursor.parse(fill.cursor).after).encode())
    cut = old_rows.open([old])
    assert cut is not None
    while not old.done:
        _, old = cut.read_fill_chunk(old, rows_max=200, bytes_max=1 << 20)
    cut.rollback()
    assert old.rows_done == 100
