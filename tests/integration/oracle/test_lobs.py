"""Rows with large objects on the stand-in: read by locators from a double of the driver, halted if too large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.oracle import double
from tests.support.oracle.standin import Cursor, StandInError
from venus.adapters.dialects.contract import SnapshotLost
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.dialects.rows import ROW_BYTES_MAX
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

TABLES = (
    'CREATE TABLE "DOC" ("ID" NUMBER(9) PRIMARY KEY, "NOTE" CLOB, "SCAN" BLOB)',
    'CREATE TABLE "OTHER" ("ID" NUMBER(9) PRIMARY KEY)',
)


@pytest.fixture
def shop(application: Any, source: OracleSource) -> Follower:
    for statement in TABLES:
        application.execute(statement)
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def table_state(source: OracleSource) -> tuple[str, str]:
    return next((t.state, t.reason) for t in source.registry.read_registered_tables() if t.schema.name == "DOC")


def test_large_values_are_read_by_their_locators(shop: Follower, application: Any) -> None:
    note, scan = "größe 🙂" * 200_000, bytes(range(256)) * 20_000
    application.execute('INSERT INTO "DOC" VALUES (1, %s, %s), (2, NULL, %s)', (note, scan, b"\x00"))
    shop.drain()
    assert shop.rows("DOC") == {
        ("1",): {"ID": "1", "NOTE": note, "SCAN": scan},
        ("2",): {"ID": "2", "NOTE": None, "SCAN": b"\x00"},
    }


def test_a_row_that_is_too_large_halts_its_table_until_it_is_corrected(
    shop: Follower, source: OracleSource, application: Any
) -> None:
    application.execute('INSERT INTO "DOC" VALUES (7, NULL, REPEAT(%s, %s))', ("x", ROW_BYTES_MAX + 1))
    application.execute('INSERT INTO "DOC" VALUES (8, %s, NULL)', ("small",))
    application.execute('INSERT INTO "OTHER" VALUES (1)')
    shop.drain()
    assert table_state(source) == ("PAUSED", "cannot be carried: row ID=7: 15.0 MiB, a row can have 15 MiB")
    assert list(shop.rows("OTHER")) == [("1",)]
    assert source.capture.read_backlog()[shop.table_id("DOC")][0] == 2, "its log rows wait"

    source.capture.refresh_schemas()
    assert table_state(source)[0] == "PAUSED", "nothing was corrected"
    application.execute('UPDATE "DOC" SET "SCAN" = %s WHERE "ID" = 7', (b"less",))
    source.capture.refresh_schemas()
    shop.drain()
    assert table_state(source) == ("ACTIVE", "")
    assert {key: row["SCAN"] for key, row in shop.rows("DOC").items()} == {("7",): b"less", ("8",): None}
    assert source.capture.read_backlog()[shop.table_id("DOC")][0] == 0


def test_a_fill_halts_too_and_continues_at_its_position(shop: Follower, source: OracleSource, application: Any) -> None:
    application.executemany('INSERT INTO "DOC" VALUES (%s, NULL, %s)', [(n, b"x") for n in range(20)])
    shop.drain()
    source.capture.restart_fill(shop.table_id("DOC"))
    assert shop.cut(fill_rows=10) is not None
    application.execute('UPDATE "DOC" SET "SCAN" = REPEAT(%s, %s) WHERE "ID" = 15', ("x", ROW_BYTES_MAX + 1))
    shop.drain(fill_rows=10)
    assert table_state(source)[0] == "PAUSED"
    application.execute('UPDATE "DOC" SET "SCAN" = %s WHERE "ID" = 15', (b"y",))
    source.capture.refresh_schemas()
    shop.drain(fill_rows=10)
    assert [row["SCAN"] for row in shop.rows("DOC").values()].count(b"x") == 19
    assert all(t.fill.done for t in source.registry.read_registered_tables())


def fetch_undecodable(self: Cursor, rows: Sequence[Any]) -> list[Any]:
    """Fetch as python-oracledb does (its issues 209 and 501): a row with invalid bytes raises an error."""
    for row in rows:
        if b"\xed\xa0" in row:
            b"\xed\xa0".decode()
    return list(rows)


def test_invalid_bytes_halt_their_table_and_no_other(
    shop: Follower, source: OracleSource, application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Cursor, "add_locators", fetch_undecodable)
        application.execute('INSERT INTO "DOC" VALUES (1, NULL, %s)', (b"\xed\xa0",))
        application.execute('INSERT INTO "OTHER" VALUES (1)')
        shop.drain()
        assert table_state(source)[0] == "PAUSED"
        assert "a text has bytes that are no character" in table_state(source)[1]
        assert list(shop.rows("OTHER")) == [("1",)]
    application.execute('UPDATE "DOC" SET "SCAN" = %s WHERE "ID" = 1', (b"mended",))
    source.capture.refresh_schemas()
    shop.drain()
    assert table_state(source) == ("ACTIVE", "")
    assert shop.rows("DOC")["1",]["SCAN"] == b"mended"


def test_a_large_text_with_invalid_bytes_names_its_row(
    shop: Follower, source: OracleSource, application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_invalid_text(self: Any, offset: int = 1, amount: int | None = None) -> str:
        return b"\xed\xa0".decode()

    application.execute('INSERT INTO "DOC" VALUES (1, REPEAT(%s, %s), NULL)', ("x", 300_000))
    application.execute('INSERT INTO "OTHER" VALUES (1)')
    monkeypatch.setattr(double.Lob, "read", read_invalid_text)
    shop.drain()
    name = "a CLOB has text that is not valid Unicode"
    assert table_state(source)[0] == "PAUSED"
    assert "row ID=1: column " in table_state(source)[1]
    assert table_state(source)[1].endswith(name)
    assert list(shop.rows("OTHER")) == [("1",)]


def test_a_lob_whose_row_was_deleted_repeats_the_cut_and_nothing_is_lost(
    shop: Follower, source: OracleSource, application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.execute('INSERT INTO "DOC" VALUES (1, NULL, REPEAT(%s, %s))', ("x", 3_000_000))

    def read_missing(self: Any, offset: int = 1, amount: int | None = None) -> bytes:
        raise StandInError("ORA-22922: nonexistent LOB value")

    with monkeypatch.context() as patched:
        patched.setattr(double.Lob, "read", read_missing)
        cut = source.capture.open_cut([])
        assert cut is not None
        with pytest.raises(SnapshotLost, match="ORA-22922"):
            list(cut.read_sections(rows_max=10, bytes_max=1 << 20))
        cut.rollback()
    shop.drain()
    assert shop.rows("DOC")["1",]["SCAN"] == b"x" * 3_000_000
