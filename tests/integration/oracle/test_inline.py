"""The paper's own variant on the stand-in: columns in the application's tables, one row per table with its Sequence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from tests.support.databases.mariadb import catalogue
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.oracle.workload import KEYS, writers
from venus.adapters.dialects.oracle.capture import capture
from venus.adapters.dialects.oracle.language import inline
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import Refused

pytestmark = pytest.mark.integration

ITEM = 'CREATE TABLE "ITEM" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(40))'


@pytest.fixture
def source(standin: StandIn) -> Iterator[OracleSource]:
    """Open a source that installs inline."""
    source = OracleSource(standin, OracleOptions(inline=True))
    yield source
    source.close()


@pytest.fixture
def item(application: Any, source: OracleSource) -> Follower:
    application.execute(ITEM)
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain(fill_rows=2)
    return follower


def values(follower: Follower) -> dict[str, Any]:
    return {str(row["ID"]): row["V"] for row in follower.rows("ITEM").values()}


def test_existing_rows_are_numbered_and_filled(item: Follower) -> None:
    assert values(item) == {"1": "one", "2": "two", "3": "three"}
    (schema,) = [s for s in item.schemas.values() if s.name == "ITEM"]
    assert schema.key == ("RECORDID",)
    assert [c.name for c in schema.columns] == ["ID", "V", "RECORDID"]


def test_changes_are_polled_by_their_sequence(
    item: Follower, application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.execute("INSERT INTO \"ITEM\" VALUES (4, 'four')")  # needs no column list: the columns are invisible
    application.execute('UPDATE "ITEM" SET "V" = \'TWO\' WHERE "ID" = 2')
    application.execute('UPDATE "ITEM" SET "ID" = 30 WHERE "ID" = 3')  # RECORDID stays, so it is still the same row
    table_id = item.table_id("ITEM")
    assert item.source.capture.read_backlog()[table_id][0] == 3
    with monkeypatch.context() as patch:
        patch.setattr(capture, "LOG_ROWS_COUNTED_MAX", 2)
        assert item.source.capture.read_backlog()[table_id][0] == 2, "a large backlog is not counted to its end"
    with monkeypatch.context() as patch:
        patch.setattr(inline, "count_waiting_sql", pytest.fail)
        source: Any = item.source
        assert source.capture._log_versions([table_id])[table_id] > 3, "its Sequence, without a count of the rows"
    (seen,) = item.drain()
    assert seen.count == 3
    assert values(item) == {"1": "one", "2": "TWO", "30": "three", "4": "four"}
    assert item.source.capture.read_backlog()[table_id][0] == 0
    assert item.cut() is None


def test_large_values_are_read_by_their_locators_in_this_variant_too(source: OracleSource, application: Any) -> None:
    application.execute('CREATE TABLE "DOC" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "B" BLOB, "C" CLOB)')
    application.execute("""INSERT INTO "DOC" VALUES (1, REPEAT('x', 700000), 'a')""")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    application.execute("""INSERT INTO "DOC" VALUES (2, 'b', REPEAT('é', 700000)), (3, REPEAT('x', 16000000), 'c')""")
    follower.drain()
    state = next(t for t in source.registry.read_registered_tables() if t.schema.name == "DOC")
    assert (state.state, state.reason.endswith("15.3 MiB, a row can have 15 MiB")) == ("PAUSED", True)
    application.execute("""UPDATE "DOC" SET "B" = 'less' WHERE "ID" = 3""")
    source.capture.refresh_schemas()
    follower.drain()
    rows = {str(row["ID"]): (row["B"], row["C"]) for row in follower.rows("DOC").values()}
    assert rows == {"1": (b"x" * 700_000, "a"), "2": (b"b", "é" * 700_000), "3": (b"less", "c")}


def test_a_soft_deletion_sets_a_mark_and_a_real_one_is_refused(item: Follower, application: Any) -> None:
    with pytest.raises(pymysql.Error, match="set ISDELETED = 1 instead"):
        application.execute('DELETE FROM "ITEM" WHERE "ID" = 1')
    application.execute('UPDATE "ITEM" SET ISDELETED = 1 WHERE "ID" = 1')
    item.drain()
    assert values(item) == {"2": "two", "3": "three"}
    item.source.capture.restart_fill(item.table_id("ITEM"))
    item.tables[item.table_id("ITEM")].clear()
    item.drain()
    assert values(item) == {"2": "two", "3": "three"}


def test_a_cut_that_is_rolled_back_is_read_again(item: Follower, application: Any) -> None:
    application.execute('UPDATE "ITEM" SET "V" = \'again\'')
    cut = item.open([])
    assert cut is not None
    item.read(cut, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
    cut.rollback()
    (seen,) = item.drain()
    assert seen.count == 3


def test_the_view_of_the_log_has_both_kinds_of_tables(item: Follower, application: Any) -> None:
    application.execute("SELECT TABLENAME, SEQUENCE FROM VENUS_LOG ORDER BY TABLENAME")
    assert [(name, number) for name, number in application.fetchall() if "ITEM" in name] == [("APP.ITEM", 3)]


def test_a_repeated_installation_changes_nothing_and_uninstalling_restores_the_table(
    application: Any, source: OracleSource, standin: StandIn
) -> None:
    application.execute(ITEM)
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'one')")
    before = catalogue(standin.server, SCHEMA)
    plan = source.installer.plan_install(["*"], [])
    assert source.installer.install(["*"], []) == plan
    installed = catalogue(standin.server, SCHEMA)
    assert all(step.exists for step in source.installer.install(["*"], []))
    assert catalogue(standin.server, SCHEMA) == installed
    with closing(OracleSource(standin)) as other:  # a later command needs no option
        other.installer.uninstall()
    assert catalogue(standin.server, SCHEMA) == before


def test_a_column_of_the_same_name_is_not_taken_over(application: Any, source: OracleSource) -> None:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) PRIMARY KEY, "SEQUENCE" NUMBER(9))')
    with pytest.raises(Refused, match="a column SEQUENCE of its own"):
        source.installer.install(["*"], [])


def test_a_table_without_a_key_gets_a_recordid(application: Any, source: OracleSource) -> None:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9), "V" VARCHAR2(40))')
    source.installer.install(["*"], [])
    follower = Follower(source)
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'same'), (1, 'same')")
    follower.drain()
    assert len(follower.rows("ITEM")) == 2


def soft_step(cursor: Any, rng: Any) -> None:
    """Change one row in one of the ways that this variant allows."""
    key, value = rng.randrange(KEYS), str(rng.random())
    match rng.choice(("insert", "update", "update", "mark")):
        case "insert":
            cursor.execute('INSERT INTO "ITEM" ("ID", "V") VALUES (%s, %s)', (key, value))
        case "update":
            cursor.execute('UPDATE "ITEM" SET "V" = %s, ISDELETED = 0 WHERE "ID" = %s', (value, key))
        case "mark":
            cursor.execute('UPDATE "ITEM" SET ISDELETED = 1 WHERE "ID" = %s', (key,))


def test_no_change_of_six_writers_is_lost(item: Follower, standin: StandIn, application: Any) -> None:
    """Numbers come in commit order because writers wait for each other, so the naive condition is exact here."""
    with writers(standin, soft_step) as ended:
        end = time.monotonic() + 120
        while ended["commit"] < 30 and time.monotonic() < end:
            item.cut(fill=False)
            threading.Event().wait(0.01)
    item.drain()
    application.execute('SELECT "ID", "V" FROM "ITEM" WHERE ISDELETED = 0')
    assert values(item) == {str(key): value for key, value in application.fetchall()}
    assert ended["commit"] >= 30
