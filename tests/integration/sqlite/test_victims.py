"""Rows that SQLite deletes because they conflict with others or refer to them: each deletion is captured or noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases.sqlite import open_shop


@pytest.mark.parametrize("recursive", [0, 1])
@pytest.mark.parametrize(
    ("ddl", "before", "statement"),
    [
        ("id INTEGER PRIMARY KEY, u TEXT UNIQUE", "(1,'a'),(2,'b')", "INSERT OR REPLACE INTO t VALUES (3,'a')"),
        ("id INTEGER PRIMARY KEY, u TEXT UNIQUE", "(1,'a'),(2,'b')", "INSERT OR REPLACE INTO t VALUES (1,'b')"),
        ("id INTEGER PRIMARY KEY, u TEXT UNIQUE", "(1,'a'),(2,'b')", "UPDATE OR REPLACE t SET u='b' WHERE id=1"),
        ("id INTEGER PRIMARY KEY, u TEXT UNIQUE", "(1,'a'),(2,'b')", "UPDATE OR REPLACE t SET id=2 WHERE id=1"),
        ("id INTEGER PRIMARY KEY, u TEXT UNIQUE", "(1,'a'),(2,'b')", "REPLACE INTO t VALUES (NULL,'a')"),
        (
            "id INTEGER PRIMARY KEY, u TEXT UNIQUE ON CONFLICT REPLACE",
            "(1,'a'),(2,'b')",
            "INSERT INTO t VALUES (7,'a')",
        ),
        (
            "id INTEGER PRIMARY KEY, u TEXT UNIQUE",
            "(1,'a'),(2,'b')",
            "INSERT INTO t VALUES (5,'b') ON CONFLICT (u) DO UPDATE SET id = 9, u = excluded.u",
        ),
        ("id INTEGER PRIMARY KEY, u TEXT UNIQUE", "(1,'a'),(2,'b')", "INSERT OR IGNORE INTO t VALUES (5,'b')"),
        (
            "id TEXT COLLATE NOCASE PRIMARY KEY, u TEXT",
            "('a','1'),('b','2')",
            "INSERT OR REPLACE INTO t VALUES ('A','3')",
        ),
        ("id TEXT COLLATE NOCASE PRIMARY KEY, u TEXT", "('a','1'),('b','2')", "UPDATE t SET id = 'A' WHERE id = 'a'"),
        (
            "id TEXT COLLATE NOCASE PRIMARY KEY, u TEXT",
            "('a','1'),('b','2')",
            "UPDATE OR REPLACE t SET id = 'B' WHERE id = 'a'",
        ),
        (
            "id TEXT NOT NULL PRIMARY KEY, u TEXT COLLATE NOCASE UNIQUE",
            "('a','x'),('b','y')",
            "INSERT OR REPLACE INTO t VALUES ('c','X')",
        ),
        (
            "id TEXT NOT NULL PRIMARY KEY, u TEXT",
            "('a','x'),('b','y')",
            "INSERT OR REPLACE INTO t (rowid, id, u) VALUES (2, 'c', 'z')",
        ),
        (
            "id TEXT NOT NULL PRIMARY KEY, u TEXT",
            "('a','x'),('b','y')",
            "UPDATE OR REPLACE t SET rowid = 2 WHERE id = 'a'",
        ),
        (
            "id TEXT NOT NULL PRIMARY KEY, u TEXT); CREATE UNIQUE INDEX n ON t (id COLLATE NOCASE); --",
            "('a','x'),('b','y')",
            "INSERT OR REPLACE INTO t VALUES ('A','z')",
        ),
        (
            "id TEXT PRIMARY KEY, u TEXT UNIQUE) WITHOUT ROWID --",
            "('a','x'),('b','y')",
            "INSERT OR REPLACE INTO t VALUES ('c','x')",
        ),
        (
            "id TEXT COLLATE NOCASE PRIMARY KEY, u TEXT) WITHOUT ROWID --",
            "('a','x'),('b','y')",
            "INSERT OR REPLACE INTO t VALUES ('A','x')",
        ),
        (
            "a INT, b TEXT, u TEXT UNIQUE, PRIMARY KEY (a, b)",
            "(1,'x','p'),(1,'y','q')",
            "REPLACE INTO t VALUES (2,'x','q')",
        ),
        ("a INT, u TEXT GENERATED ALWAYS AS (a % 3) STORED UNIQUE, id INTEGER PRIMARY KEY", "", "SELECT 1"),
    ],
)
def test_rows_that_a_conflict_deletes_are_noticed(
    tmp_path: Path, recursive: int, ddl: str, before: str, statement: str
) -> None:
    with open_shop(
        tmp_path / "a.db", f"CREATE TABLE t ({ddl}\n);" if "--" not in ddl else f"CREATE TABLE t ({ddl}"
    ) as shop:
        shop.app.execute(f"PRAGMA recursive_triggers = {recursive}")
        if before:
            shop.run(f"INSERT INTO t VALUES {before}")
        shop.copy.catch_up()
        shop.run(statement)
        shop.copy.catch_up()

        assert {k + v for k, v in shop.copy.content("t").items()} == {
            tuple(None if v is None else str(v) for v in row) for row in shop.rows("SELECT * FROM t")
        }


@pytest.mark.parametrize("recursive", [0, 1])
@pytest.mark.parametrize(
    "index",
    [
        "ON t (lower(u))",
        "ON t (u COLLATE NOCASE DESC)",
        "ON t (u COLLATE NOCASE) WHERE n > 0",
        "ON t (u || '(' , n % 2) WHERE u <> ','",
        "ON t ((SUBSTR(u, 1, 1)) ASC, /* a remark, with (( */ n)",
        'ON "t" ([u], "n") WHERE "n" IS NOT NULL -- and so on',
    ],
)
def test_deleted_rows_are_found_through_every_kind_of_unique_index(tmp_path: Path, recursive: int, index: str) -> None:
    ddl = f"CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT, n INT); CREATE UNIQUE INDEX odd {index};"
    with open_shop(tmp_path / "a.db", ddl) as shop:
        shop.app.execute(f"PRAGMA recursive_triggers = {recursive}")
        shop.run(
            "INSERT INTO t VALUES (1, 'abc', 1), (2, 'xyz', 1), (3, NULL, 1), (4, 'abc', 0), (5, 'q', NULL)"
            if "WHERE n" in index
            else "INSERT INTO t VALUES (1, 'abc', 1), (2, 'xyz', 1), (3, NULL, 1)"
        )
        shop.copy.catch_up()
        total = shop.app.execute("SELECT count(*) FROM t").fetchone()[0]
        shop.run("INSERT OR REPLACE INTO t VALUES (10, 'abc', 1)")
        shop.run("UPDATE OR REPLACE t SET u = 'abc' WHERE id = 2")
        shop.copy.catch_up()

        assert shop.app.execute("SELECT count(*) FROM t").fetchone()[0] == total - 1
        assert set(shop.copy.content("t")) == {(str(row[0]),) for row in shop.rows("SELECT id FROM t")}


def test_deleted_rows_are_found_through_a_generated_column(tmp_path: Path) -> None:
    ddl = "CREATE TABLE t (id INTEGER PRIMARY KEY, a INT, g INT GENERATED ALWAYS AS (a % 3) VIRTUAL UNIQUE);"
    with open_shop(tmp_path / "a.db", ddl) as shop:
        shop.run("INSERT INTO t (id, a) VALUES (1, 1), (2, 2)")
        shop.copy.catch_up()
        shop.run("INSERT OR REPLACE INTO t (id, a) VALUES (3, 4); UPDATE OR REPLACE t SET a = 7 WHERE id = 2")
        shop.copy.catch_up()

        assert shop.copy.content("t") == {("2",): ("7", "1")}


def test_foreign_key_cascades_are_captured_also_of_a_conflicting_row(tmp_path: Path) -> None:
    ddl = """
        CREATE TABLE parent (id INTEGER PRIMARY KEY, u TEXT UNIQUE);
        CREATE TABLE child (id INTEGER PRIMARY KEY, p INT REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
        CREATE TABLE loose (id INTEGER PRIMARY KEY, p INT REFERENCES parent ON DELETE SET NULL);
    """
    with open_shop(tmp_path / "a.db", ddl) as shop:
        shop.run("INSERT INTO parent VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        shop.run("INSERT INTO child VALUES (1, 1), (2, 2), (3, 3); INSERT INTO loose VALUES (1, 1), (2, 2)")
        shop.copy.catch_up()
        shop.run("DELETE FROM parent WHERE id = 1; INSERT OR REPLACE INTO parent VALUES (9, 'b')")
        shop.run("UPDATE parent SET id = 30 WHERE id = 3")
        shop.copy.catch_up()

        assert shop.copy.content("parent") == {("9",): ("b",), ("30",): ("c",)}
        assert shop.copy.content("child") == {("3",): ("30",)}
        assert shop.copy.content("loose") == {("1",): (None,), ("2",): (None,)}
