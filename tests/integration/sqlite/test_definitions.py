"""ALTER TABLE changes values without a trigger, and sometimes without changing the text of the definition."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.databases.sqlite import Shop, open_shop
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.sqlite.capture import capture
from venus.adapters.dialects.sqlite.connection import write_transaction
from venus.adapters.dialects.sqlite.source import SqliteSource

pytestmark = pytest.mark.integration

ITEM = """
    CREATE TABLE item (id INTEGER PRIMARY KEY, twice INT AS (a * 2), a INT, b INT, c INT);
    CREATE TABLE other (id INTEGER PRIMARY KEY, item INT REFERENCES item, n INT);
    INSERT INTO item (id, a, b, c) VALUES (1, 5, 50, 500), (2, 7, 70, 700);
    INSERT INTO other VALUES (1, 1, 1);
"""
#: Drops a column and adds it again: the text is the same before and after.
ANEW = "ALTER TABLE item DROP COLUMN c; ALTER TABLE item ADD COLUMN c INT"
REFILLED = [
    ANEW,
    f"BEGIN; {ANEW}; COMMIT",
    f"{ANEW} DEFAULT 9",
    # two columns exchange their names
    "ALTER TABLE item RENAME b TO x; ALTER TABLE item RENAME c TO b; ALTER TABLE item RENAME x TO c",
    "ALTER TABLE item DROP COLUMN twice; ALTER TABLE item ADD COLUMN twice INT AS (a * 3)",
    # a column takes the place and the name of a dropped one: the text ends as if the last one had been dropped
    "ALTER TABLE item DROP COLUMN b; ALTER TABLE item RENAME c TO b",
    "ALTER TABLE item DROP COLUMN b; ALTER TABLE item RENAME c TO b; ALTER TABLE item ADD COLUMN c INT",
    # hidden behind statements that change the dictionary's version once each
    f"{ANEW}; CREATE INDEX by_b ON item (b); CREATE TABLE new (id INTEGER PRIMARY KEY)",
    f"DROP TABLE loose; {ANEW}",
    # renames many internal tables, which explains more dictionary changes than one statement makes
    f"ALTER TABLE words RENAME TO texts; {ANEW}",
    f"ALTER TABLE words RENAME TO texts; VACUUM; VACUUM; VACUUM; {ANEW}",
    f"VACUUM; {ANEW}",
]
LEFT_ALONE = [
    "CREATE INDEX by_b ON item (b); CREATE VIEW v AS SELECT * FROM item",
    "CREATE TABLE x (id INTEGER PRIMARY KEY AUTOINCREMENT, a INT UNIQUE); CREATE INDEX by_a ON x (a); ANALYZE",
    "CREATE TRIGGER theirs AFTER INSERT ON item BEGIN SELECT 1; END",
    "VACUUM",
    "ANALYZE",
    "REINDEX",
    "DROP TABLE loose; DROP TABLE loose_too",
    "ALTER TABLE loose ADD COLUMN a INT; ALTER TABLE loose_too ADD COLUMN a INT",
    "ALTER TABLE item DROP COLUMN c",
    "ALTER TABLE item DROP COLUMN c; ALTER TABLE item DROP COLUMN b",
    "BEGIN; CREATE INDEX by_b ON item (b); ALTER TABLE item DROP COLUMN c; ROLLBACK",
]
LOOSE = """
    CREATE TABLE loose (id INTEGER PRIMARY KEY);
    CREATE TABLE loose_too (id INTEGER PRIMARY KEY);
    CREATE VIRTUAL TABLE words USING fts5(t);
