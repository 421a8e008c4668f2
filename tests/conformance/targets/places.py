"""Targets for the conformance suite: how to create one, read its rows and damage it, beyond the contract of targets.

A new kind passes the suite by adding a `TargetPlace` here and its name to `PLACES` in conftest.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
import pytest

from tests.support.brokers.feed import Key, Row, query, rows_at, settings_for
from tests.support.databases.mariadb import MariaServer
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.pipelines import lakes
from tests.support.processes.forks import ForkedModule
from venus.adapters.targets.parquet.manifest import ParquetFolder
from venus.config import Settings
from venus.model import Kind, TableSchema


class KilledRun(Protocol):
    """Run of the loop in a process that kills itself around its n-th durable step."""

    def __call__(self, step: int, moment: str, goal: int) -> bool:
        """Follow up to an offset; return whether the process was killed on the way."""
        ...


class TargetPlace(Protocol):
    """An empty target of one kind."""

    name: str
    #: Steps of the loop around which the process is killed, and whether before or after each step.
    kills: tuple[tuple[int, str], ...]
    #: Error code of the target for a value that another row has in a unique column; empty if it has no unique columns.
    duplicate: str
    #: Shortest length that a text key may have.
    shortest_key: str

    def settings(self, broker: str) -> Settings: ...

    def unreachable(self, broker: str) -> Settings:
        """Return settings of the same kind for a target that cannot be reached or read."""
        ...

    def rows(self, settings: Settings, schema: TableSchema) -> dict[Key, Row]:
        """Return a table's rows as of the applied offset, as text."""
        ...

    def damage(self, settings: Settings, schema: TableSchema) -> None:
        """Remove a table's rows without VENUS."""
        ...

    @contextmanager
    def victim(self, broker: str) -> Iterator[KilledRun]: ...

    def refuse(self, schema: TableSchema, label: str) -> None:
        """Make the target refuse rows with this label; called only where it `quarantines`."""
        ...

    def accept(self, schema: TableSchema) -> None:
        """Let the target accept such rows again."""
        ...


@dataclass(slots=True)
class PostgresPlace:
    """A database on the embedded server."""

    url: str
    name: str = "a"
    kills: tuple[tuple[int, str], ...] = ((1, "before"), (1, "after"), (2, "before"), (2, "after"), (3, "before"))
    duplicate: str = "23505"
    shortest_key: str = ""

    def settings(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: self.url})

    def unreachable(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: "postgresql://stranger@127.0.0.1:1/nothing"})

    def rows(self, settings: Settings, schema: TableSchema) -> dict[Key, Row]:
        return rows_at(settings.targets[self.name].url.get_secret_value(), schema)

    def damage(self, settings: Settings, schema: TableSchema) -> None:
        away = "SET session_replication_role = replica; "  # foreign keys would reject the deletion
        query(self.url, f'{away}DELETE FROM "{schema.namespace}"."{schema.name}"')

    @contextmanager
    def victim(self, broker: str) -> Iterator[KilledRun]:
        with ForkedModule("tests.support.faults.killed_under", broker, self.url, "0") as victim:
            yield lambda step, moment, goal: victim.run("apply", step, moment, goal)

    def refuse(self, schema: TableSchema, label: str) -> None:
        query(self.url, f"ALTER TABLE shop.{schema.name} ADD CONSTRAINT refuses CHECK (label <> '{label}')")

    def accept(self, schema: TableSchema) -> None:
        query(self.url, f"ALTER TABLE shop.{schema.name} DROP CONSTRAINT refuses")


