"""SQLite stores any value in any column: a value that cannot be carried halts its table by name; nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases.sqlite import Shop, open_shop
from venus.adapters.dialects.contract import FillState

pytestmark = pytest.mark.integration

DDL = "CREATE TABLE t (id INTEGER PRIMARY KEY, d DATE, n INT); CREATE TABLE other (id INTEGER PRIMARY KEY);"


def state(shop: Shop, name: str = "t") -> tuple[str, str]:
    return next((t.state, t.reason) for t in shop.source.registry.read_registered_tables() if t.schema.name == name)


def fill(shop: Shop) -> FillState:
    return next(t.fill for t in shop.source.registry.read_registered_tables() if t.schema.name == "t")


@pytest.mark.parametrize(
    ("value", "column"),
    [("'soon'", "d"), ("20260101", "d"), ("x'ff'", "d"), ("CAST(x'ff' AS TEXT)", "n"), ("1.5", "n")],
)
def test_the_table_halts_with_its_row_named_and_the_others_continue(tmp_path: Path, value: str, column: str) -> None:
    with open_shop(tmp_path / "a.db", DDL) as shop:
        shop.copy.catch_up()
        shop.run(f"INSERT INTO t (id, {column}) VALUES (7, {value}); INSERT INTO other VALUES (1)")
        shop.run("INSERT INTO t VALUES (8, '2026-11-20', 8)")
        shop.copy.catch_up()

        assert state(shop)[0] == "PAUSED"
        assert "id=7" in state(shop)[1]
        assert f"column {column}" in state(shop)[1]
        assert shop.copy.content("other") == {("1",): ()}
        assert shop.source.capture.read_backlog()[shop.copy.id_of("t")][0] == 2, "its log rows wait"

        assert shop.source.capture.refresh_schemas() == []
        assert state(shop)[0] == "PAUSED", "nothing was corrected"
        shop.run(f"UPDATE t SET {column} = NULL WHERE id = 7")
        shop.source.capture.refresh_schemas()
        shop.copy.catch_up()
        assert state(shop)[0] == "ACTIVE"
        assert set(shop.copy.content("t")) == {("7",), ("8",)}


def test_a_fill_halts_too_and_continues_at_its_position(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL, install=False) as shop:
        shop.app.executemany("INSERT INTO t (id, n) VALUES (?, 1)", ((n,) for n in range(30)))
        shop.source.installer.install(["*"], [])
        shop.copy.chunk_rows = 10
        while not fill(shop).rows_done:
            shop.copy.follow()
        shop.run("UPDATE t SET n = 'x' WHERE id = 25")
        shop.copy.catch_up()
        assert state(shop)[0] == "PAUSED"
        assert 0 < fill(shop).rows_done < 30

        shop.run("UPDATE t SET n = 2 WHERE id = 25")
        shop.source.capture.refresh_schemas()
        shop.copy.catch_up()
        assert len(shop.copy.content("t")) == 30
        assert shop.copy.content("t")[("25",)] == (None, "2")


def test_a_null_in_a_key_halts_the_table(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", "CREATE TABLE t (id TEXT PRIMARY KEY, v TEXT);") as shop:
        shop.run("INSERT INTO t VALUES ('a', 'x'), (NULL, 'y')")
        shop.copy.catch_up()
        assert state(shop)[0] == "PAUSED"
        assert "NULL" in state(shop)[1]

        shop.run("UPDATE t SET id = 'b' WHERE id IS NULL")
        shop.source.capture.refresh_schemas()
        shop.copy.catch_up()
        assert state(shop)[0] == "ACTIVE"
        assert shop.copy.content("t") == {("a",): ("x",), ("b",): ("y",)}


def test_a_row_that_fits_into_no_message_halts_its_table(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", DDL + "CREATE TABLE doc (id INTEGER PRIMARY KEY, body BLOB);") as shop:
        shop.copy.catch_up()
        shop.run("INSERT INTO doc VALUES (7, zeroblob(16000000)), (8, x'00'); INSERT INTO other VALUES (1)")
        shop.copy.catch_up()
        assert state(shop, "doc") == ("PAUSED", "cannot be carried: row id=7: 15.3 MiB, a row can have 15 MiB")
        assert shop.copy.content("other") == {("1",): ()}
        shop.run("UPDATE doc SET body = zeroblob(15000000) WHERE id = 7")
        shop.source.capture.refresh_schemas()
        shop.copy.catch_up()
        assert state(shop, "doc")[0] == "ACTIVE"
        assert len(shop.copy.content("doc")["7",][0] or b"") == 15_000_000
