"""Turns a table's schema into PostgreSQL statements. Pure: no database is asked (VENUS 3.4).

The order is that of a full load: bare tables first, then (after the rows) keys, indexes, checks and foreign keys,
because building an index once is cheaper than keeping it up row by row. Foreign keys carry no actions while VENUS
applies: the source has executed them, and their effects arrive as changes of their own. The cut-over adds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, Placed, fitted, literal, place_all, quoted
from venus.config import Settings
from venus.errors import UnsupportedType
from venus.model import Check, Column, ForeignKey, Index, Kind, LogicalType, OwnType, TableSchema

NOTHING: Mapping[str, str] = MappingProxyType({})
_PLAIN = {
    Kind.BYTES: "bytea",
    Kind.BOOL: "boolean",
    Kind.DATE: "date",
    Kind.INTERVAL: "interval",
    Kind.UUID: "uuid",
}
_FRACTION_MAX = 6
_INT = {2: "smallint", 4: "integer", 8: "bigint"}
_FLOAT = {4: "real", 8: "double precision"}
_TEMPORAL = {
    Kind.TIME: ("time", " without time zone"),
    Kind.TIMETZ: ("time", " with time zone"),
    Kind.TIMESTAMP: ("timestamp", " without time zone"),
    Kind.TIMESTAMPTZ: ("timestamp", " with time zone"),
}


def ddl(schemas: Iterable[TableSchema], settings: Settings, name: str) -> list[str]:
    """Return everything that creates these tables at target `name`, in the order in which it is run."""
    return [statement for _, part in sections(place_all(schemas, settings, name)) for statement in part]


def sections(placed: Sequence[Placed]) -> list[tuple[str, list[str]]]:
    """Return (title, statements) of each part, in the order in which they are run; no part is empty."""
    names = Names(placed)
    parts = [
        ("Schemas", namespaces(placed)),
        ("Types", [create_type(one, own) for one, own in own_types(placed)]),
        ("Tables", [s for one in placed for s in create_table(one)]),
        ("Keys", [add_key(one) for one in placed]),
        ("Indexes and unique constraints", [s for one in placed for s in indexes(one, names)]),
        ("Checks", [s for one in placed for pair in checks(one, names) for s in pair]),
        ("Foreign keys; their actions have been executed at the source as long as VENUS applies",
         [s for one in placed for pair in foreign_keys(one, placed, names) for s in pair]),
    ]  # fmt: skip
    return [part for part in parts if part[1]]


def type_sql(kind: LogicalType, own: Mapping[str, str] = NOTHING) -> str:
    """Spell a logical type the way format_type() does, so that it can be compared with a dictionary.

    `own`: what the application's own types are called here (`Placed.type_names`).
    """
    if plain := _PLAIN.get(kind.kind):
        return plain
    if temporal := _TEMPORAL.get(kind.kind):
        word, zone = temporal
        # 0 may mean "not said": the wider type never loses a digit.
        return f"{word}({kind.precision}){zone}" if 0 < kind.precision < _FRACTION_MAX else f"{word}{zone}"
    return _sized_type(kind, own)


def _sized_type(kind: LogicalType, own: Mapping[str, str]) -> str:
    match kind.kind:
        case Kind.INT:
            return _INT.get(kind.length, "bigint")
        case Kind.FLOAT:
            return _FLOAT.get(kind.length, "double precision")
        case Kind.DECIMAL:
            return f"numeric({kind.precision},{kind.scale})" if kind.precision else "numeric"
        case Kind.TEXT:
            return f"character varying({kind.length})" if kind.length else "text"
        case Kind.CHAR:
            return f"character({max(kind.length, 1)})"
        case Kind.JSON:
            return "jsonb" if kind.name == "jsonb" else "json"
        case Kind.ARRAY:
            return f"{type_sql(kind.element, own)}[]" if kind.element else "text[]"
        case Kind.NATIVE:
            return own.get(kind.name, kind.name)
    raise UnsupportedType(f"no PostgreSQL type for {kind}")


def column_type(placed: Placed, column: Column) -> str:
    """Return the type of a column here: a domain of the application's by its name, everything else by what it is."""
    return own_or_plain(placed, column.source_type, column.type)


def own_or_plain(placed: Placed, source_type: str, kind: LogicalType) -> str:
    """Return a domain's name here, if that is what the source has spelled, or an array of it; else the plain type."""
    spelled = source_type.removesuffix("[]")
    if spelled in {own.spelled for own in placed.schema.types if own.base is not None}:
        return placed.type_names[spelled] + source_type[len(spelled) :]
    return type_sql(kind, placed.type_names)


