"""A comparison of dictionary and registry takes no more statements for a thousand tables than for a few.

A round trip takes milliseconds, and capture has one thread. With statements for each table, a comparison of a thousand
tables would take seconds and would run rarely (adapters/upper/periodic.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pymysql.cursors
import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.conformance.places import Application, Place, SqlitePlace
from tests.support.waiting import eventually
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.postgresql.connection import PostgresConnection

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

#: Most statements of a comparison that finds nothing, and of one that stores a finding.
STATEMENTS_MAX, STORED_MAX = 30, 80


@dataclass(slots=True)
class StatementCounter:
    """Counter of the statements that a source has executed."""

    count: int = 0

    def wrap(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count the calls of a method."""
        original = getattr(owner, name)

        def count_call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, count_call)

    def count_statements(self, act: Callable[[], object]) -> int:
        """Return how many statements a call executes."""
        before = self.count
        act()
        return self.count - before


@pytest.fixture
def app(place: Place) -> Iterator[Application]:
    """Open a session of the application."""
    with closing(place.connect()) as app:
        yield app


@pytest.fixture
def source(place: Place) -> Iterator[Source]:
    """Open the source."""
    with closing(place.open()) as source:
        yield source


@pytest.fixture
def counter(place: Place, source: Source, monkeypatch: pytest.MonkeyPatch) -> StatementCounter:
    """Count the statements of the source, in its driver."""
    made = StatementCounter()
    if isinstance(place, SqlitePlace):

        def on_statement(text: str) -> None:
            made.count += not text.startswith("--")  # a call that runs triggers reports their statements as well

        for connection in (source.capture._reader, source.capture._writer):  # type: ignore[attr-defined]
            connection.set_trace_callback(on_statement)
        return made
    for name in ("execute", "executemany"):
        made.wrap(pymysql.cursors.Cursor, name, monkeypatch)
    for name in ("run", "fetch_texts", "copy_out"):
        made.wrap(PostgresConnection, name, monkeypatch)
    return made


def compare(source: Source) -> None:
    """Compare dictionary and registry, as capture does every few seconds."""
    source.capture.refresh_schemas()
    source.registry.read_registry_fingerprint()
    source.capture.find_blocking_locks()
    source.dictionary.find_uncaptured_tables(["*"], [])


#: The stand-in's dictionary reads all tables for each installed trigger: this takes over a second for each table.
MANY = pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(2700)])


@pytest.mark.parametrize("tables", [pytest.param(40, marks=pytest.mark.full), MANY])
def test_a_comparison_takes_few_statements(
    place: Place, app: Application, source: Source, counter: StatementCounter, tables: int
) -> None:
    t = place.types
    for n in range(tables):
        app.execute(f"CREATE TABLE t{n} (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']})")
        app.commit()
    source.installer.install(["*"], [])
    numbers = {table.schema.name: table.schema.table_id for table in source.registry.read_registered_tables()}
    for n in range(1, tables):
        app.execute(f"INSERT INTO t{n} (id, name) VALUES (1, 'one')")
    app.commit()

    if place.dialect in ("postgresql", "sqlite"):  # at first the others store or read something for each table
        assert counter.count_statements(lambda: compare(source)) <= STORED_MAX
    # a dictionary has times in whole seconds: until the second is over, each comparison compares everything
    eventually(lambda: counter.count_statements(lambda: compare(source)) <= STATEMENTS_MAX, timeout_s=120)
    assert counter.count_statements(lambda: compare(source)) <= STATEMENTS_MAX
    backlog = source.capture.read_backlog()
    assert counter.count_statements(source.capture.read_backlog) <= STATEMENTS_MAX
    waiting = {name for name, number in numbers.items() if backlog[number][0] == 1}
    assert waiting == {f"t{n}" for n in range(1, tables)}

    app.execute(f"ALTER TABLE t7 ADD added {t['int']}")
    app.commit()
    found = []
    assert counter.count_statements(lambda: found.extend(source.capture.refresh_schemas())) <= STORED_MAX
    assert [(schema.name, schema.version) for schema in found] == [("t7", 2)]
    name = f"venus_i_{numbers['t9']:05}"
    name = name.upper() if isinstance(place, StandInPlace) else name
    app.execute(f"DROP TRIGGER {name}" + (" ON t9" if place.dialect == "postgresql" else ""))
    app.commit()
    assert counter.count_statements(lambda: compare(source)) <= STORED_MAX
    states = {table.schema.name: table.state for table in source.registry.read_registered_tables()}
    assert [name for name, state in states.items() if state == "RESYNC"] == ["t9"]
