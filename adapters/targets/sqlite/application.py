"""The application's tables in its former SQLite file, which is now a target (`@source`).

SQLite converts some values silently to the affinity that the application chose for a column. Some values, such as
times, have several spellings. So VENUS reads each row back as capture does, in the same transaction, and refuses a
value that differs from the one sent. Two keys that a collation treats as equal are different rows in other databases,
so keys are compared exactly.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from venus.adapters.dialects.rows import TableAccess
from venus.adapters.dialects.sqlite.connection import quote, read_transaction
from venus.adapters.dialects.sqlite.dictionary.structure import find_names
from venus.adapters.dialects.sqlite.dictionary.tables import (
    SqliteDictionary,
    SqliteTable,
    identity_condition,
    read_table_names,
)
from venus.adapters.dialects.sqlite.dictionary.types import declared_type
from venus.adapters.dialects.sqlite.rows import SqliteValueError, SqliteValueRule, value_rule
from venus.adapters.dialects.sqlite.sql import statement as dialect_statement
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable
from venus.adapters.targets.sqlite.spelling import ColumnSpelling, Spelling, find_spelling, list_spellings
from venus.codec.columns import Value, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import TargetError
from venus.model import Column, TableSchema

if TYPE_CHECKING:
    from venus.adapters.targets.sqlite.session import SqliteSession

_PIECE_ROWS = 20_000
_OTHER_VALUE = "the old database would store another value in column"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAccess(TableAccess):
    """The rules that read the rows of a table of the application as canonical text."""

    VALUE_ERROR = SqliteValueError

    rules: tuple[SqliteValueRule, ...]
    columns_sql: str

    def canonical_texts(self, column: int, values: Sequence[Any]) -> Sequence[Value]:
        return self.rules[column].canonical_texts(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationTable:
    """A table of the application: how capture describes it, and the declarations of its columns."""

    table: SqliteTable
    #: The declared types, by the names of all columns.
    declared: Mapping[str, str]
    defaults: Mapping[str, str]
    #: Columns that are NOT NULL without a default.
    required: frozenset[str]
    generated: frozenset[str]
    is_counted: bool  # whether it has AUTOINCREMENT
    #: Spellings by column, read from the column's values when they are first needed.
    spellings: dict[str, Spelling] = field(default_factory=dict)

    def column(self, name: str) -> str:
        """Return a column's name in the spelling of its table; empty if the table lacks it."""
        return next((own for own in self.declared if own.lower() == name.lower()), "")

    def define(self, column: str) -> str:
        """Return the definition of a column for a table of VENUS, with the same affinity and default."""
        default = f" DEFAULT ({self.defaults[column]})" if column in self.defaults else ""
        return f"{quote(column)} {self.declared[column]}{default}"

    @property
    def has_exact_key(self) -> bool:
        """Whether `=` never considers two different keys as equal."""
        return all(k.exact for k in self.table.key)

    def same_key(self, left: str, right: str, column: str) -> str:
        """Return the condition that two values of a key column are identical; its `=` lets SQLite use an index."""
        key = next((k for k in self.table.key if k.name == column), None)
        exactly = "" if key is None or key.exact else f" AND {identity_condition(left, right, key)}"
        return f"{left} = {right}{exactly}"


