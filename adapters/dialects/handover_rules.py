"""Rules of a handover, by which another database, perhaps of another kind, takes over capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from venus.adapters.dialects.registry_rules import version_values
from venus.codec.schema import fingerprint
from venus.model import Column, Kind, LogicalType, TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureHandover:
    """The SQL statements by which a database takes over capture from another one, and what prevents that.

    `preparation` may be repeated, and runs before the transaction of `statements`, because DDL would end that
    transaction in some databases.
    """

    statements: tuple[str, ...]
    obstacles: tuple[str, ...]
    preparation: tuple[str, ...] = ()


def next_version(known: TableSchema, here: TableSchema) -> TableSchema:
    """Return `known` if the table here has the same description, else the description here as the next version. Pure.

    Databases of different kinds describe the same columns differently, so the version changes between them.
    """
    same = replace(here, table_id=known.table_id, version=known.version)
    is_same = fingerprint(same) == fingerprint(known) and _source_names(same) == _source_names(known)
    return known if is_same else replace(same, version=known.version + 1)


def registered_version(known: TableSchema, here: TableSchema) -> TableSchema:
    """Return the schema version that a handover stores in the registry of the new database. Pure.

    Between databases of one kind the version stays `known`: capture itself follows differences, such as a default.
    After a switch to another kind, capture would take the new description for a change of columns, and read every row
    again.
    """
    return known if known.source_dialect == here.source_dialect else next_version(known, here)


def _source_names(schema: TableSchema) -> tuple[str, str, str]:
    """Return dialect, namespace and table name, which a fingerprint omits but one version may not change."""
    return schema.source_dialect, schema.namespace, schema.name


def continued_values(schema: TableSchema, state: str, reason: str) -> dict[str, str | int | bytes | None]:
    """Return the column values of the registry row for a table whose capture continues in this database."""
    place = {"namespace": schema.namespace, "name": schema.name, "state": state, "reason": reason or None}
    return {**place, **version_values(schema)}


def find_handover_obstacles(known: TableSchema, here: TableSchema | None) -> Iterator[str]:
    """Yield why capture of this table cannot continue in this database, one line each. Pure."""
    if here is None:
        yield f"{known.qualified_name} does not exist under this name in the new database"
        return
    if here.key != known.key:
        now = ", ".join(here.key) or "none"
        yield f"{known.qualified_name} has another key in the new database: {now} instead of {', '.join(known.key)}"
    there = {c.name: c for c in here.columns}
    is_other_kind = here.source_dialect != known.source_dialect
    for column in known.columns:
        now_column = there.get(column.name)
        if now_column is None:
            yield f"{known.qualified_name} has no column {column.name} in the new database"
        elif not can_exchange_values(column.type, now_column.type, is_other_kind=is_other_kind):
            yield (
                f"{known.qualified_name}.{column.name} is {now_column.source_type} in the new database and "
                f"{column.source_type} in the old one"
            )
        elif now_column.number != column.number:
            yield (
                f"{known.qualified_name}.{column.name} is column {now_column.number} of the new table and number "
                f"{column.number} of the old one, which has dropped columns"
            )


#: Kinds whose length or digits one database limits and the other one does not.
_WITHOUT_LIMIT = (Kind.BYTES, Kind.INTERVAL, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
#: The names of a JSON type whose values keep their text.
_JSON_TEXT = ("", "json")


def can_exchange_values(one: LogicalType, other: LogicalType, *, is_other_kind: bool) -> bool:
    """Return whether rows can travel between columns of these types in both directions. Pure.

    Kinds of databases limit the length or the digits of a type differently; the database that has a limit checks each
    value.
    """
    if one == other or not is_other_kind or one.kind is not other.kind:
        return one == other
    if one.kind is Kind.JSON:
        return one.name in _JSON_TEXT and other.name in _JSON_TEXT
    return one.kind in _WITHOUT_LIMIT


def version_to_follow(at_cut: TableSchema, present: TableSchema | None) -> TableSchema:
    """Return the schema version with which the former source of a table begins to follow the new source. Pure.

    Return `present`, this database's description, if its columns and key are those of `at_cut`: the new source's own
    description of the table then requires no statement here. A change of columns since the cut arrives in the stream
    of rows.
    """
    if present is None:
        return at_cut
    is_other_kind = at_cut.source_dialect != present.source_dialect
    now = {c.number: c for c in present.columns}
    same = len(now) == len(at_cut.columns) and all(
        c.number in now and _is_same_column(c, now[c.number], is_other_kind=is_other_kind) for c in at_cut.columns
    )
    if same and at_cut.key == present.key:
        return present
    return replace(at_cut, source_dialect=present.source_dialect)


def _is_same_column(one: Column, other: Column, *, is_other_kind: bool) -> bool:
    """Return whether two columns agree in name and type, and in databases of one kind also in nullability."""
    if one.name != other.name or (one.nullable != other.nullable and not is_other_kind):
        return False
    return can_exchange_values(one.type, other.type, is_other_kind=is_other_kind)
