"""PostgreSQL's dictionary as table schemas: columns, keys, indexes, and why a table cannot be captured.

The upper adapter compares the dictionary with the registry every few seconds, so a few queries read any number of
tables. Column numbers are PostgreSQL's own attribute numbers, which are never reused within a table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.column_choice import ColumnChoice, Patterns, find_useless_patterns, split_by_columns
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.postgresql.connection import PostgresConnection, Row
from venus.adapters.dialects.postgresql.dictionary import structure
from venus.adapters.dialects.postgresql.dictionary.structure import PostgresStructure
from venus.adapters.dialects.postgresql.dictionary.types import (
    PgType,
    base_spelling,
    is_identity,
    log_type,
    logical_type,
)
from venus.adapters.dialects.postgresql.sql import OWN_SCHEMA, qualify, statement
from venus.errors import UnsupportedType
from venus.model import Check, Column, ForeignKey, Index, Kind, LeftOut, LogicalType, OwnType, TableSchema

#: Defaults that mean the same in every database. A cast after a literal is dropped.
_LITERAL = re.compile(r"^(-?\d+(?:\.\d+)?|'(?:[^']|'')*'|true|false|NULL)(?:::[\w\s\".\[\](),]+)?$")
#: The text of format_type() for a type that no longer exists.
_UNKNOWN = "???"
_CLOCKS = {"CURRENT_TIMESTAMP": "CURRENT_TIMESTAMP", "now()": "CURRENT_TIMESTAMP", "CURRENT_DATE": "CURRENT_DATE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresKeyColumn:
    """A column of the record id, with the properties that SQL about it needs."""

    name: str
    number: int
    #: The column's type in the dictionary's spelling, and the log's type for it.
    spelled: str
    log_type: str
    collation: str
    #: The equality operator of the index, as "schema.op".
    equals: str
    #: Whether equal values always have the same text.
    identity: bool
    #: SQL for the column as the key's index has it, and for the present value.
    index_name_sql: str
    index_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A partition that holds rows."""

    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTable:
    """A table as it is in the dictionary at present."""

    oid: int
    namespace: str
    name: str
    kind: str
    unlogged: bool
    #: Whether it needs row triggers. Statement triggers of a partitioned table, or of a member of an inheritance tree,
    #: miss some of its rows or see rows of other tables.
    per_row: bool
    #: Whether to exclude the rows of child tables, which do not belong to this table.
    from_only: bool
    row_security: bool
    rows_estimate: int
    comment: str
    columns: tuple[Column, ...]
    key: tuple[PostgresKeyColumn, ...]
    key_choices: tuple[str, ...]
    indexes: tuple[Index, ...]
    foreign_keys: tuple[ForeignKey, ...]
    leaves: tuple[Leaf, ...]
    #: (column, why) of columns that cannot be carried.
    unsupported: tuple[tuple[str, str], ...]
    signature: str
    checks: tuple[Check, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    types: tuple[OwnType, ...] = ()

    @property
    def name_sql(self) -> str:
        """The quoted name."""
        return qualify(self.namespace, self.name)

    @property
    def from_sql(self) -> str:
        """The table as FROM names it: with ONLY if it inherits or has children, whose rows are not its own."""
        return f"ONLY {self.name_sql}" if self.from_only else self.name_sql

    @property
    def has_identity_key(self) -> bool:
        """Whether equal keys always have the same text."""
        return all(k.identity for k in self.key)

    @property
    def number_max(self) -> int:
        """The highest column number in use."""
        return max((c.number for c in self.columns), default=0)

    def to_schema(self, table_id: int, version: int) -> TableSchema:
        """Return this description as a version of a registered table."""
        return TableSchema(
            table_id=table_id,
            version=version,
            namespace=self.namespace,
            name=self.name,
            columns=self.columns,
            key=tuple(k.name for k in self.key),
            indexes=self.indexes,
            foreign_keys=self.foreign_keys,
            comment=self.comment,
            source_dialect="postgresql",
            checks=self.checks,
            left_out=self.left_out,
            types=self.types,
        )


@dataclass(slots=True)
class _Details:
    """Results of the detail queries for one table."""

    columns: list[Row] = field(default_factory=list)
    indexes: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    foreign_keys: list[Row] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    signature: str = ""
    #: Unique indexes that would identify a row if one of their columns were not excluded.
    excluded_keys: list[str] = field(default_factory=list)


def choose_tables(rows: Iterable[Row], include: Sequence[str], exclude: Sequence[str]) -> list[Row]:
    """Return the tables that the patterns choose: schema.table with wildcards; without a dot the schema is public."""
    included, excluded = Patterns(map(_normalise_pattern, include)), Patterns(map(_normalise_pattern, exclude))
    return [
        r for r in application_tables(rows) if included.match(name := _qualified_name(r)) and not excluded.match(name)
    ]


def application_tables(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without those of VENUS's own tables."""
    return [r for r in rows if r[1] != OWN_SCHEMA]


def find_unmatched_patterns(rows: Iterable[Row], patterns: Sequence[str]) -> list[str]:
    """Return the patterns that choose no table, most likely because of a misspelling."""
    return find_useless_patterns(
        patterns, ((_qualified_name(r),) for r in application_tables(rows)), normalise=_normalise_pattern
    )


def _qualified_name(row: Row) -> str:
    return f"{row[1]}.{row[2]}"


def _normalise_pattern(pattern: str) -> str:
    return pattern if "." in pattern else f"public.{pattern}"


def read_all_tables(connection: PostgresConnection) -> list[Row]:
    """Read a row for each table of the database."""
    return connection.rows(statement("dictionary", "tables"))


def read_tables(connection: PostgresConnection, rows: Sequence[Row]) -> list[PostgresTable]:
    """Read the tables of these rows of `read_all_tables`, except those that have been dropped since.

    Raises SchemaChanged if a column or its type has been dropped since.
    """
    oids = {"tables": [r[0] for r in rows]}
    details: dict[int, _Details] = defaultdict(_Details)
    types = _read_types(connection, oids["tables"])
    for r in connection.rows(statement("dictionary", "columns"), oids):
        details[r[0]].columns.append(r)
    for r in connection.rows(statement("dictionary", "indexes"), oids):
        details[r[0]].indexes[r[1]].append(r)
    for r in connection.rows(statement("dictionary", "foreign_keys"), oids):
        details[r[0]].foreign_keys.append(r)
    for root, oid, namespace, name in connection.rows(statement("dictionary", "partitions"), oids):
        details[root].leaves.append(Leaf(oid=oid, namespace=namespace, name=name))
    for oid, _, _, signature in connection.rows(statement("dictionary", "signatures"), oids):
        details[oid].signature = signature
    more = dict(structure.read_structure(connection, oids["tables"]))
    try:
        own = structure.read_own_types(connection, oids["tables"], types)
        dropped = {oid for (oid,) in connection.rows(statement("dictionary", "dropped"), oids)}
        tables = _build_tables(connection.columns, [r for r in rows if r[0] not in dropped], details, types, more, own)
    except KeyError as error:  # outside of a snapshot, each query may read a newer dictionary than the one before
        raise SchemaChanged(f"source {connection.place}: a table was altered while the dictionary was read") from error
    if any(name.startswith(_UNKNOWN) for table in tables for name in _type_names(table)):
        raise SchemaChanged(f"source {connection.place}: a type was dropped while the dictionary was read")
    return tables


def _read_types(connection: PostgresConnection, oids: Sequence[int]) -> dict[int, PgType]:
    return {
        r[0]: PgType(
            oid=r[0],
            namespace=r[1],
            name=r[2],
            sort=r[3],
            base=r[4],
            base_modifier=r[5],
            base_spelled=r[6],
            element=r[7],
            is_array=r[8],
            extension=r[9],
        )
        for r in connection.rows(statement("dictionary", "types"), {"tables": list(oids)})
    }


def _type_names(table: PostgresTable) -> Iterator[str]:
    yield from (column.source_type for column in table.columns)
    for own in table.types:
        yield own.sql_name
        yield own.base_sql_name


def _build_tables(
    choice: ColumnChoice,
    rows: Sequence[Row],
    details: dict[int, _Details],
    types: dict[int, PgType],
    more: dict[int, PostgresStructure],
    own: Mapping[int, structure.UsedType],
) -> list[PostgresTable]:
    excluded = {r[0]: _leave_out(choice, r, details[r[0]]) for r in rows}
    for r in rows:
        of_one = more.setdefault(r[0], PostgresStructure())
        of_one.left_out.extend(structure.find_uncarried_columns(details[r[0]].columns, own, types))
    needed = {r[0]: structure.used_types(details[r[0]].columns, own, types) for r in rows}
    tables = [_build_table(r, details[r[0]], types, more[r[0]], needed[r[0]]) for r in rows]
    return [_without_columns(table, excluded[table.oid]) if excluded[table.oid] else table for table in tables]


def _leave_out(choice: ColumnChoice, row: Row, details: _Details) -> tuple[LeftOut, ...]:
    """Remove excluded columns, and the indexes over them, from the details; return the excluded columns."""
    left = choice.excluded_columns(row[1], row[2], ((c[2], c[5]) for c in details.columns))
    if left:
        names = {one.name for one in left}
        gone = {c[1]: c[2] for c in details.columns if c[2] in names}
        details.columns = [c for c in details.columns if c[2] not in names]
        lost = {oid for oid, index in details.indexes.items() if any(r[9] in gone for r in index)}
        details.excluded_keys = [
            f"{details.indexes[oid][0][2]}, if {', '.join(gone[r[9]] for r in details.indexes[oid] if r[9] in gone)}"
            " were not excluded in [source.columns]"
            for oid in sorted(lost)
            if details.indexes[oid][0][4]
        ]
        details.indexes = {oid: index for oid, index in details.indexes.items() if oid not in lost}
    return left


def _without_columns(table: PostgresTable, left: Sequence[LeftOut]) -> PostgresTable:
    gone = frozenset(one.name for one in left)
    indexes, checks, keys, more = split_by_columns(gone, table.indexes, table.checks, table.foreign_keys)
    return replace(table, indexes=indexes, checks=checks, foreign_keys=keys, left_out=(*table.left_out, *left, *more))


def _build_table(
    row: Row, details: _Details, types: dict[int, PgType], more: PostgresStructure, own: Sequence[structure.UsedType]
) -> PostgresTable:
    oid, namespace, name, kind, persistence, has_children, inherits, security, estimate, comment, _ = row
    columns, unsupported = _build_columns(details, types)
    carried = more.with_defaults(columns)
    by_number = {c[1]: c for c in details.columns}
    candidates = [i for i in details.indexes.values() if _is_key_candidate(i, by_number)]
    key = _build_key(min(candidates, key=_key_preference), by_number, types) if candidates else ()
    in_tree = kind != "p" and (has_children or inherits)
    return PostgresTable(
        oid=oid,
        namespace=namespace,
        name=name,
        kind=kind,
        unlogged=persistence == "u",
        per_row=kind == "p" or in_tree,
        from_only=in_tree,
        row_security=security,
        rows_estimate=estimate,
        comment=comment,
        columns=carried,
        key=key,
        key_choices=(
            *sorted(_describe_key_candidate(i, by_number) for i in details.indexes.values() if _is_near_candidate(i)),
            *details.excluded_keys,
        ),
        indexes=tuple(i for i in more.indexes if i.definition or i.columns != tuple(k.name for k in key)),
        foreign_keys=more.enforced_foreign_keys(map(_build_foreign_key, details.foreign_keys)),
        checks=tuple(more.checks),
        left_out=(
            *structure.columns_left_out(more, details.columns, carried, partitioned=kind == "p"),
            *(left for found in own for left in found.left_out),
        ),
        types=tuple(found.type for found in own),
        leaves=tuple(details.leaves),
        unsupported=tuple(unsupported),
        signature=details.signature,
    )


def _build_columns(details: _Details, types: dict[int, PgType]) -> tuple[list[Column], list[tuple[str, str]]]:
    """Return the columns that can be carried, and the reasons why the others cannot."""
    columns, unsupported = [], []
    for c in details.columns:
        try:
            columns.append(_build_column(c, types))
        except UnsupportedType as error:
            unsupported.append((c[2], str(error)))
    return columns, unsupported


def _build_foreign_key(row: Row) -> ForeignKey:
    _, name, referred_namespace, referred_table, columns, referred_columns = row[:6]
    return ForeignKey(
        name=name,
        columns=tuple(columns),
        referred_namespace=referred_namespace,
        referred_table=referred_table,
        referred_columns=tuple(referred_columns),
    )


def _build_column(row: Row, types: dict[int, PgType]) -> Column:
    _, number, name, type_oid, modifier, spelled, not_null, identity, generated, default, comment, _, _ = row
    return Column(
        name=name,
        number=number,
        type=logical_type(type_oid, modifier, spelled, types),
        nullable=not not_null,
        source_type=spelled,
        default_sql="" if generated else portable_default(default),
        identity=identity != "" or (default.startswith("nextval(") and generated == ""),
        comment=comment,
    )


def portable_default(expression: str) -> str:
    """Return the default as standard SQL, empty if it has no portable form."""
    if found := _LITERAL.match(expression):
        return "" if found[1] == "NULL" else found[1]
    return _CLOCKS.get(expression, "")


def _is_usable(index: list[Row]) -> bool:
    """Return whether the index is valid, not partial, and a b-tree over plain columns."""
    return all(r[5] and r[6] and r[9] > 0 and r[10] for r in index)


def _is_key_candidate(index: list[Row], columns: dict[int, Row]) -> bool:
    """Return whether the index identifies every row."""
    primary, unique = index[0][3], index[0][4]
    # a deferrable primary key is unique in every committed state
    total = all(r[6] and r[9] > 0 and r[10] for r in index)
    return (primary and total) or (unique and _is_usable(index) and all(columns[r[9]][6] for r in index))


def _is_near_candidate(index: list[Row]) -> bool:
    """Return whether the index would identify rows if its columns were NOT NULL."""
    return bool(index[0][4]) and _is_usable(index)


def _key_preference(index: list[Row]) -> tuple[bool, bool, int, int]:
    """Return a sort key that puts the best index to identify rows first."""
    return (not index[0][3], not index[0][7], len(index), index[0][1])


def _build_key(index: list[Row], columns: dict[int, Row], types: dict[int, PgType]) -> tuple[PostgresKeyColumn, ...]:
    key = []
    for r in index:
        _, number, name, type_oid, modifier, spelled, *_, deterministic, collation = columns[r[9]]
        key.append(
            PostgresKeyColumn(
                name=name,
                number=number,
                spelled=spelled,
                log_type=log_type(base_spelling(type_oid, spelled, types)),
                collation=collation,
                equals=r[10],
                identity=is_identity(type_oid, modifier, types, deterministic=deterministic),
                index_name_sql=f"pg_get_indexdef({r[1]}, {r[8]}, false)",
                index_name=r[11],
            )
        )
    return tuple(key)


def _describe_key_candidate(index: list[Row], columns: dict[int, Row]) -> str:
    nullable = [columns[r[9]][2] for r in index if not columns[r[9]][6]]
    names = ", ".join(columns[r[9]][2] for r in index)
    return f"unique index {index[0][2]} ({names}) if {', '.join(nullable)} were NOT NULL" if nullable else names


#: The heartbeat table, which is captured like any other. A plan needs it before the table exists.
HEARTBEAT = PostgresTable(
    oid=0,
    namespace=OWN_SCHEMA,
    name="heartbeat",
    kind="r",
    unlogged=False,
    per_row=False,
    from_only=False,
    row_security=False,
    rows_estimate=0,
    comment="",
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=4), nullable=False, source_type="integer"),
        Column(
            name="beat_at", number=2, type=LogicalType(kind=Kind.INT, length=8), nullable=False, source_type="bigint"
        ),
    ),
    key=(
        PostgresKeyColumn(
            name="id",
            number=1,
            spelled="integer",
            log_type="bigint",
            collation="",
            equals="pg_catalog.=",
            identity=True,
            index_name_sql="",
            index_name="",
        ),
    ),
    key_choices=(),
    indexes=(),
    foreign_keys=(),
    leaves=(),
    unsupported=(),
    signature="",
)
