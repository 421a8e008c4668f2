"""From SQLite to PostgreSQL and back without losing new writes, as an operator does it (scenario 93)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.patching import SourceEdit
from tests.support.databases.postgres import Server
from tests.support.pipelines.held_steps import (
    NEW_READ,
    NEW_WRITE,
    HeldStep,
    choose_steps,
    hold_step,
    kill_at_step,
    start_pair,
    wait_until_reported,
    write_to_owner,
)
from tests.support.pipelines.old_databases import SqlitePair
from tests.support.pipelines.pipeline import Pipeline
from tests.support.pipelines.switched_pair import BACK, FORWARD, QUIET
from tests.support.waiting import eventually
from venus.adapters.dialects.sqlite.torture import COLUMNS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, credit DECIMAL(10, 2) DEFAULT 0,
    since DATETIME, note BLOB);
CREATE TABLE orders (no INTEGER PRIMARY KEY AUTOINCREMENT, customer INTEGER REFERENCES customer (id) ON DELETE CASCADE,
    what VARCHAR(12), code TEXT COLLATE NOCASE UNIQUE);
CREATE TABLE probe (n INTEGER PRIMARY KEY);
INSERT INTO probe VALUES (1);
INSERT INTO customer (name, since, note) VALUES ('ann', '2026-01-02T03:04:05.000Z', x'00ff'), ('bob', NULL, NULL);
INSERT INTO orders (customer, what, code) VALUES (1, 'a', 'x1'), (2, NULL, NULL);
"""
_QUERIES = ("SELECT id, name, credit, note FROM customer ORDER BY 1", "SELECT * FROM orders ORDER BY 1")


def to_plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows in which equal values of both databases are equal in Python."""
    return [tuple(_to_plain(value) for value in row) for row in rows]


def _to_plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    return float(value) if isinstance(value, int | Decimal) else value


def until_equal(pair: SqlitePair) -> None:
    """Wait until both databases have the same rows."""

    def is_equal() -> bool:
        return all(to_plain(pair.old(q)) == to_plain(pair.new(q)) for q in _QUERIES)

    eventually(is_equal, pair.pipeline.tail, timeout_s=120.0, every_s=0.1)


@pytest.fixture
def pair(tmp_path: Path, postgres_server: Server) -> Iterator[SqlitePair]:
    found = SqlitePair(tmp_path, postgres_server)
    try:
        yield found
    finally:
        found.close()


def test_a_switch_to_postgresql_and_back(pair: SqlitePair) -> None:
    pair.start(_SHOP)
    pipeline = pair.pipeline
    assert pipeline.ask(*FORWARD, "--rehearse", *QUIET)["blocks"] == []
    assert pair.switch(*FORWARD)["equal"]
    assert pair.writable() == ["new"]
    assert "the old database follows" in pipeline.venus("status", code=(0, 1)).out

    pair.new("INSERT INTO customer (name, since) VALUES ('carl', '2026-05-06 07:08:09.25')")
    pair.new("INSERT INTO orders (customer, what) VALUES (3, 'there')")
    pair.new("DELETE FROM customer WHERE name = 'bob'")
    with closing(pair.connect_new()) as connection:
        connection.autocommit = False
        connection.cursor().execute("INSERT INTO customer (name) VALUES ('rolled back')")  # draws the number 4
    until_equal(pair)
    assert pair.old("SELECT since FROM customer ORDER BY 1 DESC LIMIT 1") == [("2026-05-06T07:08:09.250Z",)]
    assert pair.count_logged() == 0
    assert pipeline.ask("verify")["verdict"] == "same"

    assert pipeline.ask(*BACK, "--rehearse", *QUIET)["blocks"] == []
    assert pair.switch(*BACK)["equal"]
    assert pair.writable() == ["old"]
    pair.old("INSERT INTO customer (name) VALUES ('dora')")
    pair.old("INSERT INTO orders (customer, what) VALUES (5, 'back')")
    until_equal(pair)
    assert pair.old("SELECT id FROM customer ORDER BY 1") == [(1,), (3,), (5,)]
    assert pair.new("SELECT count(*) FROM venus.load_job") == [(1,)]
    assert pair.old("SELECT count(*) FROM venus_load_job") == [(0,)]
    assert pair.switch(*FORWARD)["equal"]

    assert pipeline.stop("sync") == 0
    pipeline.ask("uninstall-triggers")
    assert pair.writable() == ["old", "new"]
    assert pair.old("SELECT name FROM sqlite_master WHERE name LIKE 'venus%'") == []


_OLD_FILE = "BEGIN IMMEDIATE"
STEPS = {
    "open": HeldStep(FORWARD, "new", NEW_WRITE, ("new", "FOLLOWING"), ("STOPPED", "FOLLOWING"), []),
    "follow": HeldStep(FORWARD, "old", _OLD_FILE, ("old", "STOPPED"), ("STOPPED", "OPEN"), ["new"]),
    "back-close": HeldStep(BACK, "new", NEW_READ, None, ("FOLLOWING", "OPEN"), ["new"]),
    "back-open": HeldStep(BACK, "old", _OLD_FILE, ("new", "STOPPED"), ("FOLLOWING", "STOPPED"), []),
}


@pytest.mark.parametrize("step", choose_steps(STEPS, "follow", "back-open"))
def test_a_kill_at_each_step_is_shown_and_completed_by_the_same_command(pair: SqlitePair, step: str) -> None:
    held = STEPS[step]
    pipeline = pair.pipeline
    start_pair(pair, held, _SHOP)
    kill_at_step(pair, held)
    if held.has_begun:
        command = " ".join(("venus", *held.command))
        pipeline.until(lambda: command in read_health(pipeline), "health to show it", every_s=0.5)
        assert 'state="SWITCHING"} 1.0' in read_page(pipeline, "metrics")
    pair.switch(*held.command)
    write_to_owner(pair, held, "INSERT INTO customer (name) VALUES ('carl')")
    until_equal(pair)
    pipeline.until(lambda: "is not finished" not in read_health(pipeline), "health to be quiet", every_s=0.5)


@pytest.mark.parametrize("step", ["follow", pytest.param("back-open", marks=pytest.mark.slow)])
def test_a_file_that_is_locked_for_longer_than_the_limit_delays_a_step(pair: SqlitePair, step: str) -> None:
    held = STEPS[step]
    pipeline = pair.pipeline
    waits = SourceEdit(
        where="venus.adapters.targets.sqlite.session:SqliteSession._run_while_busy",
        old="stop_after_delay(LOCK_WAIT_S)",
        new="stop_after_delay(1.0)",
    )
    pipeline.edit_processes([waits])
    start_pair(pair, held, _SHOP)
    with hold_step(pair, held) as begin:
        wait_until_reported(pipeline, begin, "target ")
    assert pipeline.running.pop("switch").wait(240) == 0, pipeline.tail()
    assert pair.writable() == [held.owner]
    until_equal(pair)


def read_page(pipeline: Pipeline, path: str) -> str:
    """Return the broker's answer to an HTTP request."""
    with closing(HTTPConnection("127.0.0.1", pipeline.ports[1], timeout=30)) as connection:
        connection.request("GET", f"/{path}")
        return connection.getresponse().read().decode()