@dataclass(slots=True)
class ParquetPlace:
    """A folder."""

    root: Path
    name: str = "lake"
    #: Steps around the writing of files and the renaming of the manifest, and within the first refresh.
    kills: tuple[tuple[int, str], ...] = ((1, "after"), (3, "after"), (4, "after"), (5, "before"), (5, "after"))
    duplicate: str = ""
    shortest_key: str = ""

    def settings(self, broker: str) -> Settings:
        return lakes.settings_of(broker, self.root)

    def unreachable(self, broker: str) -> Settings:
        root = self.root.with_name("damaged")
        root.mkdir()
        (root / "manifest.json").write_text("half of a manif", encoding="utf-8")
        return lakes.settings_of(broker, root)

    def rows(self, settings: Settings, schema: TableSchema) -> dict[Key, Row]:
        return lakes.newest_rows(settings, schema)

    def damage(self, settings: Settings, schema: TableSchema) -> None:
        layout = ParquetFolder(settings, self.name).layout
        for path in layout.current(f"{schema.namespace}.{schema.name}").glob("*.parquet"):
            empty = pq.read_table(path, partitioning=None).slice(0, 0)
            path.unlink()  # two states may link to one file
            pq.write_table(empty, path)

    @contextmanager
    def victim(self, broker: str) -> Iterator[KilledRun]:
        with ForkedModule("tests.support.faults.killed_lake", broker, str(self.root)) as victim:
            yield lambda step, moment, goal: victim.run("follow", step, moment, goal)

    def refuse(self, schema: TableSchema, label: str) -> None:
        raise AssertionError("a folder refuses no row")

    def accept(self, schema: TableSchema) -> None:
        raise AssertionError("a folder refuses no row")


@dataclass(slots=True)
class MariaTargetPlace:
    """A MariaDB database."""

    server: MariaServer
    url: str
    name: str = "m"
    kills: tuple[tuple[int, str], ...] = ((1, "before"), (1, "after"), (2, "before"), (2, "after"), (3, "before"))
    duplicate: str = "1062"
    shortest_key: str = ""

    @property
    def database(self) -> str:
        """The name of the database."""
        return self.url.rpartition("/")[2]

    def settings(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: self.url})

    def unreachable(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: "mysql://venus@127.0.0.1:1/nothing"})

    def rows(self, settings: Settings, schema: TableSchema) -> dict[Key, Row]:
        names = ", ".join(f"CAST(`{c.name}` AS CHAR)" for c in schema.wire_columns)
        width = len(schema.key)
        found = self.server.execute(f"SELECT {names} FROM `{schema.name}`", self.database)
        return {tuple(r[:width]): tuple(r[width:]) for r in found}

    def damage(self, settings: Settings, schema: TableSchema) -> None:
        # foreign keys would reject the deletion
        self.server.execute(f"SET STATEMENT foreign_key_checks = 0 FOR DELETE FROM `{schema.name}`", self.database)

    @contextmanager
    def victim(self, broker: str) -> Iterator[KilledRun]:
        with ForkedModule("tests.support.faults.killed_session", broker, self.name, self.url) as victim:
            yield lambda step, moment, goal: victim.run("apply", step, moment, goal)

    def refuse(self, schema: TableSchema, label: str) -> None:
        check = f"ADD CONSTRAINT refuses CHECK (label <> '{label}')"
        self.server.execute(f"ALTER TABLE `{schema.name}` {check}", self.database)

    def accept(self, schema: TableSchema) -> None:
        self.server.execute(f"ALTER TABLE `{schema.name}` DROP CONSTRAINT refuses", self.database)


