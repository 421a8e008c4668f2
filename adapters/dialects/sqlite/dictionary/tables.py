"""SQLite's dictionary: the tables of a file, what identifies a row, and which indexes can remove one.

`SqliteTable` holds everything that capture needs of a table: the schema that travels, and what only this dialect uses
(collations of the key, unique indexes through which REPLACE removes rows, whether there is a rowid).
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice, Patterns, split_by_columns
from venus.adapters.dialects.sqlite import NAMESPACE as NAMESPACE
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.dialects.sqlite.dictionary import structure
from venus.adapters.dialects.sqlite.dictionary.structure import parse_index_condition, parse_index_terms
from venus.adapters.dialects.sqlite.dictionary.types import (
    Affinity,
    affinity,
    content_type,
    declared_type,
    portable_default,
)
from venus.adapters.dialects.sqlite.sql import statement
from venus.model import Column, ForeignKey, LogicalType, TableSchema

InfoRows = list[tuple[Any, ...]]

HEARTBEAT = "venus_heartbeat"
NO_KEY = "no key by which its rows can be distinguished"
#: SQLite's own collations. Its list of collations in use would include the application's.
_COLLATIONS = {"BINARY", "NOCASE", "RTRIM"}
#: Names that address the rowid, unless a column has the same name.
_ROWID_NAMES = ("_rowid_", "rowid", "oid")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteKeyColumn:
    """A column of the key. `exact`: values that compare as equal in SQLite are the same value."""

    name: str
    collation: str  # of the index that makes the key unique; empty for an INTEGER PRIMARY KEY
    exact: bool
    is_own: bool = False  # the collation is the column's own, so SQL need not name it


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueIndex:
    """A unique index. `terms` are SQL over the table's columns, with their collation."""

    name: str
    terms: tuple[str, ...]
    columns: tuple[str, ...]  # empty if a term is an expression
    where: str = ""
    is_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTable:
    """A table as it is in the file at present."""

    schema: TableSchema
    key: tuple[SqliteKeyColumn, ...]  # empty: no usable key
    key_may_be_null: tuple[str, ...]
    unique: tuple[UniqueIndex, ...]
    rowid: str  # a name for the rowid, if there is a rowid that is not the key
    strict: bool
    untyped: tuple[str, ...]  # columns whose type neither declaration nor content determines
    foreign_collations: tuple[str, ...]  # collations of its indexes that only the application defines


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFileObject:
    """An object in the file that is not an ordinary table."""

    name: str
    kind: str


def foreign_collation_message(collation: str) -> str:
    """Return the message about an index whose collation only the application defines."""
    return f"an index is ordered by {collation}, a collation that only the application has"


def pattern_names(name: str) -> tuple[str, str]:
    """Return the names by which a pattern may match a table: with and without `main.`."""
    return name, f"{NAMESPACE}.{name}"


def choose_tables(names: Seq[str], include: Seq[str], exclude: Seq[str]) -> list[str]:
    """Return the names that the patterns choose."""
    included, excluded = Patterns(include), Patterns(exclude)
    return [n for n in names if included.match(*pattern_names(n)) and not excluded.match(*pattern_names(n))]


def read_table_names(connection: sqlite3.Connection) -> tuple[list[str], list[OtherFileObject]]:
    """Return the application's tables, and its other objects."""
    rows = connection.execute(statement("dictionary", "tables")).fetchall()
    own = registry.read_owned_objects(connection)
    application = [row for row in rows if not own.has_object(row[0])]
    names = sorted(name for name, kind, *_ in application if kind == "table")
    return names, [OtherFileObject(name=name, kind=kind) for name, kind, *_ in sorted(application) if kind != "table"]


def read_schema_version(connection: sqlite3.Connection) -> int:
    """Return the number that SQLite raises with every change of the dictionary."""
    return int(connection.execute(statement("dictionary", "schema_version")).fetchone()[0])


