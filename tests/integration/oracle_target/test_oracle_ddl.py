"""DDL at an Oracle target on the stand-in: done in steps that the next process continues, or refused with a reason."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from tests.conformance.targets.places import OracleTargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, TEXT, column, items, make_referring_schema, put, table, unique_label
from tests.support.oracle.standin import DICTIONARY, SCHEMA
from tests.support.processes.forks import ForkedModule
from venus.adapters.targets.relational.database import open_database
from venus.adapters.targets.relational.states import TableState
from venus.model import Kind, LogicalType, TableSchema

pytestmark = pytest.mark.integration

MOMENTS = ("before", "after")
NEVER = 1000


def place_of(stage: Stage) -> OracleTargetPlace:
    assert isinstance(stage.place, OracleTargetPlace)
    return stage.place


def states(stage: Stage) -> dict[str, TableState]:
    target = open_database(stage.settings, stage.target.name)
    with closing(target.connect("test")) as session:
        return {t.source_name: t for t in target.read_tables(session)}


def next_version(schema: TableSchema, version: int) -> TableSchema:
    """Return a version with two more columns, one of which has a default."""
    more = (
        column(2 * version + 10, f"a{version}", TEXT),
        column(2 * version + 11, f"b{version}", INT, default_sql="7"),
    )
    return replace(schema, version=version, columns=(*schema.columns, *more))


@pytest.mark.fault
def test_ddl_continues_after_a_kill_between_any_two_steps(stage: Stage, broker: FakeDelivery) -> None:
    feed, schema, killed = stage.feed, items(), 0
    feed.describe(schema)
    feed.cut(put(1, "a", 1), put(2, "b", 2))
    stage.target.load()
    with ForkedModule("tests.support.faults.killed_session", broker.address, "o", place_of(stage).url) as victim:
        for version, (step, moment) in enumerate(((s, m) for s in range(1, 6) for m in MOMENTS), 2):
            schema, late = next_version(schema, version), unique_label(items(version + 20, f"late{version}"))
            feed.describe(schema, late)
            feed.model[1] = {key: (*row, None, "7") for key, row in feed.model[1].items()}
            width = len(schema.columns) - 1
            feed.cut(
                put(version, *("x" if n % 2 == 0 else n for n in range(width))), put(1, "n", 1, table=version + 20)
            )
            killed += victim.run("ddl-apply", step, moment, broker.next_offset)
            assert not victim.run("ddl-apply", NEVER, moment, broker.next_offset)

    assert killed >= 8
    stage.compare_tables()
    assert {t.state for t in states(stage).values()} == {"ACTIVE"}
    assert all(t.created for t in states(stage).values()), "VENUS knows its own tables, and gives them their indexes"
    assert place_of(stage).query("SELECT * FROM VENUS_INTENT") == []
    assert stage.target.read_view().unaccounted_rows == 0


@pytest.mark.fault
def test_a_load_continues_after_a_kill_between_two_steps_of_ddl(stage: Stage, broker: FakeDelivery) -> None:
    feed, place = stage.feed, place_of(stage)
    feed.describe(unique_label(items()), make_referring_schema(items(2, "others"), "amount", items()))
    feed.cut(*(put(i, f"label {i}", i) for i in range(20)), put(1, "other", 1, table=2))
    with ForkedModule("tests.support.faults.killed_session", broker.address, "o", place.url) as victim:
        runs = [victim.run("ddl-load", step, moment, 0) for step in range(1, 6) for moment in MOMENTS]
        assert not victim.run("load", NEVER, "after", 0)

    assert sum(runs) >= 4
    stage.compare_tables()
    assert all(t.created for t in states(stage).values())
    assert place.query("SELECT * FROM VENUS_INTENT") == []
    assert {row[2] for row in place.query('SHOW INDEX FROM "ITEMS"')} == {"PRIMARY", "ITEMS_ITEMS_LABEL"}


def test_columns_are_dropped_renamed_widened_and_made_nullable(stage: Stage) -> None:
    """Each statement is executed once: a change that the dictionary shows is not repeated."""
    small, short = LogicalType(kind=Kind.INT, length=4), LogicalType(kind=Kind.TEXT, length=10)
    longer = LogicalType(kind=Kind.TEXT, length=200)
    first = table(1, "items", column(1, "id", INT), column(2, "a", short, nullable=False), column(3, "b", small))
    stage.feed.describe(first)
    stage.feed.cut(put(1, "one", 1), put(2, "two", 2))
    stage.target.load()
    renamed = (column(1, "id", INT), column(2, "label", longer, nullable=True), column(3, "b", INT))
    dropped = (column(1, "id", INT), column(3, "b", INT), column(4, "c", TEXT))
    with stage.follow_in_thread():
        stage.feed.describe(replace(first, version=2, columns=renamed))
        stage.feed.cut(put(1, "x" * 100, 5_000_000_000), put(3, None, 3))
        stage.wait_until_applied(stage.feed.broker.next_offset)
        stage.compare_tables()
        stage.feed.describe(replace(first, version=3, columns=dropped))
        stage.feed.model[1] = {key: (b, None) for key, (_, b) in stage.feed.model[1].items()}
        stage.feed.cut(put(4, 4, "four"))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    stage.compare_tables()
    assert stage.table("shop.items").state == "ACTIVE"
    assert place_of(stage).query('SELECT "LABEL" FROM "ITEMS" WHERE "ID" = 1') == [("x" * 100,)]


def test_a_type_that_oracle_cannot_change_halts_its_table_alone(stage: Stage) -> None:
    short = LogicalType(kind=Kind.TEXT, length=10)
    first = table(1, "items", column(1, "id", INT), column(2, "a", short))
    stage.feed.describe(first, items(2, "others"))
    stage.feed.cut(put(1, "one"), put(1, "other", 1, table=2))
    stage.target.load()
    with stage.follow_in_thread():
        stage.feed.describe(replace(first, version=2, columns=(column(1, "id", INT), column(2, "a", TEXT))))
        stage.feed.cut(put(1, "x" * 100), put(1, "moves", 1, table=2))
        stage.wait_until_applied(stage.feed.broker.next_offset)
        halted = stage.table("shop.items")

    assert halted.state == "HALTED"
    assert "column a has changed from VARCHAR2(10 CHAR) to CLOB, which does not widen it" in halted.reason
    assert stage.place.rows(stage.settings, items(2, "others")) == {("1",): ("moves", "1")}


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ('CREATE TABLE "ITEMS" ("ID" NUMBER(19), "LABEL" CLOB, "AMOUNT" NUMBER(19))', "has no primary key"),
        (
            'CREATE TABLE "ITEMS" ("ID" NUMBER(19) PRIMARY KEY, "LABEL" VARCHAR2(5), "AMOUNT" NUMBER(19))',
            "ITEMS.LABEL is VARCHAR2(5 CHAR), the source needs CLOB",
        ),
        (
            'CREATE TABLE "ITEMS" ("ID" NUMBER(19) PRIMARY KEY, "LABEL" CLOB, "AMOUNT" NUMBER(5))',
            "ITEMS.AMOUNT is NUMBER(5), the source needs NUMBER(19)",
        ),
        ('CREATE VIEW "ITEMS" AS SELECT 1 AS "ID"', "ITEMS exists already and is a view"),
        ('CREATE PROCEDURE "ITEMS" AS BEGIN NULL; END', "ITEMS exists already and is a procedure"),
    ],
)
def test_an_existing_table_that_differs_is_refused_by_name(statement: str, says: str, stage: Stage) -> None:
    place_of(stage).query(statement)

    found = [f.message for f in stage.target.check([items()]) if f.blocks]
    assert any(says in line for line in found), found


def test_a_trigger_of_an_existing_table_is_refused_and_its_rows_are_adopted(stage: Stage) -> None:
    place = place_of(stage)
    place.query('CREATE TABLE "ITEMS" ("ID" NUMBER(19) PRIMARY KEY, "LABEL" CLOB, "AMOUNT" NUMBER(19))')
    assert not [f for f in stage.target.check([items()]) if f.blocks]
    place.query('CREATE TRIGGER COUNTS BEFORE INSERT ON "ITEMS" FOR EACH ROW BEGIN :NEW."AMOUNT" := 1; END')

    found = [f.message for f in stage.target.check([items()]) if f.blocks]
    assert any("trigger COUNTS" in line for line in found), found


def test_an_unsuitable_server_is_refused_by_name(stage: Stage) -> None:
    server, long = place_of(stage).standin.server, table(1, "a" * 31, column(1, "id", INT))
    server.execute("UPDATE NLS_DATABASE_PARAMETERS SET VALUE = 'US7ASCII'", DICTIONARY)
    server.execute("DELETE FROM SESSION_PRIVS WHERE PRIVILEGE = 'CREATE SEQUENCE'", DICTIONARY)
    server.execute("UPDATE PRODUCT_COMPONENT_VERSION SET VERSION = '11.2.0.4.0'", DICTIONARY)
    server.execute("CREATE TABLE VENUS_CHECKPOINT (ID NUMBER(1))", SCHEMA)
    try:
        found = {f.message: f.remedy for f in stage.target.check([long]) if f.blocks}
    finally:
        server.execute("UPDATE PRODUCT_COMPONENT_VERSION SET VERSION = '19.0.0.0.0'", DICTIONARY)
        server.execute(
            "UPDATE NLS_DATABASE_PARAMETERS SET VALUE = 'AL16UTF16' WHERE PARAMETER LIKE '%NCHAR%'", DICTIONARY
        )
    assert found == {
        "its character set is US7ASCII, which lacks characters": "use a database with AL32UTF8",
        f"schema {SCHEMA} is a source of VENUS": "let the url name another user",
        "the user lacks CREATE SEQUENCE": f'GRANT CREATE SEQUENCE TO "{SCHEMA}";',
        f"{'A' * 31} is longer than 30 bytes, the names of Oracle 11.2": (
            "rename it at the source, or use Oracle 12.2 or later"
        ),
    }
