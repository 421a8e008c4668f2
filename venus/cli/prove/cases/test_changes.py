"""Every kind of change by an application is captured, as the rows after it (VENUS 3.2)."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place, quote_name, run_transaction
from venus.cli.prove.follower import Follower, Row
from venus.model import ChangeKind


def item_row(number: int, name: str | None, price: str | None = None) -> Row:
    """Return a row of the table item, in the form of a follower."""
    return {"id": str(number), "name": name, "price": price}


def test_inserts_updates_and_deletes_arrive(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'one', 1.50)", "INSERT INTO item VALUES (2, NULL, NULL)")
    item.drain()
    assert item.rows("item") == {("1",): item_row(1, "one", "1.50"), ("2",): item_row(2, None)}
    run_transaction(app, "UPDATE item SET name = 'ONE' WHERE id = 1", "DELETE FROM item WHERE id = 2")
    item.drain()
    assert item.rows("item") == {("1",): item_row(1, "ONE", "1.50")}


def test_an_idle_source_gives_no_cut(item: Follower) -> None:
    assert item.cut() is None


def test_a_key_change_removes_the_old_row(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'a', NULL)")
    item.drain()
    run_transaction(app, "UPDATE item SET id = 9 WHERE id = 1")
    item.drain()
    assert item.rows("item") == {("9",): item_row(9, "a")}


def test_two_rows_swap_their_keys(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'a', NULL)", "INSERT INTO item VALUES (2, 'b', NULL)")
    item.drain()
    run_transaction(app, *(f"UPDATE item SET id = {to} WHERE id = {of}" for of, to in ((1, 0), (2, 1), (0, 2))))
    item.drain()
    assert item.rows("item") == {("1",): item_row(1, "b"), ("2",): item_row(2, "a")}


def test_every_key_of_a_table_moves_by_one(app: Application, item: Follower) -> None:
    run_transaction(app, *(f"INSERT INTO item VALUES ({i}, 'n{i}', NULL)" for i in range(1, 51)))
    item.drain()
    # from the top down: not every database checks uniqueness at the end of the statement
    run_transaction(app, *(f"UPDATE item SET id = id + 1 WHERE id = {i}" for i in range(50, 0, -1)))
    item.drain()
    assert item.rows("item") == {(str(i + 1),): item_row(i + 1, f"n{i}") for i in range(1, 51)}


def test_what_is_rolled_back_never_happened(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'kept', NULL)")
    item.drain()
    app.execute("INSERT INTO item VALUES (2, 'gone', NULL)")
    app.execute("UPDATE item SET name = 'gone' WHERE id = 1")
    app.rollback()
    assert item.cut() is None
    run_transaction(app, "INSERT INTO item VALUES (3, 'after', NULL)")
    item.drain()
    assert item.rows("item") == {("1",): item_row(1, "kept"), ("3",): item_row(3, "after")}


def test_what_is_rolled_back_to_a_savepoint_never_happened(app: Application, item: Follower) -> None:
    app.execute("INSERT INTO item VALUES (1, 'before', NULL)")
    app.execute("SAVEPOINT half_way")
    app.execute("INSERT INTO item VALUES (2, 'undone', NULL)")
    app.execute("UPDATE item SET name = 'undone' WHERE id = 1")
    app.execute("ROLLBACK TO SAVEPOINT half_way")
    app.execute("INSERT INTO item VALUES (3, 'after', NULL)")
    app.commit()
    item.drain()
    assert item.rows("item") == {("1",): item_row(1, "before"), ("3",): item_row(3, "after")}


def test_a_row_born_and_gone_in_one_transaction_leaves_nothing(app: Application, item: Follower) -> None:
    run_transaction(
        app,
        "INSERT INTO item VALUES (1, 'a', NULL)",
        "UPDATE item SET name = 'b' WHERE id = 1",
        "DELETE FROM item WHERE id = 1",
    )
    item.drain()
    assert item.rows("item") == {}


def test_a_row_deleted_and_inserted_again_has_its_new_values(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'old', 1)")
    item.drain()
    run_transaction(app, "DELETE FROM item WHERE id = 1", "INSERT INTO item VALUES (1, 'new', NULL)")
    cuts = item.drain()
    assert item.rows("item") == {("1",): item_row(1, "new")}
    assert sum(s.count for c in cuts for s in c.sections) == 1


def test_changes_between_two_cuts_come_once_with_their_last_state(app: Application, item: Follower) -> None:
    for i in range(5):
        run_transaction(app, "DELETE FROM item", f"INSERT INTO item VALUES (1, 'v{i}', {i})")
    (seen,) = item.drain()
    assert seen.count == 1
    assert item.rows("item") == {("1",): item_row(1, "v4", "4.00")}


def test_a_table_that_is_only_inserted_into_says_so_or_says_nothing(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'a', NULL)")
    (seen,) = item.drain()
    fresh = seen.sections[0].inserts_only
    run_transaction(app, "INSERT INTO item VALUES (2, 'b', NULL)", "UPDATE item SET name = 'c' WHERE id = 1")
    (seen,) = item.drain()
    assert fresh in (True, False)
    assert not seen.sections[0].inserts_only


def test_truncate_empties_the_table_in_order(place: Place, app: Application, item: Follower) -> None:
    if not place.captures_truncate:
        pytest.skip("the database has no trigger for TRUNCATE")
    run_transaction(app, "INSERT INTO item VALUES (1, 'a', NULL)", "INSERT INTO item VALUES (2, 'b', NULL)")
    item.drain()
    run_transaction(
        app,
        "INSERT INTO item VALUES (3, 'lost', NULL)",
        "TRUNCATE TABLE item",
        "INSERT INTO item VALUES (2, 'again', NULL)",
    )
    (seen,) = item.drain()
    assert seen.sections[0].kind is ChangeKind.TRUNCATE
    assert item.rows("item") == {("2",): item_row(2, "again")}


def test_deletes_without_a_condition_are_all_captured(app: Application, item: Follower) -> None:
    run_transaction(app, *(f"INSERT INTO item VALUES ({i}, 'x', NULL)" for i in range(20)))
    item.drain()
    run_transaction(app, "DELETE FROM item")
    item.drain()
    assert item.rows("item") == {}


def test_composite_keys_keep_their_parts_apart(place: Place, app: Application, source: Source) -> None:
    t = place.types
    run_transaction(
        app,
        f"CREATE TABLE line (pos {t['int']} NOT NULL, code varchar(20) NOT NULL, order_no {t['int']} NOT NULL,"
        f" amount {t['int']}, PRIMARY KEY (order_no, code, pos))",
    )
    source.installer.install(["*"], [])
    follower = Follower(source)
    rows = [(1, "2", 3), (12, "", 3), (1, "22", 3), (1, "2\t3", 4), (1, "a\\b", 4), (1, "ä", 4)]
    if place.empty_is_null:
        rows.remove((12, "", 3))
    for pos, code, order_no in rows:
        app.execute("INSERT INTO line VALUES (?, ?, ?, 7)", pos, code, order_no)
    app.commit()
    follower.drain()
    assert set(follower.rows("line")) == {(str(order_no), code, str(pos)) for pos, code, order_no in rows}
    run_transaction(app, "DELETE FROM line WHERE order_no = 4", "UPDATE line SET code = '5' WHERE code = '22'")
    follower.drain()
    kept = {(o, "5" if c == "22" else c, p) for p, c, o in rows if o == 3}
    assert set(follower.rows("line")) == {(str(o), c, str(p)) for o, c, p in kept}


def test_children_deleted_by_a_cascade_are_captured(place: Place, app: Application, source: Source) -> None:
    if not place.fires_on_cascade:
        pytest.skip("the database fires no triggers for cascades")
    t = place.types
    run_transaction(
        app,
        f"CREATE TABLE parent (id {t['int']} NOT NULL PRIMARY KEY)",
        f"CREATE TABLE child (id {t['int']} NOT NULL PRIMARY KEY,"
        f" parent_id {t['int']} REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (10, 1)",
        "INSERT INTO child VALUES (11, 1)",
    )
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    assert len(follower.rows("child")) == 2
    run_transaction(app, "DELETE FROM parent WHERE id = 1")
    follower.drain()
    assert follower.rows("child") == follower.rows("parent") == {}


NAMES = ["select", "Mixed Case", "größe_表_🙂", 'quo"te', "it's", "per%cent", "co:lon", "{brace}", "back\\slash", "$1"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_tables_and_columns_may_be_anything(name: str, place: Place, app: Application, source: Source) -> None:
    t, q = place.types, quote_name(name)
    app.execute(f"CREATE TABLE {q} ({q} {t['int']} NOT NULL PRIMARY KEY, {quote_name(name + ' 2')} {t['text']})")
    app.commit()
    source.installer.install(["*"], [])
    follower = Follower(source)
    run_transaction(app, f"INSERT INTO {q} VALUES (1, 'x')", f"INSERT INTO {q} VALUES (2, 'y')")
    follower.drain(fill_rows=1)
    run_transaction(app, f"UPDATE {q} SET {q} = 3 WHERE {q} = 1", f"DELETE FROM {q} WHERE {q} = 2")
    follower.drain()
    assert follower.rows(name) == {("3",): {name: "3", name + " 2": "x"}}
    source.installer.uninstall()


def test_rows_of_two_tables_changed_together_are_in_one_cut(place: Place, app: Application, source: Source) -> None:
    t = place.types
    run_transaction(app, *(f"CREATE TABLE {n} (id {t['int']} NOT NULL PRIMARY KEY, v {t['int']})" for n in ("a", "b")))
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    run_transaction(app, "INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)")
    (seen,) = follower.drain()
    assert {s.table_id for s in seen.sections} == {follower.table_id("a"), follower.table_id("b")}


def test_a_change_without_effect_is_harmless(app: Application, item: Follower) -> None:
    run_transaction(app, "INSERT INTO item VALUES (1, 'a', NULL)")
    item.drain()
    run_transaction(app, "UPDATE item SET id = id, name = name", "DELETE FROM item WHERE id = 77")
    item.drain()
    assert item.rows("item") == {("1",): item_row(1, "a")}


def test_the_heartbeat_row_is_captured_like_any_other(item: Follower) -> None:
    item.source.capture.write_heartbeat()
    (seen,) = item.drain()
    (section,) = seen.sections
    schema = item.schemas[section.table_id, section.schema_version]
    assert "heartbeat" in schema.name.lower()
    (row,) = item.rows(schema.name).values()
    beat_at = {name.lower(): value for name, value in row.items()}["beat_at"]
    assert int(str(beat_at)) > 1_600_000_000_000_000


def test_a_heartbeat_row_that_was_deleted_comes_again(app: Application, item: Follower) -> None:
    item.source.capture.write_heartbeat()
    (seen,) = item.drain()
    schema = item.schemas[seen.sections[0].table_id, seen.sections[0].schema_version]
    run_transaction(app, f"DELETE FROM {schema.namespace}.{schema.name}")
    item.drain()
    assert not item.rows(schema.name)
    item.source.capture.write_heartbeat()
    item.drain()
    assert len(item.rows(schema.name)) == 1
