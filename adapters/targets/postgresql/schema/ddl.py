"""PostgreSQL types and bare tables for a table's schema, and the whole DDL of a target as a file (VENUS 3.4). Pure.

A DBA can read the DDL file, and psql can run it. `venus migrate` runs the same statements in the same order, and loads
the rows between the first and the second part. The file starts with a list of everything that it does *not* create, so
no object of the source is dropped silently. Keys, indexes, checks and foreign keys are in constraints.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.targets.postgresql.naming import PlacedTable, place_all, quote, quote_literal, shorten_name
from venus.adapters.targets.postgresql.schema.constraints import (
    ConstraintNames,
    add_key,
    check_statements,
    foreign_key_statements,
    index_statements,
    placed_foreign_keys,
)
from venus.adapters.targets.postgresql.session import statement
from venus.config import Settings
from venus.errors import UnsupportedType
from venus.model import Check, Column, Kind, LogicalType, OwnType, TableSchema

NOTHING: Mapping[str, str] = MappingProxyType({})
_PLAIN = {Kind.BYTES: "bytea", Kind.BOOL: "boolean", Kind.DATE: "date", Kind.INTERVAL: "interval", Kind.UUID: "uuid"}
_FRACTION_MAX = 6
_INT = {2: "smallint", 4: "integer", 8: "bigint"}
_FLOAT = {4: "real", 8: "double precision"}
_TEMPORAL = {
    Kind.TIME: ("time", " without time zone"),
    Kind.TIMETZ: ("time", " with time zone"),
    Kind.TIMESTAMP: ("timestamp", " without time zone"),
    Kind.TIMESTAMPTZ: ("timestamp", " with time zone"),
}


def type_sql(kind: LogicalType, own: Mapping[str, str] = NOTHING) -> str:
    """Return a logical type as format_type() writes it, so that it can be compared with the dictionary.

    `own` maps the application's own types to their names at the target (`PlacedTable.type_names`).
    """
    if plain := _PLAIN.get(kind.kind):
        return plain
    if temporal := _TEMPORAL.get(kind.kind):
        word, zone = temporal
        # 0 may mean unspecified, and the widest type never loses a digit
        return f"{word}({kind.precision}){zone}" if 0 < kind.precision < _FRACTION_MAX else f"{word}{zone}"
    return _sized_type(kind, own)


def _sized_type(kind: LogicalType, own: Mapping[str, str]) -> str:
    """Return the PostgreSQL type of a logical type that has a length, a precision, an element or a name."""
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


def column_type(placed: PlacedTable, column: Column) -> str:
    """Return the type of a column at the target: a domain by its name, any other type by its definition."""
    return _with_whole_seconds(declared_type(placed, column.source_type, column.type), column.source_type)


def _with_whole_seconds(spelled: str, source_type: str) -> str:
    """Return a type of time with precision 0 if the source declares it so.

    The logical type's precision 0 is ambiguous: it also stands for a type without a declared precision.
    """
    word, space, zone = spelled.partition(" ")
    declared = f"{word}(0){space}{zone}"
    return declared if source_type == declared else spelled


def has_type(placed: PlacedTable, column: Column, spelled: str) -> bool:
    """Return whether a type, as the dictionary spells it, can hold all values of a column."""
    # the base type of a domain can hold all its values
    accepted = (column_type(placed, column), type_sql(column.type, placed.type_names))
    return without_quotes(spelled) in map(without_quotes, accepted)


def without_quotes(spelled: str) -> str:
    """Return a type without the quotes of its name, which differ between source and dictionary."""
    return spelled.replace('"', "")


def declared_type(placed: PlacedTable, source_type: str, kind: LogicalType) -> str:
    """Return the target's name of the type if it is a domain, or an array of one; otherwise the plain type."""
    spelled = source_type.removesuffix("[]")
    if spelled in {own.sql_name for own in placed.schema.types if own.base is not None}:
        return placed.type_names[spelled] + source_type[len(spelled) :]
    return type_sql(kind, placed.type_names)


def create_schemas(placed: Sequence[PlacedTable]) -> list[str]:
    """Return the statements that create the schemas in use."""
    wanted = dict.fromkeys(one.namespace for one in placed)
    wanted |= dict.fromkeys(one.type_place(own)[0] for one in placed for own in one.schema.types)
    return [f"CREATE SCHEMA IF NOT EXISTS {quote(name)}" for name in wanted]


def list_own_types(placed: Sequence[PlacedTable]) -> list[tuple[PlacedTable, OwnType]]:
    """Return each enum and domain of these tables once, after the types that it needs, with a table that uses it."""
    found: dict[str, tuple[PlacedTable, OwnType]] = {}
    for one in placed:
        for own in one.schema.types:
            known = found.get(own.sql_name)
            if known is None or len(known[1].labels) < len(own.labels):  # an older version has fewer labels
                found[own.sql_name] = (one, own)
    return list(found.values())