def namespaces(placed: Sequence[Placed]) -> list[str]:
    """Return the schemas to make; a name used by nobody is not made."""
    wanted = dict.fromkeys(one.namespace for one in placed)
    wanted |= dict.fromkeys(one.type_place(own)[0] for one in placed for own in one.schema.types)
    return [f"CREATE SCHEMA IF NOT EXISTS {quoted(name)}" for name in wanted]


def own_types(placed: Sequence[Placed]) -> list[tuple[Placed, OwnType]]:
    """Return each own type of these tables once, behind what it stands on, with a table that uses it."""
    found: dict[str, tuple[Placed, OwnType]] = {}
    for one in placed:
        for own in one.schema.types:
            known = found.get(own.spelled)
            if known is None or len(known[1].labels) < len(own.labels):  # a table's version may be older
                found[own.spelled] = (one, own)
    return list(found.values())


def create_type(placed: Placed, own: OwnType) -> str:
    """Return the statement that makes an enum or a domain."""
    name = placed.type_name(own)
    if own.base is None:
        return f"CREATE TYPE {name} AS ENUM ({', '.join(map(literal, own.labels))})"
    parts = [f"CREATE DOMAIN {name} AS {own_or_plain(placed, own.base_spelled, own.base)}"]
    if own.default_sql:
        parts.append(f"DEFAULT {placed.rewritten(own.default_sql)}")
    if own.not_null:
        parts.append("NOT NULL")
    parts += [f"CONSTRAINT {quoted(check.name)} CHECK ({placed.rewritten(check.sql)})" for check in own.checks]
    return " ".join(parts)


def create_table(placed: Placed) -> list[str]:
    """Return the bare table and its comments."""
    schema = placed.schema
    lines = [f"    {column_sql(placed, column)}" for column in schema.columns]
    statements = [s for column in schema.columns for s in counter_before(placed, column)]
    statements.append(f"CREATE TABLE {placed.sql} (\n" + ",\n".join(lines) + "\n)")
    statements += [s for column in schema.columns for s in counter_after(placed, column)]
    if schema.comment:
        statements.append(f"COMMENT ON TABLE {placed.sql} IS {literal(schema.comment)}")
    statements += [
        f"COMMENT ON COLUMN {placed.sql}.{placed.column(c.name)} IS {literal(c.comment)}"
        for c in schema.columns
        if c.comment
    ]
    return statements


def column_sql(placed: Placed, column: Column) -> str:
    """Return one column of a CREATE TABLE."""
    parts = [placed.column(column.name), column_type(placed, column)]
    if is_identity(column):
        parts.append("GENERATED BY DEFAULT AS IDENTITY")
    elif is_counted(column):
        parts.append(f"DEFAULT nextval({literal(counter(placed, column))}::regclass)")
    elif column.default_sql:
        parts.append(f"DEFAULT {column.default_sql}")
    if not column.nullable or column.name in placed.schema.key:
        parts.append("NOT NULL")
    return " ".join(parts)


def is_identity(column: Column) -> bool:
    """Whether the target numbers it too, as PostgreSQL does for integers."""
    return column.identity and column.type.kind is Kind.INT


def is_counted(column: Column) -> bool:
    """Whether the target numbers it by a sequence of its own: whole numbers wider than PostgreSQL's integers."""
    return column.identity and column.type.kind is Kind.DECIMAL and column.type.scale <= 0


def counter(placed: Placed, column: Column) -> str:
    """Return the name of that sequence, ready for a statement."""
    return f"{quoted(placed.namespace)}.{quoted(fitted(f'{placed.name}_{placed.fold(column.name)}_seq'))}"


def counter_before(placed: Placed, column: Column) -> list[str]:
    """Return what a column needs before it is there."""
    return [f"CREATE SEQUENCE {counter(placed, column)}"] if is_counted(column) else []


def counter_after(placed: Placed, column: Column) -> list[str]:
    """Return what a column needs once it is there."""
    if not is_counted(column):
        return []
    return [f"ALTER SEQUENCE {counter(placed, column)} OWNED BY {placed.sql}.{placed.column(column.name)}"]


def add_key(placed: Placed) -> str:
    """Return the primary key: the key of capture, whatever the source calls it."""
    return f"ALTER TABLE {placed.sql} ADD PRIMARY KEY ({placed.key})"