class SqliteApplicationTables:
    """The application's tables as the file's dictionary describes them; the dictionary is read at the first use."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._tables: dict[str, ApplicationTable] = {}
        self._has_read = False

    def find(self, name: str) -> ApplicationTable | None:
        """Return a table; None if it does not exist."""
        if not self._has_read:
            self.read_all()
        return self._tables.get(name)

    def require(self, name: str) -> ApplicationTable:
        """Return a table. Raises TargetError if it does not exist."""
        if (found := self.find(name)) is None:
            raise TargetError(f"there is no table {name} in the old database")
        return found

    def read_all(self) -> list[ApplicationTable]:
        """Return the application's tables as they are now."""
        with closing(self._connect()) as connection, read_transaction(connection, "the old database"):
            self._set_tables(_read_tables(connection))
        return list(self._tables.values())

    def read_again(self, session: SqliteSession) -> None:
        """Read the dictionary again over this session, which sees the DDL of its open transaction."""
        self._set_tables(_read_tables(session.connection))

    def _set_tables(self, found: dict[str, ApplicationTable]) -> None:
        """Replace the known tables by these; keep the spellings that were found before."""
        for name, before in self._tables.items():
            if name in found:
                found[name].spellings.update(before.spellings)
        self._tables, self._has_read = found, True

    # -- reading -----------------------------------------------------------------------------------------------------

    def access(self, placed: SqlitePlacedTable, schema: TableSchema) -> FollowerAccess:
        """Return the rules that read the columns of `schema` from a table as canonical text."""
        table, layout = self.require(placed.name), Layout.of(schema)
        return FollowerAccess(
            layout=layout,
            rules=tuple(_find_rule(table, c, in_key=n < layout.key_count) for n, c in enumerate(layout.columns)),
            columns_sql=", ".join(f"t.{quote(table.column(c.name))}" for c in layout.columns),
        )

    def read_spelling(self, session: SqliteSession, table: ApplicationTable, column: Column) -> ColumnSpelling:
        """Find out from all values of a column in which spelling it stores them, for example times with a `T`."""
        name = table.column(column.name)
        spellings = list_spellings(column.type.kind, table.declared[name])
        read = _find_rule(table, column, in_key=False).canonical_text
        query = dialect_statement(
            "verify", "values", column=quote(name), table=f"main.{quote(table.table.schema.name)}"
        )

        def values() -> Iterator[tuple[Any, Value]]:
            """Yield each stored value of the column with its canonical text."""
            for rows in session.stream(query, None, _PIECE_ROWS):
                for (stored,) in rows:
                    with suppress(SqliteValueError):  # such a value halts its table in capture, and never comes back
                        yield stored, read(stored)

        return find_spelling(spellings, values())

    # -- writing -----------------------------------------------------------------------------------------------------

    def writer(self, session: SqliteSession, placed: SqlitePlacedTable, column: Column) -> Spelling:
        """Return the function that converts a canonical text to the spelling of this column."""
        table = self.require(placed.name)
        name = table.column(column.name)
        if not name:
            raise TargetError(f"{placed.name} has no column {column.name} in the old database")
        if name not in table.spellings:
            self._read_spellings(session, table, placed.schema)
        return table.spellings[name]

    def _read_spellings(self, session: SqliteSession, table: ApplicationTable, schema: TableSchema) -> None:
        """Find the spellings of all columns now, because the first change may delete the only row that shows one."""
        for column in schema.columns:
            name = table.column(column.name)
            if name and name not in table.spellings:
                table.spellings[name] = self.read_spelling(session, table, column).write

    def require_exact(
        self,
        session: SqliteSession,
        placed: SqlitePlacedTable,
        schema: TableSchema,
        rows: tuple[PackedBytes, PackedBytes],
        keys: Sequence[tuple[Any, ...]],
        where: str,
        relation: str,
    ) -> None:
        """Raise Refusal if `relation` holds a row with a value that differs from the one sent.

        `keys`: the stored keys of the rows, as parameters of the condition `where`.
        """
        sent = dict(
            zip((c.number for c in Layout.of(schema).columns), to_columns(*rows, Layout.of(schema)), strict=True)
        )
        columns = tuple(c for c in placed.schema.columns if c.number in sent)
        access = self.access(placed, replace(placed.schema, columns=columns))
        query = dialect_statement(
            "verify", "rows", columns=access.columns_sql, table=relation, where=where, limit=" LIMIT 2"
        )
        stored = session.find_each(query, keys)
        if any(len(found) != 1 for found in stored):
            raise Refusal("the old database would store another key", "SQLITE_MISMATCH")
        texts = list(zip(*(row for (row,) in stored), strict=True))
        for n, column in enumerate(access.layout.columns):
            if _read_texts(access, n, texts[n]) != list(sent[column.number]):
                said = f"{_OTHER_VALUE} {column.name}"
                raise Refusal(said, "SQLITE_MISMATCH", summary=said)


def _read_tables(connection: sqlite3.Connection) -> dict[str, ApplicationTable]:
    """Read the application's tables from the dictionary, by their names."""
    dictionary, columns = SqliteDictionary(connection), defaultdict(list)
    for table, *row in connection.execute(dialect_statement("dictionary", "columns")):
        columns[table].append(row)
    texts = dict(connection.execute(dialect_statement("dictionary", "table_sql")).fetchall())
    names = read_table_names(connection)[0]
    return {name: _build_table(dictionary.read_table(name), columns[name], texts[name]) for name in names}


def _build_table(table: SqliteTable, columns: list[list[Any]], text: str) -> ApplicationTable:
    """Build the description of a table from the dictionary's rows: (cid, name, type, notnull, default, pk, hidden)."""
    alias = {c.name for c in table.schema.columns if c.identity}
    return ApplicationTable(
        table=table,
        declared={name: declared for _, name, declared, *_ in columns},
        defaults={name: default for _, name, _, _, default, *_ in columns if default is not None},
        required=frozenset(row[1] for row in columns if row[3] and row[4] is None and row[1] not in alias),
        generated=frozenset(row[1] for row in columns if row[6]),
        is_counted="autoincrement" in find_names(text),
    )


def _find_rule(table: ApplicationTable, column: Column, *, in_key: bool) -> SqliteValueRule:
    """Return the rule that reads a column, by its declared type or, if it has none, by its type in the stream."""
    name = table.column(column.name)
    if not name:
        raise TargetError(f"{table.table.schema.name} has no column {column.name} in the old database")
    own = declared_type(table.declared[name]) or column.type
    if own.kind is not column.type.kind:
        raise TargetError(f"{table.table.schema.name}.{name} is {table.declared[name]} in the old database")
    return value_rule(replace(column, type=own), in_key=in_key)


def _read_texts(access: FollowerAccess, column: int, stored: Sequence[Any]) -> list[Value]:
    """Return stored values of a column as canonical text. Raises Refusal for a value that cannot be read."""
    try:
        return list(access.canonical_texts(column, stored))
    except SqliteValueError as unfit:
        said = f"{_OTHER_VALUE} {access.layout.columns[column].name}"
        raise Refusal(f"{said}: {unfit}", "SQLITE_MISMATCH", summary=said) from unfit