def create_type(placed: PlacedTable, own: OwnType) -> str:
    """Return the statement that creates an enum or a domain, without the checks that older values may violate."""
    name = placed.type_name(own)
    if own.base is None:
        return f"CREATE TYPE {name} AS ENUM ({', '.join(map(quote_literal, own.labels))})"
    parts = [f"CREATE DOMAIN {name} AS {declared_type(placed, own.base_sql_name, own.base)}"]
    if own.default_sql:
        parts.append(f"DEFAULT {placed.rewrite(own.default_sql)}")
    if own.not_null:
        parts.append("NOT NULL")
    parts += [f"CONSTRAINT {quote(check.name)} CHECK ({placed.rewrite(check.sql)})" for check in valid_checks(own)]
    return " ".join(parts)


def valid_checks(own: OwnType) -> list[Check]:
    """Return the checks of a domain that all values at the source satisfy; the target must not enforce the others."""
    return [check for check in own.checks if not check.not_valid]


def later_checks(placed: Sequence[PlacedTable]) -> Iterator[tuple[str, str]]:
    """Yield (drop, add) for each check of a domain that older values may violate; the cut-over adds it."""
    for one, own in list_own_types(placed):
        for check in own.checks:
            if check.not_valid:
                domain, name = one.type_name(own), quote(check.name)
                yield (
                    f"ALTER DOMAIN {domain} DROP CONSTRAINT IF EXISTS {name}",
                    f"ALTER DOMAIN {domain} ADD CONSTRAINT {name} CHECK ({one.rewrite(check.sql)}) NOT VALID",
                )


def create_table(placed: PlacedTable) -> list[str]:
    """Return the statements for the bare table and its comments."""
    schema = placed.schema
    lines = [f"    {column_sql(placed, column)}" for column in schema.columns]
    statements = [s for column in schema.columns for s in statements_before_column(placed, column)]
    statements.append(f"CREATE TABLE {placed.sql} (\n" + ",\n".join(lines) + "\n)")
    statements += [s for column in schema.columns for s in statements_after_column(placed, column)]
    if schema.comment:
        statements.append(f"COMMENT ON TABLE {placed.sql} IS {quote_literal(schema.comment)}")
    statements += [
        f"COMMENT ON COLUMN {placed.sql}.{placed.column(c.name)} IS {quote_literal(c.comment)}"
        for c in schema.columns
        if c.comment
    ]
    return statements


def column_sql(placed: PlacedTable, column: Column) -> str:
    """Return one column of a CREATE TABLE."""
    parts = [placed.column(column.name), column_type(placed, column)]
    if is_identity(placed, column):
        parts.append("GENERATED BY DEFAULT AS IDENTITY")
    elif is_counted(placed, column):
        parts.append(f"DEFAULT {counted_default(placed, column)}")
    elif column.default_sql:
        parts.append(f"DEFAULT {column.default_sql}")
    if is_required(placed, column):
        parts.append("NOT NULL")
    return " ".join(parts)


def is_required(placed: PlacedTable, column: Column) -> bool:
    """Return whether the column is NOT NULL at the target."""
    return not column.nullable or column.name in placed.schema.key


def is_identity(placed: PlacedTable, column: Column) -> bool:
    """Return whether the column is an identity here; PostgreSQL requires an integer that is NOT NULL."""
    return column.identity and column.type.kind is Kind.INT and is_required(placed, column)


def is_counted(placed: PlacedTable, column: Column) -> bool:
    """Return whether an identity column gets a sequence instead: it is a DECIMAL, or may be NULL."""
    if column.type.kind is Kind.INT:
        return column.identity and not is_required(placed, column)
    return column.identity and column.type.kind is Kind.DECIMAL and column.type.scale <= 0


def sequence_name(placed: PlacedTable, column: Column) -> str:
    """Return the quoted name of a column's own sequence (`is_counted`)."""
    return f"{quote(placed.namespace)}.{quote(shorten_name(f'{placed.name}_{placed.fold(column.name)}_seq'))}"


def counted_default(placed: PlacedTable, column: Column) -> str:
    """Return the default that draws a number from the column's own sequence."""
    return f"nextval({quote_literal(sequence_name(placed, column))}::regclass)"


def no_identity(placed: PlacedTable, column: Column) -> str:
    """Return the statement that replaces an identity, if it exists, by a sequence, so that the column may be NULL."""
    return statement(
        "dictionary",
        "no_identity",
        table_name=quote_literal(placed.sql),
        table=placed.sql,
        column_name=quote_literal(placed.fold(column.name)),
        column=placed.column(column.name),
        sequence=sequence_name(placed, column),
        default=counted_default(placed, column),
    )


def statements_before_column(placed: PlacedTable, column: Column) -> list[str]:
    """Return the statements that a column needs before it is created."""
    return [f"CREATE SEQUENCE {sequence_name(placed, column)}"] if is_counted(placed, column) else []


def statements_after_column(placed: PlacedTable, column: Column) -> list[str]:
    """Return the statements that a column needs after it is created."""
    if not is_counted(placed, column):
        return []
    return [f"ALTER SEQUENCE {sequence_name(placed, column)} OWNED BY {placed.sql}.{placed.column(column.name)}"]


