"""Every way in which SQLite can change a row is captured, exactly."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.support.databases.sqlite import open_shop

pytestmark = pytest.mark.integration

PERSON = "CREATE TABLE person (id INTEGER PRIMARY KEY, email TEXT UNIQUE, name TEXT);"


def test_insert_update_delete_and_reinsert(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada'), (2, 'b', 'Bob'), (3, 'c', 'Cyd')")
        shop.copy.catch_up()
        shop.run("UPDATE person SET name = 'Bo' WHERE id = 2; DELETE FROM person WHERE id = 3")
        shop.run("DELETE FROM person WHERE id = 1; INSERT INTO person VALUES (1, 'x', NULL)")
        shop.copy.catch_up()

        assert shop.copy.content("person") == {("1",): ("x", None), ("2",): ("b", "Bo")}


def test_existing_rows_are_filled_in_chunks(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON, install=False) as shop:
        shop.app.executemany("INSERT INTO person VALUES (?, ?, ?)", ((n, f"e{n}", "x" * n) for n in range(1, 101)))
        shop.source.installer.install(["*"], [])
        shop.copy.chunk_rows = 7
        shop.copy.catch_up()

        fill = {t.schema.name: t.fill for t in shop.source.registry.read_registered_tables()}["person"]
        assert (fill.done, fill.rows_done, fill.rows_estimate) == (True, 100, 100)
        assert shop.copy.content("person") == {(str(n),): (f"e{n}", "x" * n) for n in range(1, 101)}


def test_rolled_back_changes_leave_no_log_rows_and_their_numbers_are_used_again(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.copy.catch_up()
        shop.run(
            "BEGIN; INSERT INTO person VALUES (1, 'a', 'gone'); SAVEPOINT s; INSERT INTO person VALUES (2, 'b', '')"
        )
        shop.run("ROLLBACK; BEGIN; INSERT INTO person VALUES (3, 'c', 'Cyd'); SAVEPOINT s")
        shop.run("INSERT INTO person VALUES (4, 'd', 'gone'); ROLLBACK TO s; COMMIT")
        shop.copy.catch_up()

        assert shop.copy.content("person") == {("3",): ("c", "Cyd")}


def test_numbers_are_not_reused_after_the_log_was_purged(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        for batch in range(4):
            values = ((n, f"{batch}-{n}") for n in range(800))
            shop.app.executemany("INSERT OR REPLACE INTO person (id, email) VALUES (?, ?)", values)
            shop.copy.catch_up()
            log = f"venus_l_{shop.copy.id_of('person'):05}"
            (left,) = shop.app.execute(f"SELECT count(*) FROM {log}").fetchone()
            assert 0 < left < 500, "purged, but the newest row stays"
            shop.run("BEGIN; INSERT INTO person VALUES (9999, 'z', 'gone'); ROLLBACK")

        shop.run("DELETE FROM person WHERE id >= 10")
        shop.copy.catch_up()
        assert shop.copy.content("person") == {(str(n),): (f"3-{n}", None) for n in range(10)}


def test_a_log_that_was_emptied_by_hand_is_noticed(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada'), (2, 'b', 'Bob')")
        shop.copy.catch_up()
        shop.run(
            "UPDATE person SET name = 'B' WHERE id = 2; DELETE FROM venus_l_00002; DELETE FROM person WHERE id = 1"
        )
        shop.copy.catch_up()

        state = {t.schema.name: (t.state, t.reason) for t in shop.source.registry.read_registered_tables()}["person"]
        assert state[0] == "RESYNC"
        assert "venus_l_00002" in state[1]
        shop.source.capture.restart_fill(2)
        shop.copy.catch_up()
        assert shop.copy.content("person")[("2",)] == ("b", "B")
        assert {t.state for t in shop.source.registry.read_registered_tables()} == {"ACTIVE"}


def test_delete_without_where_and_key_shifts(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        shop.app.executemany("INSERT INTO person (id, email) VALUES (?, ?)", ((n, f"e{n}") for n in range(1, 51)))
        shop.copy.catch_up()
        shop.run("UPDATE person SET id = id + 1000")
        shop.copy.catch_up()
        assert shop.copy.content("person") == {(str(n + 1000),): (f"e{n}", None) for n in range(1, 51)}

        shop.run("DELETE FROM person")
        shop.copy.catch_up()
        assert shop.copy.content("person") == {}


def test_changes_by_triggers_of_the_application_are_captured(tmp_path: Path) -> None:
    ddl = (
        PERSON
        + """
        CREATE TABLE audit (id INTEGER PRIMARY KEY, what TEXT UNIQUE);
        CREATE TRIGGER app AFTER UPDATE ON person BEGIN
          INSERT OR REPLACE INTO audit (what) VALUES (NEW.name);
          UPDATE person SET email = NEW.name || '@x' WHERE id = NEW.id;
        END;
    """
    )
    with open_shop(tmp_path / "a.db", ddl) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada')")
        for name in ("one", "two", "one"):
            shop.run(f"UPDATE person SET name = '{name}'")
            shop.copy.catch_up()

        assert shop.copy.content("person") == {("1",): ("one@x", "one")}
        assert {k + v for k, v in shop.copy.content("audit").items()} == {
            (str(i), w) for i, w in shop.rows("SELECT id, what FROM audit")
        }


def test_odd_names(tmp_path: Path) -> None:
    table, column = 'or"der; é🍀', 'ta"ble by; ñ'
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (table, column)]
    columns = f'{quoted[1]} TEXT NOT NULL, "group" INT, "k1" TEXT, PRIMARY KEY ({quoted[1]}, "group")'
    ddl = f"CREATE TABLE {quoted[0]} ({columns});"
    ddl += f'CREATE UNIQUE INDEX "in dex" ON {quoted[0]} ("k1", {quoted[1]});'
    with open_shop(tmp_path / "a.db", ddl) as shop:
        shop.app.execute(f"INSERT INTO {quoted[0]} VALUES ('a', 1, 'x'), ('b', 2, 'y')")
        shop.app.execute(f"UPDATE {quoted[0]} SET {quoted[1]} = 'c' WHERE \"group\" = 1")
        shop.app.execute(f"INSERT OR REPLACE INTO {quoted[0]} VALUES ('b', 3, 'y')")
        shop.copy.catch_up()

        assert shop.copy.content(table) == {("c", "1"): ("x",), ("b", "3"): ("y",)}


@pytest.mark.parametrize("declared", ["", "ANY", "STRING"])
def test_keys_without_a_type_keep_their_storage_class(tmp_path: Path, declared: str) -> None:
    with open_shop(
        tmp_path / "a.db", f"CREATE TABLE t (id {declared} PRIMARY KEY, v TEXT) WITHOUT ROWID;", install=False
    ) as shop:
        shop.run("INSERT INTO t VALUES ('a', 'x'), ('b', 'y')")
        shop.source.installer.install(["*"], [])
        shop.copy.catch_up()
        shop.run("UPDATE t SET id = 'c' WHERE id = 'a'; DELETE FROM t WHERE id = 'b'")
        shop.copy.catch_up()

        assert shop.copy.content("t") == {("c",): ("x",)}


def test_the_integer_1_and_the_real_1_0_are_two_keys_without_a_type(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", "CREATE TABLE t (id PRIMARY KEY NOT NULL, v TEXT);", install=False) as shop:
        shop.run("INSERT INTO t VALUES (1, 'x'), (2.5, 'z')")
        shop.source.installer.install(["*"], [])
        shop.copy.catch_up()
        log = shop.rows("SELECT op, k1, typeof(k1) FROM venus_l_00002")
        shop.run("INSERT OR REPLACE INTO t VALUES (1.0, 'y')")

        assert shop.rows("SELECT op, k1, typeof(k1) FROM venus_l_00002") - log == {
            ("D", 1, "integer"),
            ("I", 1.0, "real"),
        }
        shop.run("UPDATE t SET id = 1 WHERE id = 1")
        assert shop.rows("SELECT op, k1, typeof(k1) FROM venus_l_00002 WHERE seq > 2") == {
            ("D", 1.0, "real"),
            ("U", 1, "integer"),
        }


def test_strict_tables(tmp_path: Path) -> None:
    ddl = "CREATE TABLE t (id INT PRIMARY KEY, r REAL, b BLOB, t TEXT UNIQUE) STRICT;"
    with open_shop(tmp_path / "a.db", ddl) as shop:
        shop.run("INSERT INTO t VALUES (1, 1, x'00ff', 'a'); INSERT OR REPLACE INTO t VALUES (2, 2.5, x'', 'a')")
        shop.copy.catch_up()

        assert shop.copy.content("t") == {("2",): ("2.5", b"", "a")}


def test_a_key_that_is_a_unique_index_over_required_columns(tmp_path: Path) -> None:
    ddl = "CREATE TABLE t (a TEXT NOT NULL, b INT NOT NULL, c TEXT); CREATE UNIQUE INDEX u ON t (b, a COLLATE NOCASE);"
    with open_shop(tmp_path / "a.db", ddl, install=False) as shop:
        shop.run("INSERT INTO t VALUES ('x', 1, 'p'), ('y', 1, 'q'), ('z', 2, 'r')")
        shop.source.installer.install(["*"], [])
        shop.copy.chunk_rows = 1
        shop.run("UPDATE t SET a = 'X' WHERE a = 'x'; INSERT OR REPLACE INTO t VALUES ('Y', 1, 's')")
        shop.copy.catch_up()

        assert shop.copy.content("t") == {("1", "X"): ("p",), ("1", "Y"): ("s",), ("2", "z"): ("r",)}


def test_capture_works_with_the_rollback_journal(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON, wal=False) as shop:
        shop.run("INSERT INTO person VALUES (1, 'a', 'Ada')")
        shop.source.capture.write_heartbeat()
        shop.copy.catch_up()

        assert shop.copy.content("person") == {("1",): ("a", "Ada")}
        assert any("journal_mode" in f.message and not f.blocks for f in shop.source.installer.check(["*"], []))


def test_a_wide_row_gets_its_own_section_and_memory_stays_limited(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB);") as shop:
        shop.copy.catch_up()
        sizes = [10, 3_000_000, 10, 400_000, 400_000, 400_000, 10]
        shop.app.executemany("INSERT INTO t VALUES (?, zeroblob(?))", enumerate(sizes, 1))
        shop.copy.bytes_max = 1 << 20
        shop.copy.catch_up()

        weights = [s.nbytes for s in shop.copy.sections if s.table_id == shop.copy.id_of("t")]
        assert sum(w > 1 << 20 for w in weights) == 1
        assert {k: len(v[0] or b"") for k, v in shop.copy.content("t").items()} == {
            (str(n),): size for n, size in enumerate(sizes, 1)
        }


def test_last_insert_rowid_and_changes_are_those_of_the_application(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", PERSON) as shop:
        cursor = shop.app.execute("INSERT INTO person (id, email) VALUES (77, 'a')")
        assert (cursor.lastrowid, cursor.rowcount) == (77, 1)
        assert shop.app.execute("UPDATE person SET name = 'x'").rowcount == 1
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            shop.run("INSERT INTO person (id, email) VALUES (78, 'a')")


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE t (x INTEGER PRIMARY KEY, y);",
        "CREATE TABLE t (x TEXT COLLATE NOCASE PRIMARY KEY NOT NULL);",
        "CREATE TABLE t (x INT, y TEXT COLLATE NOCASE, PRIMARY KEY (x, y)) WITHOUT ROWID;",
        "CREATE TABLE t (x INT NOT NULL, y TEXT NOT NULL, z TEXT, PRIMARY KEY (y, x));",
    ],
)
def test_every_statement_finds_its_rows_through_the_key(tmp_path: Path, ddl: str) -> None:
    with open_shop(tmp_path / "a.db", ddl.replace(", y);", ", y INT);")) as shop:
        shop.copy.catch_up()
        access = shop.source.capture._accesses[shop.copy.id_of("t")]
        for sql in (access.changes_sql, access.fill_next_sql):
            plan = [row[3] for row in shop.app.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * sql.count("?"))]
            assert any(step.startswith("SEARCH t") for step in plan), plan
        for sql in (access.fill_sql, access.fill_next_sql):
            plan = [row[3] for row in shop.app.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * sql.count("?"))]
            assert not any("TEMP B-TREE" in step for step in plan), plan


def test_a_fill_skips_no_row_if_the_key_has_another_order_than_its_columns(tmp_path: Path) -> None:
    ddl = """
        CREATE TABLE t (a TEXT COLLATE NOCASE NOT NULL, b TEXT NOT NULL);
        CREATE UNIQUE INDEX k ON t (b COLLATE NOCASE, a COLLATE BINARY);
        INSERT INTO t VALUES ('a', 'x'), ('A', 'x'), ('b', 'x'), ('B', 'X'), ('B', 'y'), ('b', 'Y');
    """
    with open_shop(tmp_path / "a.db", ddl) as shop:
        shop.copy.chunk_rows = 1
        shop.copy.catch_up()

        assert set(shop.copy.content("t")) == {(b, a) for a, b in shop.rows("SELECT a, b FROM t")}