class SqliteDictionary:
    """Reader of the dictionary in the transaction that the caller has opened."""

    def __init__(self, connection: sqlite3.Connection, columns: ColumnChoice = NO_CHOICE) -> None:
        self.connection = self._connection = connection
        self._choice = columns
        rows = connection.execute(statement("dictionary", "tables")).fetchall()
        #: The rows of each query, by table or index.
        self._read: dict[str, dict[str, InfoRows]] = {}
        self._flags = {name: (bool(without), bool(strict)) for name, kind, without, strict in rows if kind == "table"}

    def __contains__(self, name: str) -> bool:
        return name in self._flags

    def read_table(self, name: str, known: TableSchema | None = None) -> SqliteTable:
        """Read a table. `known` is its registered version: it supplies numbers, and types that the content decides."""
        without_rowid, strict = self._flags[name]
        info = self._fetch_rows("columns", name)
        left = self._choice.excluded_columns(NAMESPACE, name, ((row[1], row[2]) for row in info))
        gone = frozenset(one.name for one in left)
        primary = [row[1] for row in sorted(info, key=lambda r: r[5]) if row[5]]
        indexes = self._read_unique_indexes(name, primary)
        alias = self._find_rowid_alias(info, primary, without_rowid, indexes)
        key = self._choose_key(name, info, primary, alias, indexes, gone)
        carried = [row for row in info if row[1] not in gone]
        columns, untyped = self._build_columns(name, carried, known, alias)
        schema = TableSchema(
            table_id=known.table_id if known else 0,
            version=known.version if known else 1,
            namespace=NAMESPACE,
            name=name,
            columns=columns,
            key=tuple(k.name for k in key),
            foreign_keys=self._read_foreign_keys(name),
            source_dialect="sqlite",
        )
        schema = self._add_structure(schema, carried)
        if left:
            *_, foreign_keys, more = split_by_columns(gone, (), (), schema.foreign_keys)
            schema = replace(schema, foreign_keys=foreign_keys, left_out=(*schema.left_out, *left, *more))
        enforced = {row[1] for row in info if row[3]} | ({alias} if alias else set())
        nullable = () if without_rowid or strict else tuple(k.name for k in key if k.name not in enforced)
        return SqliteTable(
            schema=schema,
            key=key,
            key_may_be_null=nullable,
            unique=tuple(replace(i, is_key=_is_over_key(i, key)) for i in indexes),
            rowid="" if without_rowid or alias else _free_rowid_name(info),
            strict=strict,
            untyped=untyped,
            foreign_collations=tuple(self._read_foreign_collations(name)),
        )

    def find_obstacle(self, name: str) -> str:
        """Return why the definition of a table prevents its capture, empty if it does not. Reads no rows."""
        without_rowid, _ = self._flags[name]
        info = self._fetch_rows("columns", name)
        gone = frozenset(row[1] for row in info if self._choice.excludes(NAMESPACE, name, row[1]))
        primary = [row[1] for row in sorted(info, key=lambda r: r[5]) if row[5]]
        indexes = self._read_unique_indexes(name, primary)
        alias = self._find_rowid_alias(info, primary, without_rowid, indexes)
        if not self._choose_key(name, info, primary, alias, indexes, gone):
            return NO_KEY
        return next((foreign_collation_message(found) for found in self._read_foreign_collations(name)), "")

    def read_columns(self, name: str) -> list[str]:
        """Return the columns of a table, including those that do not travel."""
        return [row[1] for row in self._fetch_rows("columns", name)]

    def read_declared(self, name: str) -> dict[str, str]:
        """Return the declared type of each column of a table, as its definition spells it."""
        return {row[1]: row[2] for row in self._fetch_rows("columns", name)}

    def _fetch_rows(self, query: str, name: str) -> InfoRows:
        """Return a query's rows about one table or index. The query runs once, for the dictionary of the whole file."""
        if query not in self._read:
            found: dict[str, InfoRows] = defaultdict(list)
            for owner, *row in self._connection.execute(statement("dictionary", query)):
                found[owner].append(tuple(row))
            self._read[query] = dict(found)
        return self._read[query].get(name, [])

    @staticmethod
    def _find_rowid_alias(info: InfoRows, primary: list[str], without_rowid: bool, indexes: list[UniqueIndex]) -> str:
        """Return the name of the INTEGER PRIMARY KEY, the only kind of primary key without an index."""
        if without_rowid or len(primary) != 1 or any(i.columns == (primary[0],) and i.is_key for i in indexes):
            return ""
        declared = next(row[2] for row in info if row[1] == primary[0])
        return primary[0] if declared.upper() == "INTEGER" else ""

    def _choose_key(
        self, table: str, info: InfoRows, primary: list[str], alias: str, indexes: list[UniqueIndex], gone: Set[str]
    ) -> tuple[SqliteKeyColumn, ...]:
        """Return what identifies a row: the primary key, else the first unique index whose columns are NOT NULL."""
        if alias and alias not in gone:
            return (SqliteKeyColumn(name=alias, collation="", exact=True),)
        declared = {row[1]: row[2] for row in info}
        required = {row[1] for row in info if row[3]}
        for index in indexes:
            if not gone.isdisjoint(index.columns):
                continue
            if index.is_key or (not primary and index.columns and not index.where and set(index.columns) <= required):
                own = self._read_own_collations(table, index.columns) if len(index.columns) > 1 else []
                return tuple(
                    SqliteKeyColumn(
                        name=name,
                        collation=collation,
                        exact=_is_exact(declared[name], collation),
                        is_own=own == _index_collations(index),
                    )
                    for name, collation in zip(index.columns, _index_collations(index), strict=True)
                )
        return ()

    def _read_unique_indexes(self, table: str, primary: list[str]) -> list[UniqueIndex]:
        found = []
        for name, origin, partial in self._fetch_rows("unique_indexes", table):
            sql = "".join(text for (text,) in self._fetch_rows("index_sql", name))
            columns = self._fetch_rows("index_columns", name)
            texts = parse_index_terms(sql) if sql else ()
            terms = tuple(
                f"{quote(column)} COLLATE {quote(collation)}" if column is not None else f"({texts[at]})"
                for at, (_, column, collation, _) in enumerate(columns)
            )
            plain = all(column is not None for _, column, *_ in columns)
            found.append(
                UniqueIndex(
                    name=name,
                    terms=terms,
                    columns=tuple(row[1] for row in columns) if plain else (),
                    where=parse_index_condition(sql) if partial else "",
                    is_key=origin == "pk",
                )
            )
        return found

    def _build_columns(
        self, table: str, info: InfoRows, known: TableSchema | None, alias: str
    ) -> tuple[tuple[Column, ...], tuple[str, ...]]:
        numbered = {c.name: c for c in known.columns} if known else {}
        columns, untyped = [], []
        for _, name, declared, notnull, default, _, hidden in info:
            before = numbered.get(name)
            logical = declared_type(declared)
            if logical is None and before is not None and before.source_type == declared:
                logical = before.type
            if logical is None:
                logical = self._read_content_type(table, name)
            if logical is None:
                untyped.append(name)
                continue
            columns.append(
                Column(
                    name=name,
                    number=before.number if before else 0,
                    type=logical,
                    nullable=not notnull and name != alias,
                    source_type=declared,
                    default_sql="" if hidden else portable_default(default, logical),
                    identity=name == alias,
                )
            )
        return tuple(columns), tuple(untyped)

    def _read_own_collations(self, table: str, columns: Seq[str]) -> list[str]:
        """Return the declared collations of the columns, empty texts if they are unknown."""
        ((sql,),) = self._fetch_rows("table_sql", table)
        found = structure.read_collations(table, columns, sql)
        return [found[column] for column in columns]

    def _read_foreign_collations(self, table: str) -> list[str]:
        """Return the collations of the table's indexes that only the application defines."""
        return [row[0] for row in self._fetch_rows("index_collations", table) if row[0].upper() not in _COLLATIONS]

    def _read_content_type(self, table: str, column: str) -> LogicalType | None:
        """Return the logical type of the values in a column; None if they do not form one."""
        query = f"SELECT DISTINCT typeof({quote(column)}) FROM main.{quote(table)}"
        return content_type({row[0] for row in self._connection.execute(query)})

    def _add_structure(self, schema: TableSchema, info: InfoRows) -> TableSchema:
        made = {c.name: c.default_sql for c in schema.columns}
        rows = [
            structure.ColumnRow(name=r[1], default=r[4] or "", hidden=r[6], default_sql=made[r[1]])
            for r in info
            if r[1] in made
        ]
        ((sql,),) = self._fetch_rows("table_sql", schema.name)
        return structure.add_structure(self._fetch_rows, schema, rows, sql)

    def _read_foreign_keys(self, table: str) -> tuple[ForeignKey, ...]:
        parts: dict[int, list[tuple[str, str, str | None]]] = defaultdict(list)
        for number, referred, column, to, *_ in self._fetch_rows("foreign_keys", table):
            parts[number].append((referred, column, to))
        return tuple(self._build_foreign_key(table, number, rows) for number, rows in sorted(parts.items()))

    def _build_foreign_key(self, table: str, number: int, rows: list[tuple[str, str, str | None]]) -> ForeignKey:
        referred = next((n for n in self._flags if n.lower() == rows[0][0].lower()), rows[0][0])
        to = [t for _, _, t in rows if t is not None]
        if not to:  # REFERENCES without columns refers to the primary key
            info = self._fetch_rows("columns", referred)
            to = [row[1] for row in sorted(info, key=lambda r: r[5]) if row[5]]
        return ForeignKey(
            name=f"{table}_fk{number}",
            columns=tuple(column for _, column, _ in rows),
            referred_namespace=NAMESPACE,
            referred_table=referred,
            referred_columns=tuple(to),
        )


