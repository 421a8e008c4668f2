"""The application's DDL continues; its changes are noticed, and no row is lost silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases.sqlite import Shop, open_shop
from venus.adapters.dialects.contract import RegisteredTable, SchemaChanged
from venus.model import BatchNo

pytestmark = pytest.mark.integration

PERSON = "CREATE TABLE person (id INTEGER PRIMARY KEY, email TEXT UNIQUE, name TEXT);"


def table(shop: Shop, name: str = "person") -> RegisteredTable:
    return next(t for t in shop.source.registry.read_registered_tables() if t.schema.name == name)


def test_a_cut_never_reads_with_an_outdated_dictionary(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada')")
        shop.copy.catch_up()
        shop.run("ALTER TABLE person ADD COLUMN age INT DEFAULT 7; UPDATE person SET name = 'x'")

        with pytest.raises(SchemaChanged):
            shop.source.capture.open_cut([])
        assert not shop.source._reader.in_transaction


def test_a_new_column_makes_a_new_version_and_is_filled(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada'), (2, 'b', 'Bob')")
        shop.copy.catch_up()
        shop.run("ALTER TABLE person ADD COLUMN age INT DEFAULT 7; UPDATE person SET name = 'x' WHERE id = 1")
        (new,) = shop.source.capture.refresh_schemas()

        assert (new.version, [c.name for c in new.columns]) == (2, ["id", "email", "name", "age"])
        assert not table(shop).fill.done
        assert table(shop).fill.sweep_from > 0
        shop.copy.catch_up()
        assert shop.copy.content("person") == {("1",): ("a", "x", "7"), ("2",): ("b", "Bob", "7")}


def test_a_dropped_columns_number_is_never_reused(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.copy.catch_up()
        shop.run("ALTER TABLE person DROP COLUMN name")
        (dropped,) = shop.source.capture.refresh_schemas()
        assert table(shop).fill.done, "no row has a value that was not shipped"
        shop.run("ALTER TABLE person ADD COLUMN other TEXT")
        (added,) = shop.source.capture.refresh_schemas()

        assert [c.number for c in dropped.columns] == [1, 2]
        assert [c.number for c in added.columns] == [1, 2, 4]


def test_renamed_columns_keep_their_number_also_in_the_key(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada')")
        shop.copy.catch_up()
        shop.run("ALTER TABLE person RENAME COLUMN id TO number; ALTER TABLE person RENAME COLUMN email TO mail")
        (new,) = shop.source.capture.refresh_schemas()
        shop.run("INSERT OR REPLACE INTO person VALUES (2, 'a', 'Eve')")
        shop.copy.catch_up()

        assert [(c.name, c.number) for c in new.columns] == [("number", 1), ("mail", 2), ("name", 3)]
        assert table(shop).state == "ACTIVE"
        assert new.key == ("number",)
        assert shop.copy.content("person") == {("2",): ("a", "Eve")}


@pytest.mark.parametrize("script", ["DROP TABLE person", "ALTER TABLE person RENAME TO people"])
def test_a_dropped_table_waits_for_an_operator_and_the_others_continue(tmp_path: Path, script: str) -> None:
    with open_shop(tmp_path / "a.db", PERSON + "CREATE TABLE other (id INTEGER PRIMARY KEY);") as shop:
        shop.copy.catch_up()
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada')")
        shop.run(script)
        shop.run("INSERT INTO other VALUES (1)")
        shop.copy.catch_up()

        assert table(shop).state == "RESYNC"
        assert "gone" in table(shop).reason
        assert shop.copy.content("other") == {("1",): ()}
        shop.source.installer.uninstall()
        assert not [r for r in shop.rows("SELECT name FROM sqlite_master") if "venus" in str(r)]


def test_a_table_rebuilt_by_a_migration_tool_without_triggers_is_reported(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada')")
        shop.copy.catch_up()
        shop.run("BEGIN; CREATE TABLE new (id INTEGER PRIMARY KEY, email TEXT UNIQUE, name TEXT NOT NULL, n INT)")
        shop.run("INSERT INTO new SELECT *, 1 FROM person; DROP TABLE person; ALTER TABLE new RENAME TO person; COMMIT")
        shop.run("INSERT INTO person VALUES (2, 'b', 'unseen', 2)")
        shop.copy.catch_up()
        assert table(shop).state == "RESYNC"
        assert "install-triggers" in table(shop).reason

        shop.source.installer.install(["*"], [])
        shop.source.capture.restart_fill(table(shop).schema.table_id)
        shop.copy.catch_up()

        assert table(shop).state == "ACTIVE"
        assert shop.copy.content("person") == {("1",): ("a", "Ada", "1"), ("2",): ("b", "unseen", "2")}


def test_another_key_is_captured_after_the_next_installation(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada')")
        shop.copy.catch_up()
        shop.run("DROP TABLE person; CREATE TABLE person (email TEXT NOT NULL PRIMARY KEY, name TEXT)")
        shop.run("INSERT INTO person VALUES ('a', 'Ada')")
        shop.copy.catch_up()
        assert table(shop).state == "RESYNC"
        assert "its key is now (email)" in table(shop).reason

        shop.source.installer.install(["*"], [])
        shop.source.capture.restart_fill(table(shop).schema.table_id)
        shop.run("UPDATE person SET email = 'b'")
        shop.copy.catch_up()

        assert table(shop).schema.version == 2
        assert shop.copy.content("person") == {("b",): ("Ada",)}


def test_a_new_unique_index_needs_its_own_trigger(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.copy.catch_up()
        shop.run("CREATE UNIQUE INDEX names ON person (name)")
        shop.copy.catch_up()
        assert table(shop).state == "RESYNC"

        shop.source.installer.install(["*"], [])
        shop.source.capture.restart_fill(table(shop).schema.table_id)
        shop.run("INSERT INTO person VALUES (1, 'a', 'x'); INSERT OR REPLACE INTO person VALUES (2, 'b', 'x')")
        shop.copy.catch_up()
        assert shop.copy.content("person") == {("2",): ("b", "x")}


def test_a_restart_of_a_fill_is_kept_while_a_chunk_is_in_progress(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON, install=False) as shop:
        shop.app.executemany("INSERT INTO person (email) VALUES (?)", ((str(n),) for n in range(10)))
        shop.source.installer.install(["*"], [])
        shop.copy.chunk_rows = 4
        shop.copy.follow()
        fill = table(shop).fill
        follower = shop.copy.follower
        cut = follower.open([fill])
        assert cut is not None
        seen = follower.read(cut, [fill], rows_max=100, bytes_max=1 << 20, fill_rows=4)
        shop.source.capture.restart_fill(fill.table_id)
        cut.commit(follower.epoch, seen.batches, seen.fills, BatchNo(0))

        assert (table(shop).fill.rows_done, table(shop).fill.cursor) == (0, b"")
        assert table(shop).fill.sweep_from > 0