@dataclass(slots=True)
class SqlitePlace:
    """A SQLite file."""

    file: Path
    name: str = "s"
    kills: tuple[tuple[int, str], ...] = ((1, "before"), (1, "after"), (2, "before"), (2, "after"), (3, "before"))
    duplicate: str = "SQLITE_CONSTRAINT_UNIQUE"
    shortest_key: str = ""

    @property
    def url(self) -> str:
        """The URL of the target."""
        return f"sqlite:///{self.file}"

    def settings(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: self.url})

    def unreachable(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: f"sqlite:///{self.file.parent}/none/copy.db"})

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Execute a statement without VENUS, as another program does."""
        with closing(sqlite3.connect(self.file, isolation_level=None, timeout=30)) as connection:
            return connection.execute(text).fetchall()

    def rows(self, settings: Settings, schema: TableSchema) -> dict[Key, Row]:
        names = ", ".join(f'CAST("{c.name}" AS TEXT)' for c in schema.wire_columns)
        width = len(schema.key)
        return {tuple(r[:width]): tuple(r[width:]) for r in self.query(f'SELECT {names} FROM "{schema.name}"')}

    def damage(self, settings: Settings, schema: TableSchema) -> None:
        self.query(f'DELETE FROM "{schema.name}"')

    @contextmanager
    def victim(self, broker: str) -> Iterator[KilledRun]:
        with ForkedModule("tests.support.faults.killed_session", broker, self.name, self.url) as victim:
            yield lambda step, moment, goal: victim.run("apply", step, moment, goal)

    def refuse(self, schema: TableSchema, label: str) -> None:
        # a trigger of the application, because SQLite cannot add a constraint to a table
        for event in ("INSERT", "UPDATE"):
            when = f"BEFORE {event} ON {schema.name} WHEN NEW.label = '{label}'"
            self.query(f"CREATE TRIGGER refuses_{event} {when} BEGIN SELECT RAISE(ABORT, 'refuses'); END")

    def accept(self, schema: TableSchema) -> None:
        for event in ("INSERT", "UPDATE"):
            self.query(f"DROP TRIGGER refuses_{event}")


#: The stand-in is slow: `make test` leaves it out.
ORACLE = pytest.param("oracle", marks=pytest.mark.full)


@dataclass(slots=True)
class OracleTargetPlace:
    """The schema APP on a server in Oracle mode: a stand-in, not an Oracle (tests/support/oracle/standin.py)."""

    standin: StandIn
    name: str = "o"
    kills: tuple[tuple[int, str], ...] = ((1, "before"), (1, "after"), (2, "before"), (2, "after"), (3, "before"))
    duplicate: str = "ORA-00001"
    shortest_key: str = "x"  # an Oracle stores NULL for an empty text

    @property
    def url(self) -> str:
        """The URL of the target."""
        return f"oracle+cx_oracle://root@127.0.0.1:{self.standin.server.port}/?service_name=SCHOOL"

    def settings(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: self.url})

    def unreachable(self, broker: str) -> Settings:
        return settings_for(broker, {self.name: "oracle+cx_oracle://stranger@127.0.0.1:1/?service_name=SCHOOL"})

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Execute a statement without VENUS, as another program does."""
        return self.standin.server.execute(text, SCHEMA)

    def rows(self, settings: Settings, schema: TableSchema) -> dict[Key, Row]:
        names = ", ".join(
            f"""CAST("{c.name.upper()}" AS CHAR{"(10)" if c.type.kind is Kind.DATE else ""})"""
            for c in schema.wire_columns
        )
        width = len(schema.key)
        found = self.query(f'SELECT {names} FROM "{schema.name.upper()}"')
        return {tuple(r[:width]): tuple(r[width:]) for r in found}

    def damage(self, settings: Settings, schema: TableSchema) -> None:
        self.query(f'DELETE FROM "{schema.name.upper()}"')

    @contextmanager
    def victim(self, broker: str) -> Iterator[KilledRun]:
        with ForkedModule("tests.support.faults.killed_session", broker, self.name, self.url) as victim:
            yield lambda step, moment, goal: victim.run("apply", step, moment, goal)

    def refuse(self, schema: TableSchema, label: str) -> None:
        self.query(f'ALTER TABLE "{schema.name.upper()}" ADD CONSTRAINT "refuses" CHECK ("LABEL" <> \'{label}\')')

    def accept(self, schema: TableSchema) -> None:
        self.query(f'ALTER TABLE "{schema.name.upper()}" DROP CONSTRAINT "refuses"')
