"""CHAR(n BYTE) keys with characters beyond ASCII: a row has the same record id for every reader.

MariaDB counts a CHAR's blanks in characters. So the column is a VARCHAR2 there, the dictionary calls it CHAR(10 BYTE),
and the test stores the blanks that an Oracle would: as many as fill 10 bytes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.dialects.oracle.verify import OracleReader
from venus.adapters.dialects.verify_contract import Subject
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

#: The words as CHAR(10 BYTE) stores them, with characters of 1, 2 and 3 bytes.
WORDS = {word: word + " " * (10 - len(word.encode())) for word in ("a", "ä", "äöü", "€", "A")}


@pytest.fixture
def word(application: Any, source: OracleSource) -> Follower:
    application.execute('CREATE TABLE "WORD" ("W" VARCHAR2(10) NOT NULL PRIMARY KEY, "N" NUMBER(9))')
    application.execute("INSERT INTO DICTIONARY.BYTE_CHARS VALUES ('WORD', 'W')")
    for stored in WORDS.values():
        application.execute('INSERT INTO "WORD" VALUES (%s, 1)', [stored])
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def test_a_captured_change_has_the_record_id_of_the_fill(word: Follower, application: Any) -> None:
    assert set(word.rows("WORD")) == {(stored,) for stored in WORDS.values()}
    application.execute('UPDATE "WORD" SET "N" = 2')
    word.drain()
    assert {key: row["N"] for key, row in word.rows("WORD").items()} == {(stored,): "2" for stored in WORDS.values()}
    application.execute('DELETE FROM "WORD" WHERE "W" <> %s', [WORDS["€"]])
    word.drain()
    assert set(word.rows("WORD")) == {(WORDS["€"],)}


def test_a_fill_continues_after_such_a_key(application: Any, source: OracleSource, word: Follower) -> None:
    source.capture.restart_fill(2)
    application.execute('DELETE FROM "WORD" WHERE "W" = %s', [WORDS["äöü"]])
    word.drain(fill_rows=1)
    assert set(word.rows("WORD")) == {(stored,) for word, stored in WORDS.items() if word != "äöü"}


def test_verification_finds_rows_and_waiting_changes_by_such_a_key(
    word: Follower, application: Any, source: OracleSource, standin: StandIn
) -> None:
    schema = next(t.schema for t in source.registry.read_registered_tables() if t.schema.name == "WORD")
    subject = Subject(schema=schema)
    reader = OracleReader(standin, source)
    application.execute('UPDATE "WORD" SET "N" = 3 WHERE "W" = %s', [WORDS["ä"]])
    reader.begin(subject)
    assert sum(part.count for part in reader.find_rows(subject, [("ä",), ("€",), ("absent",)])) == 2
    assert reader.find_waiting_keys(subject, [("ä",), ("€",)]) == {("ä",)}
    reader.end()
    reader.touch(subject, [("äöü",)])
    word.drain()
    assert set(word.rows("WORD")) == {(stored,) for stored in WORDS.values()}