def read_health(pipeline: Pipeline) -> str:
    """Return the broker's answer to /health."""
    return read_page(pipeline, "health")


def dump(pair: SqlitePair) -> list[tuple[Any, ...]]:
    """Return every value of the table as the file stores it, with its storage class."""
    columns = ", ".join(f"typeof({name}), quote({name})" for name in COLUMNS)
    return pair.old(f"SELECT id, {columns} FROM torture ORDER BY id")


def test_every_type_comes_back_byte_for_byte_or_is_refused(pair: SqlitePair) -> None:
    numbers = count(1)
    declared = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
    pair.old(f"CREATE TABLE torture (id INTEGER PRIMARY KEY, {declared})")
    with closing(pair.connect_old()) as connection:
        for name, column in COLUMNS.items():
            for sql, _ in column.values:
                connection.execute(f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})")
    pair.start(_TYPES)
    refused = pair.pipeline.venus(*FORWARD, *QUIET, code=3).err
    assert "torture.c_datetime has values of several spellings, and '9999-12-31 00:00:00' would come back as" in refused
    assert pair.writable() == ["old", "new"]
    pair.old("UPDATE torture SET c_datetime = replace(c_datetime, 'T', ' ')")
    before = dump(pair)
    pair.switch(*FORWARD)  # the first write gives each row another key, so that the whole row is sent back
    pair.new("UPDATE torture SET id = id + 1000000")
    pair.new("UPDATE spelled SET id = id + 1000000")
    pair.pipeline.until(lambda: len(pair.old("SELECT 1 FROM torture WHERE id > 1000000")) == len(before), "all rows")
    assert [(i - 1_000_000, *row) for i, *row in dump(pair)] == before
    spelled = "SELECT id, typeof(a), a, b, quote(c), d, e, f FROM spelled ORDER BY id"
    pair.pipeline.until(lambda: len(pair.old("SELECT 1 FROM spelled WHERE id > 1000000")) == 2, "all rows")
    assert [row[1:] for row in pair.old(spelled)] == _SPELLED
    assert pair.pipeline.ask("verify")["verdict"] == "same"
    assert pair.switch(*BACK)["equal"]