Section = tuple[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """An object of the source that the target lacks or has in another form. `table`: empty if there is none."""

    table: str
    what: str
    name: str
    definition: str
    reason: str

    @property
    def line(self) -> str:
        """The remark as one line of text."""
        where = f"{self.table}: " if self.table else ""
        shown = " ".join([self.what, self.name, *self.definition.split()])
        return f"{where}{shown.strip()}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlFile:
    """The DDL of a target for a source's tables."""

    target: str
    sections: tuple[Section, ...]
    remarks: tuple[Remark, ...]
    #: Statements of the cut-over, which the file contains as comments.
    later: tuple[str, ...]

    @property
    def statements(self) -> list[str]:
        """Every statement, in order."""
        return [statement for _, statements in self.sections for statement in statements]

    @property
    def text(self) -> str:
        """The content of the file."""
        lines = [
            f"-- Objects that `venus migrate --target {self.target}` creates, in its order.",
            "-- By hand: psql -v ON_ERROR_STOP=1 -1 -f FILE",
        ]
        if self.remarks:
            lines += ["--", f"-- Not in here, or not as at the source ({len(self.remarks)}):"]
            lines += [f"--   {remark.line}" for remark in self.remarks]
        for title, statements in self.sections:
            lines += ["", f"-- {title}", *(f"{statement};" for statement in statements)]
        if self.later:
            lines += ["", f"-- `venus cutover --target {self.target}` does these, when the source is at rest:"]
            lines += [f"-- {statement};" for statement in self.later]
        return "\n".join(lines) + "\n"


def build_ddl_file(
    schemas: Iterable[TableSchema],
    settings: Settings,
    target: str,
    numberings: Sequence[Numbering] = (),
    others: Sequence[OtherObject] = (),
) -> DdlFile:
    """Return the DDL of target `target` for these tables. Raises Refused if names collide."""
    placed = place_all(schemas, settings, target)
    names = ConstraintNames(placed)
    for one in placed:  # allocate names in the order of `sections`
        index_statements(one, names)
        check_statements(one, names)
    keys = [r for one in placed for r in placed_foreign_keys(one, placed, names)]
    acting = [r for r in keys if r.key.on_delete or r.key.on_update]
    return DdlFile(
        target=target,
        sections=tuple(build_sections(placed)),
        remarks=(*collect_remarks(placed), *_other_objects(others)),
        later=(
            *(s for r in acting for s in (r.drop, r.add(acting=True), r.validate) if s),
            *(add for _, add in later_checks(placed)),
            *_free_sequences(numberings),
        ),
    )


def build_sections(placed: Sequence[PlacedTable]) -> list[tuple[str, list[str]]]:
    """Return (title, statements) of each part in execution order; no part is empty."""
    names = ConstraintNames(placed)
    parts = [
        ("Schemas", create_schemas(placed)),
        ("Types", [create_type(one, own) for one, own in list_own_types(placed)]),
        ("Tables", [s for one in placed for s in create_table(one)]),
        ("Keys", [add_key(one) for one in placed]),
        ("Indexes and unique constraints", [s for one in placed for s in index_statements(one, names)]),
        ("Checks", [s for one in placed for pair in check_statements(one, names) for s in pair if s]),
        (
            "Foreign keys; their actions run at the source as long as VENUS applies",
            [s for one in placed for pair in foreign_key_statements(one, placed, names) for s in pair if s],
        ),
    ]
    return [part for part in parts if part[1]]


def collect_remarks(placed: Sequence[PlacedTable]) -> list[Remark]:
    """Return the objects of these tables that the target does not get, or gets under another name."""
    found = [
        Remark(table=one.schema.qualified_name, what=o.what, name=o.name, definition=o.definition, reason=o.reason)
        for one in placed
        for o in one.schema.left_out
    ]
    for one in placed:
        found += [
            Remark(
                table=one.schema.qualified_name,
                what="name",
                name=long,
                definition="",
                reason=f"it is too long for PostgreSQL and becomes {short}",
            )
            for long, short in one.shortened_names
        ]
    return [*found, *_missing_parents(placed)]


def _missing_parents(placed: Sequence[PlacedTable]) -> list[Remark]:
    """Return the foreign keys that refer to a table that is not captured."""
    there = {(one.schema.namespace, one.schema.name) for one in placed}
    return [
        Remark(
            table=one.schema.qualified_name,
            what="foreign key",
            name=key.name,
            definition=f"({', '.join(key.columns)})",
            reason=f"{key.referred_namespace}.{key.referred_table} is not captured",
        )
        for one in placed
        for key in one.schema.foreign_keys
        if (key.referred_namespace, key.referred_table) not in there
    ]


def _other_objects(others: Sequence[OtherObject]) -> list[Remark]:
    """Return remarks on views, functions and other objects that VENUS does not create."""
    return [
        Remark(table="", what=o.kind, name=o.name, definition="", reason="code and views are for you to carry over")
        for o in others
    ]


def _free_sequences(numberings: Sequence[Numbering]) -> list[str]:
    """Return statements for the sequences that belong to no column; the cut-over creates these with their numbers."""
    return [
        f"CREATE SEQUENCE {n.namespace}.{n.name} INCREMENT BY {n.increment}"
        for n in numberings
        if n.name and not n.table
    ]
