"""Tables of a SQLite target: the existing ones, and the obstacles to a load (VENUS 3.4)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from venus.adapters.dialects.sqlite.dictionary.types import Affinity, affinity
from venus.adapters.targets.relational.place import OWN
from venus.adapters.targets.relational.row_database import HINT, RowDatabase, TargetFitness
from venus.adapters.targets.sqlite.ddl import SqliteColumn, SqlitePlacedTable
from venus.adapters.targets.sqlite.rowsql import statement
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.adapters.targets.switching import OLD, url_option
from venus.errors import ConfigError
from venus.model import TableSchema

CONSTRAINTS = "foreign keys are off while VENUS applies (PRAGMA foreign_keys)"
_WAL = "wal"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTableFacts:
    """A table in the target's dictionary."""

    kind: str
    columns: tuple[SqliteColumn, ...]
    #: The columns of each unique index, with their collations.
    unique_keys: tuple[dict[str, str], ...]
    triggers: tuple[str, ...]


def read_columns(session: SqliteSession, placed: SqlitePlacedTable) -> tuple[SqliteColumn, ...]:
    """Read the columns of a table; empty if it does not exist."""
    rows = session.rows(statement("dictionary", "columns"), {"name": placed.name})
    return tuple(
        SqliteColumn(
            name=name,
            declared=declared,
            not_null=bool(not_null),
            has_default=bool(has_default),
            generated=bool(generated),
        )
        for name, declared, not_null, has_default, generated in rows
    )


def read_table(session: SqliteSession, placed: SqlitePlacedTable) -> SqliteTableFacts | None:
    """Read a table from the dictionary; None if it does not exist."""
    names = {"name": placed.name}
    found = session.row(statement("dictionary", "table"), names)
    if found is None:
        return None
    keys: dict[str, dict[str, str]] = {}
    for index, column, collation in session.rows(statement("dictionary", "unique_keys"), names):
        keys.setdefault(index, {})[column.lower()] = collation
    return SqliteTableFacts(
        kind=found[0],
        columns=read_columns(session, placed),
        unique_keys=tuple(keys.values()),
        triggers=tuple(name for (name,) in session.rows(statement("dictionary", "triggers"), names)),
    )


def table_differences(placed: SqlitePlacedTable, there: SqliteTableFacts) -> list[str]:
    """Return the reasons why this table cannot be used, one line each. Pure."""
    name = placed.name
    if there.kind != "table":
        return [f"{name} exists already and is a {there.kind}"]
    found = [
        f"{name} has trigger {trigger}, which would repeat what the source's triggers have done"
        for trigger in there.triggers
    ]
    columns = {c.name.lower(): c for c in there.columns}
    key = {placed.fold(k).lower() for k in placed.schema.key}
    for column in placed.schema.columns:
        folded = placed.fold(column.name)
        have = columns.pop(folded.lower(), None)
        if have is None:
            found.append(f"{name}: column {folded} is missing")
            continue
        found += _column_differences(f"{name}.{folded}", placed.types[column.name], have)
        if have.not_null and column.nullable and folded.lower() not in key:
            found.append(f"{name}.{folded} is NOT NULL, the source allows NULL")
    found += [
        f"{name}.{c.name} is NOT NULL without a default, and the source does not have it"
        for c in columns.values()
        if c.not_null and not c.has_default and not c.generated
    ]
    matching = [collations for collations in there.unique_keys if collations.keys() == key]
    if not matching:
        found.append(f"{name} has no primary key or unique index on ({', '.join(sorted(key))})")
    elif not any(set(collations.values()) == {"BINARY"} for collations in matching):
        found.append(f"the key of {name} has a collation in which keys that differ at the source are equal")
    return found


def _column_differences(where: str, wanted: str, have: SqliteColumn) -> Iterator[str]:
    """Yield the reasons why an existing column cannot hold the source's values, one line each."""
    if have.generated:
        yield f"{where} is generated and cannot be written"
    elif (found := affinity(have.declared)) is not Affinity[wanted] or have.declared.upper() == "ANY":
        what = f"{where} is {have.declared or 'without a type'}"
        yield f"{what}, which has {found.value} affinity: the source needs {wanted}, so that no value is altered"


# -- the file ----------------------------------------------------------------------------------------------------------


def is_installed(session: SqliteSession) -> bool:
    """Return whether VENUS's own tables exist."""
    found = session.row(statement("dictionary", "installed", own=OWN))
    return bool(found and found[0])


def refuse_foreign_file(session: SqliteSession, option: str) -> None:
    """Raise ConfigError for a source of VENUS or another program's file; the application's former file is accepted."""
    if option == url_option(OLD):
        return
    found = session.row(statement("dictionary", "foreign", own=OWN))
    assert found is not None
    is_source, application = found
    if is_source:
        raise ConfigError(f"{option}: {session.file} is a source of VENUS", hint="name another file")
    if application and not is_installed(session):
        number = f"0x{application & 0xFFFFFFFF:08x}"
        raise ConfigError(
            f"{option}: {session.file} is the file of another application (application_id {number})",
            hint="name another file",
        )


def enter_wal_mode(session: SqliteSession, option: str) -> None:
    """Set SQLite's WAL mode, in which readers never wait. Raises ConfigError if the file system lacks support for it.

    VENUS never changes the mode of a file that was the application's.
    """
    if option == url_option(OLD):
        return
    found = session.row("PRAGMA journal_mode = WAL")
    if not found or found[0] != _WAL:
        raise ConfigError(
            f"{option}: {session.file} cannot have a write-ahead log there, so a reader could see half of a cut",
            hint="name a file on a local disk",
        )


def examine(target: RowDatabase, session: SqliteSession, schemas: Sequence[TableSchema]) -> TargetFitness:
    """Return facts about the file, and what prevents a load. Raises ConfigError or Refused for unfit files or names."""
    refuse_foreign_file(session, url_option(target.name))
    placed = target.place_all(schemas)
    own = {t.name for t in target.read_tables(session)} if target.is_installed(session) else set()
    obstacles = [
        (one.schema.qualified_name, f"is there already: {line}", HINT)
        for one in placed
        if one.name not in own
        for line in target.check_existing(session, one)
    ]
    return TargetFitness(text=f"SQLite {sqlite3.sqlite_version}; {CONSTRAINTS}", obstacles=obstacles)