def _is_exact(declared: str, collation: str) -> bool:
    """Return whether equal values are identical. Without a declared type 1 equals 1.0; under NOCASE a equals A."""
    return collation == "BINARY" and affinity(declared) is not Affinity.BLOB


def _is_over_key(index: UniqueIndex, key: tuple[SqliteKeyColumn, ...]) -> bool:
    """Return whether rows that collide in this index have the same key; under another collation they may not."""
    same_columns = bool(key) and index.columns == tuple(k.name for k in key)
    return same_columns and all(k.collation in ("", c) for k, c in zip(key, _index_collations(index), strict=True))


def _index_collations(index: UniqueIndex) -> list[str]:
    return [term.rpartition(" COLLATE ")[2].strip('"') for term in index.terms]


def _free_rowid_name(info: InfoRows) -> str:
    """Return a name by which SQL can read the rowid, because no column has it; empty if there is none."""
    taken = {row[1].lower() for row in info}
    return next((name for name in _ROWID_NAMES if name not in taken), "")


def assign_numbers(schema: TableSchema, number_max: int) -> tuple[TableSchema, int]:
    """Assign the next field numbers to columns that have none. A number is never reused."""
    columns = []
    for column in schema.columns:
        number_max += not column.number
        columns.append(column if column.number else replace(column, number=number_max))
    return replace(schema, columns=tuple(columns)), number_max


def keep_renamed_columns(schema: TableSchema, known: Mapping[str, Column], order: tuple[Column, ...]) -> TableSchema:
    """Give a renamed column its old number.

    SQLite appends new columns and closes the gap of a dropped one. If the number of columns is unchanged, an unknown
    name in the position of a missing one is that column, renamed.
    """
    if len(schema.columns) != len(order):
        return schema
    present = {c.name for c in schema.columns}
    columns = [
        replace(now, number=before.number) if now.name not in known and before.name not in present else now
        for now, before in zip(schema.columns, order, strict=True)
    ]
    return replace(schema, columns=tuple(columns))


def log_table_name(table_id: int) -> str:
    """Return the name of a log table."""
    return f"venus_l_{table_id:05}"


def log_key_columns(count: int) -> str:
    """Return the key columns of a log table."""
    return ", ".join(f"k{n}" for n in range(1, count + 1))


def identity_condition(left: str, right: str, key: SqliteKeyColumn) -> str:
    """Return the condition that two values of a key column are identical, not only equal."""
    identical = f"{left} IS {right} COLLATE BINARY"
    return identical if key.exact else f"{identical} AND typeof({left}) = typeof({right})"
