"""The whole path from the Oracle dialect on its stand-in to a PostgreSQL target, while writers work.

Everything but the driver is as in production: the upper adapter, a real broker, the load and the increments of a real
PostgreSQL. In the end all rows and values are equal.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import following, query
from tests.support.brokers.servers import settings
from tests.support.databases.postgres import Server
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.oracle.workload import KEYS, change_item, writers
from tests.support.waiting import eventually
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.oracle.proving import quote_names
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.dialects.oracle.torture import STANDIN
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import CaptureDependencies, run_capture
from venus.broker.service.process import start_in_thread
from venus.config import Settings, TargetSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TABLES = (
    'CREATE TABLE "ITEM" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(40) NOT NULL)',
    'CREATE TABLE "STAY" ("ROOM" VARCHAR2(10) NOT NULL, "NIGHT" DATE NOT NULL, "NOTE" CLOB,'
    ' PRIMARY KEY ("ROOM", "NIGHT"))',
)


@contextmanager
def capture_in_thread(chosen: Settings, standin: StandIn) -> Iterator[None]:
    """Run the upper adapter in a thread; raise its errors in the test."""
    stop, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            run_capture(chosen, stop, outside=CaptureDependencies(source=lambda _: OracleSource(standin)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def stay_step(cursor: Any, rng: random.Random) -> None:
    """Return a writer that changes a row whose key is a text and a date."""
    room, night = f"R{rng.randrange(5)}", f"2026-11-{rng.randrange(1, 29):02} 00:00:00"
    if rng.random() < 0.3:
        cursor.execute('DELETE FROM "STAY" WHERE "ROOM" = %s AND "NIGHT" = %s', (room, night))
    elif rng.random() < 0.5:
        cursor.execute(
            'UPDATE "STAY" SET "NIGHT" = "NIGHT" + INTERVAL 1 MONTH WHERE "ROOM" = %s AND "NIGHT" = %s', (room, night)
        )
    else:
        cursor.execute('INSERT INTO "STAY" VALUES (%s, %s, %s)', (room, night, "n" * rng.randrange(200)))


def step(cursor: Any, rng: random.Random) -> None:
    rng.choice((change_item, stay_step))(cursor, rng)


def make_tables(cursor: Any) -> dict[int, tuple[str, str | bytes | None]]:
    """Make the tables and their rows; return which value of which column each row of the torture table has."""
    for statement in TABLES:
        cursor.execute(statement)
    cursor.executemany('INSERT INTO "ITEM" VALUES (%s, %s)', [(n, f"before {n}") for n in range(0, KEYS, 2)])
    columns = ", ".join(f'"{name.upper()}" {column.type}' for name, column in STANDIN.items())
    cursor.execute(f'CREATE TABLE "TORTURE" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, {columns})')
    return insert_torture(cursor, 1)


def insert_torture(cursor: Any, first: int) -> dict[int, tuple[str, str | bytes | None]]:
    every = [(name, sql, canonical) for name, column in STANDIN.items() for sql, canonical in column.values]
    for number, (name, sql, _) in enumerate(every, first):
        cursor.execute(quote_names(f'INSERT INTO "TORTURE" ("ID", "{name.upper()}") VALUES ({number}, {sql})'))
    return {number: (name.upper(), canonical) for number, (name, _, canonical) in enumerate(every, first)}


def read_registered(standin: StandIn) -> list[RegisteredTable]:
    with closing(OracleSource(standin)) as source:
        return source.registry.read_registered_tables()


def target_spelling(target: str, names: str) -> str:
    """Return the names that the target uses, whose policy may fold them."""
    folded = query(target, "SELECT 1 FROM pg_class WHERE relname = 'item'")
    return names.lower() if folded else names


def find_differing_tables(cursor: Any, target: str) -> list[str]:
    """Return the tables whose rows differ from the source's."""
    found = []
    for table, columns in (("ITEM", '"ID", "V"'), ("STAY", '"ROOM", "NIGHT", "NOTE"')):
        cursor.execute(f'SELECT {columns} FROM "{table}"')
        truth = {tuple(None if v is None else str(v) for v in row) for row in cursor.fetchall()}
        there = query(target, target_spelling(target, f'SELECT {columns} FROM "{SCHEMA}"."{table}"'))
        if {tuple(None if v is None else str(v) for v in row) for row in there} != truth:
            found.append(table)
    return found


def test_source_and_target_are_equal_in_the_end(standin: StandIn, postgres_server: Server, tmp_path: Path) -> None:
    target = postgres_server.create_database()
    fatal: list[BaseException] = []
    broker = start_in_thread(settings(tmp_path / "broker", review_after_s=0.2), on_fatal=fatal.append)
    chosen = settings(Path("unused"), address=broker.address).model_copy(
        update={"targets": {"main": TargetSettings.model_validate({"url": target})}}
    )
    try:
        with closing(standin.server.connect(SCHEMA, autocommit=True)) as connection:
            cursor = connection.cursor()
            expected = make_tables(cursor)
            with closing(OracleSource(standin)) as source:
                source.installer.install(["*"], [])
            with capture_in_thread(chosen, standin):
                with writers(standin, step) as ended:
                    assert eventually(lambda: all(t.fill.done for t in read_registered(standin)), timeout_s=120)
                    full_sync(chosen, "main")
                    with following(chosen, "main"):
                        assert eventually(lambda: ended["commit"] > 40 and ended["rollback"] > 0, timeout_s=120)
                        expected |= insert_torture(cursor, 1001)
                with following(chosen, "main"):
                    assert eventually(lambda: not find_differing_tables(cursor, target), timeout_s=120), (
                        find_differing_tables(cursor, target)
                    )
                    assert eventually(lambda: torture_at(target, expected) == expected, timeout_s=120)
        assert not fatal
    finally:
        broker.stop()
        postgres_server.drop_database(target)


def torture_at(target: str, expected: dict[int, tuple[str, str | bytes | None]]) -> dict[int, Any]:
    """Return each torture value as PostgreSQL writes it."""
    found: dict[int, Any] = {}
    for number, (column, canonical) in expected.items():
        binary = isinstance(canonical, bytes)
        read = column.lower() if binary else f"format('%s', {column.lower()})" if canonical is not None else column
        rows = query(target, f'SELECT {read} FROM "{SCHEMA.lower()}".torture WHERE id = {number}')
        value = rows[0][0] if rows else "absent"
        found[number] = (column, bytes(value) if isinstance(value, memoryview) else value)
    return found