class Names:
    """Hands out names of indexes and constraints; relations of one PostgreSQL schema share a name space."""

    def __init__(self, placed: Iterable[Placed]) -> None:
        self._taken: set[tuple[str, str]] = set()
        for one in placed:
            self._taken |= {(one.namespace, one.name), (one.namespace, f"{one.name}_pkey")}

    def take(self, placed: Placed, wanted: str, parts: Sequence[str], suffix: str, *, local: bool = False) -> str:
        """Return the source's own name if it is free, else one made of table and columns.

        `local` = it shares its name space with the constraints of its table only.
        """
        space = f"{placed.namespace}.{placed.name}" if local else placed.namespace
        name = placed.fold(wanted)
        if not name or name.startswith("sqlite_"):
            name = fitted("_".join((placed.name, *parts, suffix)))
        number = 1
        while (space, name) in self._taken:
            number += 1
            name = fitted("_".join((placed.name, *parts, f"{suffix}{number}")))
        self._taken.add((space, name))
        return name


def indexes(placed: Placed, names: Names) -> list[str]:
    """Return the secondary indexes and unique constraints."""
    return [
        _index_sql(placed, index, names)
        for index in placed.schema.indexes
        if index.definition or index.columns != placed.schema.key
    ]


def _index_sql(placed: Placed, index: Index, names: Names) -> str:
    name = quoted(names.take(placed, index.name, index.columns, "key" if index.unique else "idx"))
    if index.constraint:
        return f"ALTER TABLE {placed.sql} ADD CONSTRAINT {name} UNIQUE ({placed.columns(index.columns)})"
    terms = placed.rewritten(index.definition) or f"({placed.columns(index.columns)})"
    return f"CREATE {'UNIQUE ' if index.unique else ''}INDEX {name} ON {placed.sql} {terms}"


def checks(placed: Placed, names: Names) -> list[tuple[str, str]]:
    """Return (add, validate) for each check constraint."""
    return [_check_sql(placed, check, names) for check in placed.schema.checks]


def _check_sql(placed: Placed, check: Check, names: Names) -> tuple[str, str]:
    name = quoted(names.take(placed, check.name, (), "check", local=True))
    add = f"ALTER TABLE {placed.sql} ADD CONSTRAINT {name} CHECK ({placed.rewritten(check.sql)}) NOT VALID"
    return add, f"ALTER TABLE {placed.sql} VALIDATE CONSTRAINT {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key whose two ends are at this target."""

    placed: Placed
    referred: Placed
    key: ForeignKey
    name: str

    def add(self, *, acting: bool) -> str:
        """Return the statement that adds it, not valid yet; `acting` = with the source's actions."""
        actions = ""
        if acting:
            actions += f" ON DELETE {self.key.on_delete}" if self.key.on_delete else ""
            actions += f" ON UPDATE {self.key.on_update}" if self.key.on_update else ""
        columns = self.referred.columns(self.key.referred_columns or self.referred.schema.key)
        return (
            f"ALTER TABLE {self.placed.sql} ADD CONSTRAINT {quoted(self.name)} FOREIGN KEY "
            f"({self.placed.columns(self.key.columns)}) REFERENCES {self.referred.sql} ({columns}){actions} "
            "DEFERRABLE INITIALLY IMMEDIATE NOT VALID"
        )

    @property
    def validate(self) -> str:
        """The statement that checks every row of it."""
        return f"ALTER TABLE {self.placed.sql} VALIDATE CONSTRAINT {quoted(self.name)}"

    @property
    def drop(self) -> str:
        """The statement that removes it, if it is there."""
        return f"ALTER TABLE {self.placed.sql} DROP CONSTRAINT IF EXISTS {quoted(self.name)}"


def references(placed: Placed, everything: Sequence[Placed], names: Names) -> list[Reference]:
    """Return the foreign keys whose other end is at this target."""
    by_name = {(one.schema.namespace, one.schema.name): one for one in everything}
    found = [(fk, by_name.get((fk.referred_namespace, fk.referred_table))) for fk in placed.schema.foreign_keys]
    return [
        Reference(placed=placed, referred=other, key=fk, name=names.take(placed, fk.name, fk.columns, "fkey"))
        for fk, other in found
        if other is not None
    ]


def foreign_keys(placed: Placed, everything: Sequence[Placed], names: Names) -> list[tuple[str, str]]:
    """Return (add, validate) for each of them, as it is while VENUS applies."""
    return [(r.add(acting=False), r.validate) for r in references(placed, everything, names)]


__all__ = [
    "OWN_SCHEMA", "Names", "Reference", "add_key", "checks", "create_table", "ddl", "foreign_keys", "indexes",
    "namespaces", "references", "sections", "type_sql",
]  # fmt: skip
