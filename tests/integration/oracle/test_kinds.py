"""Unusual tables and columns: each is carried, refused, or left out by name with the reason."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.oracle.dictionary import tables
from venus.adapters.dialects.oracle.dictionary.ownership import OracleOwnedObjects
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary
from venus.adapters.dialects.oracle.dictionary.tables import ListedTable
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.session.options import OracleColumnChoice
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import Refused

pytestmark = pytest.mark.integration

PLACES = """CREATE TABLE "PLACES" ("ID" NUMBER(9) PRIMARY KEY, "NAME" VARCHAR2(40), "GEOMETRY" POINT,
    "SECRET" VARCHAR2(40) INVISIBLE, "UPPER_NAME" VARCHAR2(40) AS (UPPER("NAME")) VIRTUAL)"""


def make(application: Any, name: str, sort: str = "") -> None:
    application.execute(f'CREATE TABLE "{name}" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20))')
    if sort:
        application.execute("INSERT INTO DICTIONARY.SORTS VALUES (%s, %s)", [name, sort])


def find_messages(source: OracleSource, where: str) -> dict[str, bool]:
    return {f.message: f.blocks for f in source.installer.check(["*"], []) if f.where == f"APP.{where}"}


@pytest.mark.parametrize("sort", sorted(tables.LEFT_OUT))
def test_objects_without_own_rows_are_left_out_by_name(sort: str, application: Any, source: OracleSource) -> None:
    name = {"queue state": "AQ$_ORDERS_L", "flashback archive": "SYS_FBA_HIST_71"}.get(sort, "ODD")
    make(application, "ITEM")
    make(application, name, sort)
    assert find_messages(source, name) == {f"left out: {tables.LEFT_OUT[sort]}": False}
    source.installer.install(["*"], [])
    assert [t.schema.name for t in source.registry.read_registered_tables() if not t.schema.is_heartbeat] == ["ITEM"]
    assert source.dictionary.find_uncaptured_tables(["*"], []) == []
    assert source.dictionary.find_unmatched_patterns([name]) == []


@pytest.mark.parametrize("sort", sorted(tables.REFUSED))
def test_rows_that_cannot_be_carried_are_refused_by_name(sort: str, application: Any, source: OracleSource) -> None:
    make(application, "ITEM")
    make(application, "ODD", sort)
    assert find_messages(source, "ODD") == {tables.REFUSED[sort]: True}
    with pytest.raises(Refused, match=r"APP.ODD: an \w+ table"):
        source.installer.install(["*"], [])
    source.installer.install(["*"], ["ODD"])


@pytest.mark.parametrize("sort", ["clustered", "ledger", "movable", "IOT"])
def test_other_kinds_of_tables_are_carried(sort: str, application: Any, source: OracleSource) -> None:
    make(application, "ODD", sort)
    assert len(find_messages(source, "ODD")) == (sort != "IOT")
    source.installer.install(["*"], [])
    follower = Follower(source)
    application.execute("""INSERT INTO "ODD" VALUES (1, 'a')""")
    follower.drain()
    assert set(follower.rows("ODD")) == {("1",)}


def test_a_synonym_names_its_table(application: Any, source: OracleSource) -> None:
    application.execute("INSERT INTO DICTIONARY.ALL_SYNONYMS VALUES ('APP', 'STAFF', 'HR', 'EMPLOYEES', NULL)")
    (found,) = [f for f in source.installer.check(["STAFF"], []) if f.where == "APP.STAFF"]
    assert found.message == "left out: a synonym for HR.EMPLOYEES"
    assert "venus_schemas" in found.remedy


def test_a_column_that_cannot_be_carried_does_not_exclude_its_table(standin: StandIn, application: Any) -> None:
    application.execute(PLACES)
    application.execute("""INSERT INTO "PLACES" ("ID", "NAME", "SECRET") VALUES (1, 'here', 'x')""")
    with closing(OracleSource(standin)) as source:
        assert any(blocks and "column GEOMETRY" in m for m, blocks in find_messages(source, "PLACES").items())
    with closing(OracleSource(standin, OracleOptions(columns=OracleColumnChoice(exclude=("places.geo*",))))) as source:
        assert find_messages(source, "PLACES") == {
            "column GEOMETRY is left out: excluded in [source.columns]": False,
            "virtual column UPPER_NAME is left out: its values are computed at the source and are not carried": False,
            "column SECRET is invisible at the source, and an ordinary column at the target": False,
        }
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        application.execute("""UPDATE "PLACES" SET "SECRET" = 'y'""")
        follower.drain()
        assert follower.rows("PLACES")[("1",)] == {"ID": "1", "NAME": "here", "SECRET": "y"}
        assert source.capture.refresh_schemas() == []


def test_include_takes_precedence_over_exclude(standin: StandIn, application: Any) -> None:
    make(application, "ITEM")
    make(application, "OTHER")
    with closing(OracleSource(standin, OracleOptions(columns=OracleColumnChoice(("APP.ITEM.V",), ("*.V",))))) as source:
        found = {s.name: [c.name for c in s.columns] for s in source.dictionary.read_tables(["*"], [])}
        assert found == {"ITEM": ["ID", "V"], "OTHER": ["ID"]}


def test_patterns_without_a_match_and_columns_of_the_key_are_refused(standin: StandIn, application: Any) -> None:
    make(application, "ITEM")
    with closing(
        OracleSource(standin, OracleOptions(columns=OracleColumnChoice(exclude=("ITEM.ID", "ITEM.W"))))
    ) as source:
        blocking = {(f.where, f.message) for f in source.installer.check(["*"], []) if f.blocks}
        assert ("APP.ITEM", "column ID is in its key and cannot be excluded in [source.columns]") in blocking
        assert ("[source.columns]", "'ITEM.W' matches no column of a captured table") in blocking


def test_archived_rows_are_carried_only_with_their_state(standin: StandIn, application: Any) -> None:
    application.execute("""CREATE TABLE "OLD" ("ID" NUMBER(9) PRIMARY KEY,
        "ORA_ARCHIVE_STATE" VARCHAR2(40) INVISIBLE DEFAULT '0')""")
    application.execute('INSERT INTO "OLD" ("ID") VALUES (1)')
    with closing(OracleSource(standin)) as source:
        (message,) = [m for m, blocks in find_messages(source, "OLD").items() if blocks]
        assert "ROW ARCHIVAL" in message
    with closing(
        OracleSource(standin, OracleOptions(columns=OracleColumnChoice(include=("OLD.ORA_ARCHIVE_STATE",))))
    ) as source:
        assert not any(find_messages(source, "OLD").values())
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        application.execute("""UPDATE "OLD" SET "ORA_ARCHIVE_STATE" = '1'""")
        follower.drain()
        assert follower.rows("OLD") == {("1",): {"ID": "1", "ORA_ARCHIVE_STATE": "1"}}
    assert "ALTER SESSION SET ROW ARCHIVAL VISIBILITY = ALL" in standin.said


def test_a_table_that_cannot_be_captured_is_named_with_the_obstacle(application: Any, source: OracleSource) -> None:
    make(application, "ITEM")
    source.installer.install(["*"], [])
    application.execute(PLACES)

    (found,) = [t for t in source.dictionary.find_uncaptured_tables(["*"], []) if t.name == "APP.PLACES"]
    assert found.obstacle.startswith("column GEOMETRY: ")


def test_capture_lists_the_tables_only_once(
    application: Any, source: OracleSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(application, "ITEM")
    source.installer.install(["*"], [])
    make(application, "LATER")
    lists = 0
    listed = OracleDictionary.list_tables

    def count_call(self: OracleDictionary, *owned: OracleOwnedObjects) -> list[ListedTable]:
        nonlocal lists
        lists += 1
        return listed(self, *owned)

    monkeypatch.setattr(OracleDictionary, "list_tables", count_call)
    source.capture.refresh_schemas()
    before = lists
    assert [t.name for t in source.dictionary.find_uncaptured_tables(["*"], [])] == ["APP.LATER"]
    assert lists == before

    make(application, "LATEST")
    assert [t.name for t in source.dictionary.find_uncaptured_tables(["*"], [])] == ["APP.LATER", "APP.LATEST"]
