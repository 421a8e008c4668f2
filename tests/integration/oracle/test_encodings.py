"""Texts of a database without Unicode: read exactly, as bytes in a named encoding, and never altered silently.

The stand-in stores a column in a character set of its own, as an Oracle stores bytes that its character set lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import ConfigError

pytestmark = pytest.mark.integration

REPLACED = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def ascii_database(application: Any) -> None:
    application.execute(
        "UPDATE DICTIONARY.NLS_DATABASE_PARAMETERS SET VALUE = 'US7ASCII' WHERE PARAMETER = 'NLS_CHARACTERSET'"
    )


@contextmanager
def open_encoded(standin: StandIn, type_map: dict[str, str]) -> Iterator[OracleSource]:
    with closing(OracleSource(standin, OracleOptions(type_map=type_map))) as source:
        yield source


def halted_tables(source: OracleSource) -> dict[str, str]:
    return {t.schema.name: t.reason for t in source.registry.read_registered_tables() if t.state == "PAUSED"}


@pytest.mark.usefixtures("ascii_database")
@pytest.mark.parametrize("chars", [20, 2400], ids=["as RAW", "in pieces"])
def test_texts_arrive_as_the_encoding_defines_their_bytes(chars: int, application: Any, standin: StandIn) -> None:
    application.execute(
        f'CREATE TABLE "NOTE" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2({chars}) CHARACTER SET latin1, "C" CHAR(4))'
    )
    long = "ä" * (chars - 8)
    application.execute('INSERT INTO "NOTE" VALUES (1, %s, %s), (2, NULL, NULL)', (f"größe €{long}"[:chars], "x"))
    with open_encoded(standin, {"varchar2": "text:cp1252", "CHAR": "text:cp1252"}) as source:
        assert [f.message for f in source.installer.check(["*"], []) if f.where == "APP.NOTE"] == []
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        assert follower.rows("NOTE")[("1",)]["V"] == f"größe €{long}"[:chars]
        assert follower.rows("NOTE")[("1",)]["C"] == "x   "
        application.execute('UPDATE "NOTE" SET "V" = %s WHERE "ID" = 2', ("Ÿ",))
        follower.drain()
        assert follower.rows("NOTE")[("2",)]["V"] == "Ÿ"


@pytest.mark.usefixtures("ascii_database")
def test_keys_are_read_bound_and_logged_as_bytes(application: Any, standin: StandIn) -> None:
    application.execute('CREATE TABLE "NOTE" ("A" VARCHAR2(20), "B" CHAR(4), "V" NUMBER(9), PRIMARY KEY ("A", "B"))')
    keys = [("größe", "ü"), ("größe", "y"), ("zoë", "x"), ("über", "x")]
    application.executemany('INSERT INTO "NOTE" VALUES (%s, %s, 1)', keys)
    with open_encoded(standin, {"NOTE.A": "text:utf-8", "APP.NOTE.B": "text:utf-8"}) as source:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain(fill_rows=1)
        assert set(follower.rows("NOTE")) == {(a, b.ljust(4)) for a, b in keys}
        application.execute("""DELETE FROM "NOTE" WHERE "A" = 'über'""")
        application.execute("""UPDATE "NOTE" SET "V" = 2 WHERE "B" = 'ü'""")
        follower.drain()
        assert {key: row["V"] for key, row in follower.rows("NOTE").items()} == {
            ("größe", "ü   "): "2",
            ("größe", "y   "): "1",
            ("zoë", "x   "): "1",
        }


@pytest.mark.usefixtures("ascii_database")
def test_a_byte_that_the_encoding_lacks_halts_its_table_by_name(application: Any, standin: StandIn) -> None:
    application.execute('CREATE TABLE "NOTE" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20) CHARACTER SET latin1)')
    application.execute('CREATE TABLE "OTHER" ("ID" NUMBER(9) PRIMARY KEY)')
    with open_encoded(standin, {"NOTE.V": "text:cp1252"}) as source:
        source.installer.install(["*"], [])
        application.execute("""INSERT INTO "NOTE" VALUES (7, CONVERT(X'6181' USING latin1))""")
        application.execute('INSERT INTO "OTHER" VALUES (1)')
        follower = Follower(source)
        follower.drain()
        assert halted_tables(source) == {
            "NOTE": "cannot be carried: row ID=7: column V: its byte 81 at 2 is no character in cp1252"
        }
        assert set(follower.rows("OTHER")) == {("1",)}


@pytest.mark.usefixtures("ascii_database")
@pytest.mark.parametrize("chars", [20, 2400], ids=["as RAW", "in pieces"])
def test_check_counts_the_values_that_the_encoding_cannot_read(chars: int, application: Any, standin: StandIn) -> None:
    latin = f"VARCHAR2({chars}) CHARACTER SET latin1"
    application.execute(f'CREATE TABLE "NOTE" ("ID" NUMBER(9) PRIMARY KEY, "V" {latin}, "W" {latin}, "X" {latin})')
    application.execute('INSERT INTO "NOTE" VALUES (1, %s, %s, %s), (2, NULL, NULL, NULL)', ("größe", "ß", "ß"))
    application.execute(
        "INSERT INTO \"NOTE\" VALUES (3, CONVERT(X'6181' USING latin1), 'plain', CONVERT(X'81' USING latin1))"
    )
    asked = {"NOTE.V": "text:cp1252", "NOTE.W": "text:utf-8", "NOTE.X": "text:latin-1"}
    with open_encoded(standin, asked) as source:
        found = [f for f in source.installer.check(["*"], []) if f.where == "APP.NOTE"]
        halts = "and such a row halts its table"
        assert [(f.message, f.blocks) for f in found] == [
            (f"column V: 1 of 3 sampled rows have bytes that are no characters in cp1252, {halts}", True),
            (f"column W: 1 of 3 sampled rows have bytes that are no characters in utf-8, {halts}", True),
        ]
        assert "another encoding in [source.type_map]" in found[0].remedy
        application.execute('DELETE FROM "NOTE" WHERE "ID" <> 2')
        assert [f for f in source.installer.check(["*"], []) if f.where == "APP.NOTE"] == []


def test_a_text_that_the_server_has_altered_halts_its_table(
    application: Any, standin: StandIn, request: pytest.FixtureRequest
) -> None:
    """Even without an earlier check: no smaller character set has the character that stands for replaced bytes."""
    application.execute('CREATE TABLE "NOTE" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20), "BODY" CLOB)')
    application.execute('INSERT INTO "NOTE" VALUES (1, %s, NULL)', (f"in a Unicode database{REPLACED}"[-20:],))
    with closing(OracleSource(standin)) as source:
        source.installer.install(["*"], [])
        Follower(source).drain()
        assert halted_tables(source) == {}
    request.getfixturevalue("ascii_database")
    for number, column in ((2, "V"), (3, "BODY")):
        with closing(OracleSource(standin)) as source:
            application.execute(f'INSERT INTO "NOTE" ("ID", "{column}") VALUES ({number}, %s)', (f"gr{REPLACED}",))
            Follower(source).drain()
            why = f"column {column}: has bytes that the database's character set does not define"
            assert why in halted_tables(source)["NOTE"]
            assert '"TABLE.COLUMN" = "text:ENCODING" in [source.type_map]' in halted_tables(source)["NOTE"]
            application.execute(f'DELETE FROM "NOTE" WHERE "ID" = {number}')
            source.capture.refresh_schemas()
            Follower(source).drain()
            assert halted_tables(source) == {}


def test_an_unknown_encoding_is_refused(application: Any, standin: StandIn) -> None:
    application.execute('CREATE TABLE "NOTE" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20))')
    with (
        open_encoded(standin, {"NOTE.V": "text:windows"}) as source,
        pytest.raises(ConfigError, match="text:windows: this encoding is not known"),
    ):
        source.installer.check(["*"], [])
    with (
        open_encoded(standin, {"NOTE.ID": "text:cp1252"}) as source,
        pytest.raises(ConfigError, match="cannot be carried as 'text:cp1252'"),
    ):
        source.installer.check(["*"], [])