"""


def run(shop: Shop, script: str) -> None:
    """Execute a script as `Shop.run` does, including bodies of triggers."""
    for statement in [script] if "TRIGGER" in script else script.split("; "):
        shop.app.execute(statement)


def follow(shop: Shop) -> None:
    """Install, capture all rows, and compare; the loose tables are not captured."""
    shop.source.installer.install(["item", "other"], [])
    shop.copy.catch_up()
    shop.source.capture.refresh_schemas()


def tables_to_read(shop: Shop) -> list[str]:
    """Return the tables that are not completely filled."""
    return [t.schema.name for t in shop.source.registry.read_registered_tables() if not t.fill.done]


def is_same(shop: Shop) -> bool:
    """Return whether the copy has the rows that the application sees."""
    shop.source.capture.refresh_schemas()
    shop.copy.catch_up()
    table_id = shop.copy.id_of("item")
    states = {t.schema.table_id: t.state for t in shop.source.registry.read_registered_tables()}
    cursor = shop.app.execute("SELECT * FROM item ORDER BY id")
    names = [d[0] for d in cursor.description]
    # the copy keeps dropped columns
    copied = [[row[n] for n in names] for row in shop.copy.follower.rows("item").values()]
    there = [[None if value is None else str(value) for value in row] for row in cursor]
    return states[table_id] == "ACTIVE" and copied == there


@pytest.mark.parametrize("script", REFILLED)
def test_values_that_alter_table_has_changed_are_read_again(tmp_path: Path, script: str) -> None:
    with open_shop(tmp_path / "a.db", ITEM + LOOSE, install=False) as shop:
        follow(shop)
        run(shop, script)
        assert is_same(shop)


@pytest.mark.parametrize("script", LEFT_ALONE)
def test_ddl_that_changes_no_value_causes_no_new_fill(tmp_path: Path, script: str) -> None:
    with open_shop(tmp_path / "a.db", ITEM + LOOSE, install=False) as shop:
        follow(shop)
        run(shop, script)
        shop.source.capture.refresh_schemas()
        assert tables_to_read(shop) == []
        assert is_same(shop)


@pytest.mark.parametrize(
    ("before", "now", "beyond"),
    [
        ("MEDIUMINT", "BIGINT", 3_000_000_000),
        ("VARCHAR(2)", "VARCHAR(20)", "much longer"),
        ("DECIMAL(4)", "DECIMAL(20)", 12_345_678_901_234),
    ],
)
@pytest.mark.parametrize("style", ["by hand", "table built aside"])
def test_a_key_that_becomes_wider_is_followed(
    style: str, before: str, now: str, beyond: object, tmp_path: Path
) -> None:
    made = f"CREATE TABLE item (id {before} NOT NULL PRIMARY KEY, a INT, b INT); INSERT INTO item VALUES (1, 5, 50);"
    with open_shop(tmp_path / "a.db", made + LOOSE, install=False) as shop:
        follow(shop)
        if style == "by hand":
            (version,) = shop.app.execute("PRAGMA schema_version").fetchone()
            shop.app.execute("PRAGMA writable_schema = ON")
            shop.app.execute(f"UPDATE sqlite_master SET sql = replace(sql, '{before}', '{now}') WHERE name = 'item'")
            shop.app.execute(f"PRAGMA schema_version = {version + 1}")
            shop.app.execute("PRAGMA writable_schema = OFF")
        else:
            aside = f"CREATE TABLE aside (id {now} NOT NULL PRIMARY KEY, a INT, b INT)"
            run(
                shop,
                f"BEGIN; {aside}; INSERT INTO aside SELECT * FROM item; DROP TABLE item; "
                "ALTER TABLE aside RENAME TO item; COMMIT",
            )
            shop.source.installer.install(["item"], [])
            shop.source.capture.restart_fill(shop.copy.id_of("item"))
        shop.app.execute("INSERT INTO item VALUES (?, 6, 60)", (beyond,))
        assert is_same(shop)
        shop.app.execute("UPDATE item SET a = 7 WHERE id = ?", (beyond,))
        shop.app.execute("DELETE FROM item WHERE id = 1")
        assert is_same(shop)


def test_a_text_that_was_edited_by_hand_is_read_again(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        (version,) = shop.app.execute("PRAGMA schema_version").fetchone()
        shop.app.execute("PRAGMA writable_schema = ON")
        shop.app.execute("UPDATE sqlite_master SET sql = replace(sql, 'a * 2', 'a * 3') WHERE name = 'item'")
        shop.app.execute(f"PRAGMA schema_version = {version + 1}")
        shop.app.execute("PRAGMA writable_schema = OFF")
        shop.app.execute("SELECT * FROM item").fetchall()
        assert is_same(shop)
        assert shop.app.execute("SELECT twice FROM item WHERE id = 1").fetchone() == (15,)


def test_the_stored_dictionary_version_is_not_taken_as_a_change_of_a_table(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        before = shop.source.registry.read_registry_fingerprint()
        run(shop, "VACUUM")
        shop.source.capture.refresh_schemas()
        assert shop.source.registry.read_registry_fingerprint() == before


def test_a_registry_without_the_definitions_is_captured_as_before(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        shop.run("DELETE FROM venus_captured_table WHERE name = 'venus_heartbeat'")
        run(shop, "ALTER TABLE item ADD COLUMN d INT DEFAULT 1")
        assert is_same(shop)


def test_only_the_table_that_was_altered_is_read_again(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        run(shop, "ALTER TABLE item ADD COLUMN d INT DEFAULT 1; CREATE INDEX by_n ON other (n)")
        shop.source.capture.refresh_schemas()
        assert tables_to_read(shop) == ["item"]


def test_an_installations_own_ddl_is_recognised(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        shop.source.installer.install(["item"], [])
        shop.copy.catch_up()
        shop.source.capture.refresh_schemas()
        shop.source.installer.install(["other"], [])
        shop.source.capture.refresh_schemas()
        assert tables_to_read(shop) == ["other"]


def test_recreated_triggers_cause_no_fill_of_other_tables(tmp_path: Path) -> None:
    ddl = ITEM + "CREATE UNIQUE INDEX last ON other (n);"
    with open_shop(tmp_path / "a.db", ddl, install=False) as shop:
        follow(shop)
        run(shop, "CREATE UNIQUE INDEX first ON other (item)")
        shop.source.capture.refresh_schemas()
        made = [step.what for step in shop.source.installer.install(["*"], []) if not step.exists]
        assert "old trigger venus_iv1_00003" in made, "this has tested nothing"
        shop.source.capture.refresh_schemas()
        assert tables_to_read(shop) == []


def test_an_installation_hides_no_earlier_change(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        run(shop, ANEW)
        shop.source.installer.install(["*"], [])
        assert is_same(shop)


def test_changes_while_capture_was_away_are_noticed(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        run(shop, ANEW)
        later = SqliteSource(shop.file)
        try:
            with pytest.raises(SchemaChanged):
                later.capture.open_cut([])
            later.capture.refresh_schemas()
        finally:
            later.close()
        assert "item" in tables_to_read(shop)


def test_a_change_right_after_a_comparison_does_not_count_as_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)

        @contextmanager
        def alter_meanwhile(connection: sqlite3.Connection, what: object) -> Iterator[None]:
            with write_transaction(connection, what):
                yield
            run(shop, ANEW)

        run(shop, "VACUUM")
        with monkeypatch.context() as patched:
            patched.setattr(capture, "write_transaction", alter_meanwhile)
            shop.source.capture.refresh_schemas()
        with pytest.raises(SchemaChanged):
            shop.source.capture.open_cut([])
        assert is_same(shop)


def test_a_paused_table_is_read_again_when_it_continues(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        shop.source.registry.set_table_state(shop.copy.id_of("item"), "PAUSED", "")
        run(shop, ANEW)
        shop.source.capture.refresh_schemas()
        shop.source.registry.set_table_state(shop.copy.id_of("item"), "ACTIVE", "")
        assert is_same(shop)


def test_an_installation_of_an_older_version_records_the_current_state(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        shop.run(
            "UPDATE venus_captured_table SET fingerprint = substr(fingerprint, 1, instr(fingerprint, ' ') - 1)"
            " WHERE fingerprint LIKE '% %'"
        )
        shop.source.capture.refresh_schemas()
        run(shop, "VACUUM")
        shop.source.capture.refresh_schemas()
        assert tables_to_read(shop) == []
        run(shop, ANEW)
        assert is_same(shop)


def test_a_file_that_was_restored_is_read_again(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", ITEM, install=False) as shop:
        follow(shop)
        shop.run("PRAGMA schema_version = 3")
        shop.source.capture.refresh_schemas()
        assert sorted(tables_to_read(shop)) == ["item", "other", "venus_heartbeat"]