#: Values of types that SQLite lacks, as applications spell them.
_TYPES = """
CREATE TABLE probe (n INTEGER PRIMARY KEY);
INSERT INTO probe VALUES (1);
CREATE TABLE spelled (id INTEGER PRIMARY KEY, a BOOLEAN, b TIMESTAMP, c UUID, d TIME, e DECIMAL(20,2), f JSON);
INSERT INTO spelled VALUES
    (1, 'true', '2026-01-02T03:04:05.000Z', x'000102030405060708090a0b0c0d0e0f', '10:00:00.250', 7, '{"a": 1}'),
    (2, 'false', '2026-01-02T03:04:05.120Z', x'ff0102030405060708090a0b0c0d0e0f', '11:30:00.000', 12.5, '17');
"""
_SPELLED = [
    ("text", "true", "2026-01-02T03:04:05.000Z", "X'000102030405060708090A0B0C0D0E0F'", "10:00:00.250", 7, '{"a": 1}'),
    ("text", "false", "2026-01-02T03:04:05.120Z", "X'FF0102030405060708090A0B0C0D0E0F'", "11:30:00.000", 12.5, 17),
]


def test_values_that_the_old_file_would_alter_wait_and_new_columns_follow(pair: SqlitePair) -> None:
    pair.start(_SHOP)
    pipeline = pair.pipeline
    pair.switch(*FORWARD)
    pair.new("INSERT INTO customer (name, since) VALUES ('never', 'infinity')")
    pair.new("ALTER TABLE orders ADD COLUMN weight numeric(8,2) DEFAULT 1.50")
    pair.new("INSERT INTO orders (customer, weight) VALUES (1, 7.25)")
    pipeline.until(lambda: len(pair.old("SELECT 1 FROM orders")) == 3, "the other table to follow")
    assert pair.old("SELECT weight FROM orders ORDER BY no") == [(1.5,), (1.5,), (7.25,)]

    def quarantined_keys() -> list[str]:
        document = pipeline.ask("quarantine", "list", "--target", "@source", code=(0, 1))
        return [row["key"] for row in document["quarantine"]["@source"]]

    pipeline.until(lambda: len(quarantined_keys()) == 1, "the row to wait", every_s=0.5)
    assert pipeline.venus(*BACK, *QUIET, code=3).err.count("quarantine")
    pair.new("UPDATE customer SET since = '2026-01-01' WHERE name = 'never'")
    pipeline.until(lambda: len(quarantined_keys()) == 2, "the next change of the row to wait behind it", every_s=0.5)
    with closing(pair.connect_old()) as connection:  # damage that only the owner of the file can cause
        connection.execute(f"DROP TRIGGER venus_reject_u_{number_of(pair, 'customer'):05}")
        connection.execute("UPDATE customer SET name = 'damaged' WHERE id = 1")
    assert pipeline.ask("verify", code=1)["verdict"] == "different"
    pipeline.venus("resync", "customer", "--target", "@source")
    pipeline.until(lambda: pair.old("SELECT name FROM customer WHERE id = 1") == [("ann",)], "the resync", every_s=0.2)
    pipeline.until(lambda: "resyncing" not in pipeline.venus("status", code=(0, 1)).out, "its end", every_s=0.5)
    assert quarantined_keys() == []
    assert pipeline.ask("verify")["verdict"] == "same"
    assert pair.switch(*BACK)["equal"]
    pair.old("INSERT INTO orders (customer, weight) VALUES (1, 2)")
    pipeline.until(lambda: pair.new("SELECT 1 FROM orders WHERE weight = 2"), "the new column")


def number_of(pair: SqlitePair, table: str) -> int:
    """Return the id of a captured table."""
    return int(pair.old(f"SELECT table_id FROM venus_captured_table WHERE name = '{table}'")[0][0])


def test_triggers_of_the_application_are_named(pair: SqlitePair) -> None:
    pair.start(_SHOP)
    trigger = "CREATE TRIGGER audit AFTER INSERT ON orders BEGIN UPDATE probe SET n = n + 1; END"
    with closing(pair.connect_old()) as connection:
        connection.execute(trigger)
        said = pair.pipeline.venus(*FORWARD, *QUIET, code=3).err
        assert 'trigger audit of orders would fire for changes of VENUS: DROP TRIGGER "audit"' in said
        assert pair.writable() == ["old", "new"]
        connection.execute("DROP TRIGGER audit")
    pair.switch(*FORWARD)
    assert pair.writable() == ["new"]


def test_a_snapshot_from_before_the_closing_cannot_write(pair: SqlitePair) -> None:
    pair.start(_SHOP)
    with closing(pair.connect_old()) as late:
        late.execute("BEGIN")
        late.execute("SELECT * FROM orders").fetchall()
        pair.switch(*FORWARD)
        with pytest.raises(sqlite3.Error, match=r"locked|keeps this database equal"):
            late.execute("UPDATE orders SET what = 'late' WHERE no = 1")
