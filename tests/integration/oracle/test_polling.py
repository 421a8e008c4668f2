"""One statement polls an idle source; logs are read through their index; a fill reads each row once."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.oracle.capture import capture
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

ITEM = 'CREATE TABLE "ITEM" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(40))'
LINE = 'CREATE TABLE "LINE" ("A" NUMBER(9) NOT NULL, "B" NUMBER(9) NOT NULL, "C" NUMBER(9), PRIMARY KEY ("A", "B"))'


@pytest.fixture
def idle_follower(application: Any, source: OracleSource) -> Follower:
    """Capture two tables that do not change."""
    application.execute(ITEM)
    application.execute(LINE)
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    assert follower.cut() is None
    return follower


def poll_statements(standin: StandIn, source: OracleSource) -> list[str]:
    """Return all statements of a poll, including its end."""
    standin.said.clear()
    assert source.capture.open_cut([]) is None
    return standin.said


def test_an_idle_poll_is_one_statement_and_ends_no_transaction(
    idle_follower: Follower, source: OracleSource, standin: StandIn
) -> None:
    for _ in range(3):
        (probe,) = poll_statements(standin, source)
        assert "ALL_" not in probe
        assert "VENUS_L_00003" in probe
    assert len(poll_statements(standin, source)) == 1


def test_every_kind_of_change_ends_the_idle_polls(
    idle_follower: Follower, application: Any, source: OracleSource
) -> None:
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'one')")
    assert idle_follower.cut() is not None
    assert idle_follower.cut() is None
    application.execute("INSERT INTO VENUS_DDL VALUES (VENUS_SEQ.NEXTVAL, 'TRUNCATE', 'APP', 'ITEM', NULL)")
    assert idle_follower.cut() is not None
    assert idle_follower.rows("ITEM") == {}
    source.capture.restart_fill(idle_follower.table_id("ITEM"))
    assert idle_follower.cut() is not None


def test_pending_changes_of_a_paused_table_add_no_statement_to_a_poll(
    idle_follower: Follower, application: Any, source: OracleSource, standin: StandIn
) -> None:
    source.registry.set_table_state(idle_follower.table_id("ITEM"), "PAUSED", "by hand")
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'one')")
    application.execute("INSERT INTO VENUS_DDL VALUES (VENUS_SEQ.NEXTVAL, 'TRUNCATE', 'APP', 'ITEM', NULL)")
    assert source.capture.open_cut([]) is None
    assert len(poll_statements(standin, source)) == 1
    application.execute('INSERT INTO "LINE" VALUES (1, 1, 1)')
    assert idle_follower.cut() is not None
    assert source.capture.open_cut([]) is None
    assert len(poll_statements(standin, source)) == 1
    with closing(OracleSource(standin)) as another:
        another.registry.set_table_state(idle_follower.table_id("ITEM"), "ACTIVE", "")
    assert idle_follower.cut() is not None


def test_every_poll_and_cut_reads_a_log_through_its_index(
    idle_follower: Follower, application: Any, standin: StandIn
) -> None:
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'one')")
    standin.said.clear()
    idle_follower.drain()
    reads = [part for text in standin.said for part in re.split(r"UNION ALL|\bOR\b", text) if "FROM VENUS_L_" in part]
    reads = [part for part in reads if not part.startswith("DELETE")]
    assert len(reads) > 5
    for part in reads:
        assert re.search(r"/\*\+ INDEX\(L (VENUS_L_\d+)_PK\) \*/.* FROM \1 L\b", part, re.DOTALL), part


def test_the_index_of_an_emptied_log_is_coalesced_when_no_session_waits(
    idle_follower: Follower, application: Any, source: OracleSource, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "COALESCE_ROWS", 10)
    log = f"VENUS_L_{idle_follower.table_id('ITEM'):05}"
    application.executemany('INSERT INTO "ITEM" VALUES (%s, NULL)', [(n,) for n in range(12)])
    assert idle_follower.cut() is not None
    assert standin.said.count(f"ALTER INDEX {log}_PK COALESCE") == 0
    for _ in range(3):
        assert source.capture.open_cut([]) is None
    assert standin.said.count(f"ALTER INDEX {log}_PK COALESCE") == 1


def test_the_statistics_of_a_log_are_fixed(idle_follower: Follower, application: Any, source: OracleSource) -> None:
    application.execute("SELECT TABLE_NAME FROM DICTIONARY.USER_TAB_STATISTICS")
    assert {row[0] for row in application.fetchall()} == {"VENUS_L_00001", "VENUS_L_00002", "VENUS_L_00003"}
    application.execute("DELETE FROM DICTIONARY.FIXED_STATISTICS WHERE NAME = 'VENUS_L_00002'")
    made = [step.what for step in source.installer.install(["*"], []) if not step.exists]
    assert made == ["statistics of VENUS_L_00002"]


def handler_reads(source: OracleSource) -> int:
    """Return the number of rows and index entries that the reader's session has read so far."""
    cursor = source.database.reader.open().raw.cursor()
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(
        int(value) for name, value in cursor.fetchall() if name.endswith(("_next", "_key", "_prev", "_rnd_next"))
    )


@pytest.mark.parametrize("groups", [1, 40, 4000])
def test_a_fill_by_a_composite_key_reads_each_row_once(groups: int, application: Any, source: OracleSource) -> None:
    application.execute(LINE)
    rows = [(n % groups, n // groups, n) for n in range(4000)]
    application.executemany('INSERT INTO "LINE" VALUES (%s, %s, %s)', rows)
    source.installer.install(["*"], [])
    follower = Follower(source)
    before = handler_reads(source)
    follower.drain(fill_rows=100)
    read = handler_reads(source) - before
    assert len(follower.rows("LINE")) == 4000
    assert {row["C"] for row in follower.rows("LINE").values()} == {str(n) for n in range(4000)}
    assert read < 4000 * 2.5, read


def test_a_table_with_a_long_is_filled_without_a_subquery(
    application: Any, source: OracleSource, standin: StandIn
) -> None:
    application.execute('CREATE TABLE "OLD" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "TEXT" LONG)')
    application.executemany('INSERT INTO "OLD" VALUES (%s, %s)', [(n, f"text {n}") for n in range(25)])
    source.installer.install(["*"], [])
    standin.said.clear()
    follower = Follower(source)
    follower.drain(fill_rows=10)
    assert len(follower.rows("OLD")) == 25
    fills = [text for text in standin.said if 'T."TEXT"' in text]
    assert len(fills) > 3
    assert not any("SELECT * FROM (" in text for text in fills)
    application.execute('UPDATE "OLD" SET "TEXT" = \'new\' WHERE "ID" = 7')
    follower.drain()
    assert follower.rows("OLD")["7",]["TEXT"] == "new"
