"""The objects that VENUS created at a source, as its installation recorded them, and the widths of log columns.

A name alone does not prove that VENUS created an object, because applications may use any name. VENUS records its
objects in the table VENUS_OWNED. Older installations have only their registry: it numbers log tables and triggers, and
its columns distinguish it from a table of the application with the same name.

If a key became wider than its log, the application's statements would fail, so logs use the widest form of each type.
The next installation widens logs that an older version created with the width that the key had then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle import sql
from venus.adapters.dialects.oracle.language.ddl import KeyedTable, OracleOwnObject
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.sql import literal, log_key_columns, log_table_name, quote, statement
from venus.errors import Refused, SourceError

TABLE = "VENUS_OWNED"
REGISTRY = "VENUS_CAPTURED_TABLE"
#: The job that watches the logs.
VALVE = "VENUS_VALVE"
#: The objects with fixed names, including those that only some installations have.
_FIXED_TABLES = (
    "VENUS_CHECKPOINT VENUS_BATCH VENUS_DDL VENUS_SEGMENT VENUS_IDENTITY VENUS_TYPE_MAP VENUS_TABLE_LOG VENUS_POLLED"
)
FIXED = (
    *(("TABLE", name) for name in (REGISTRY, sql.HEARTBEAT, *_FIXED_TABLES.split())),
    ("SEQUENCE", "VENUS_SEQ"),
    ("VIEW", "VENUS_LOG"),
    ("TRIGGER", sql.DDL_TRIGGER),
)

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleOwnedObjects:
    """The objects of one schema whose names look like VENUS's, as (kind, name): VENUS's own, and foreign ones."""

    ours: frozenset[Key]
    foreign: frozenset[Key] = frozenset()
    #: Whether VENUS_OWNED exists and has entries.
    recorded: bool = True

    def has(self, name: str, kind: str = "TABLE") -> bool:
        """Whether VENUS created this object."""
        return (kind, name) in self.ours

    def list_tables(self, names: Iterable[str]) -> frozenset[str]:
        """Return VENUS's own tables, with those among `names` that stage rows while this database follows."""
        followed = [name for name in names if name.startswith(sql.FOLLOWER_TABLES)] if self.has(sql.SIDE) else []
        return frozenset(name for kind, name in self.ours if kind == "TABLE").union(followed)

    def refuse_names_in_use(self, wanted: Iterable[Key]) -> None:
        """Raise Refused if an object of the application has one of the names that VENUS is about to use."""
        for _, name in sorted(self.names_in_use(wanted)):
            hint = "rename it, or install VENUS as a user with a schema of its own"
            raise Refused(f"{name} exists, and VENUS's installation has not created it", hint=hint)

    def names_in_use(self, wanted: Iterable[Key]) -> set[Key]:
        """Return those of the wanted names that foreign objects have; triggers have a separate name space."""
        theirs = {(kind == "TRIGGER", name) for kind, name in self.foreign}
        return {(kind, name) for kind, name in wanted if (kind == "TRIGGER", name) in theirs}


def read_owned_objects(session: OracleSession, listed: Iterable[Row] | None = None) -> OracleOwnedObjects:
    """Read the objects of the user's own schema; `listed`: their rows in the dictionary, if they have been read."""
    there = {
        (str(kind), str(name))
        for name, kind, _ in (session.fetch_rows(statement("dictionary", "own_objects")) if listed is None else listed)
        if kind in ("TABLE", "VIEW", "SEQUENCE", "TRIGGER", "SYNONYM")
    }
    record = _read_record(session, "") if ("TABLE", TABLE) in there else None
    ours = record or (_objects_by_registry(session, "") if ("TABLE", REGISTRY) in there else frozenset())
    if record is not None:
        ours |= {("TABLE", TABLE)}
    return OracleOwnedObjects(ours=ours & there, foreign=frozenset(there - ours), recorded=bool(record))


def read_valve(session: OracleSession) -> str:
    """Return the block of the job that limits VENUS's logs; empty without one. Ignores a job of the application."""
    return "".join(str(r[0]) for r in session.fetch_rows(statement("dictionary", "valve")) if TABLE in str(r[0]))


def read_foreign_own_tables(session: OracleSession, owner: str, tables: Iterable[str]) -> frozenset[str]:
    """Return the tables of another schema that an installation of VENUS created there."""
    schema, there = f"{quote(owner)}.", set(tables)
    try:
        found = (_read_record(session, schema) if TABLE in there else None) or (
            _objects_by_registry(session, schema) if REGISTRY in there else frozenset()
        )
    except SourceError:  # this user may not read the record, and so could not capture these tables either
        return frozenset()
    return frozenset(name for kind, name in found | {("TABLE", TABLE)} if kind == "TABLE") if found else frozenset()


def _read_record(session: OracleSession, schema: str) -> frozenset[Key] | None:
    """Return the objects recorded in VENUS_OWNED; None if the table of this name has other columns."""
    try:
        rows = session.fetch_rows(statement("ownership", "recorded", schema=schema))
    except SchemaChanged:
        return None
    return frozenset((str(kind), str(name)) for kind, name in rows)


def _objects_by_registry(session: OracleSession, schema: str) -> frozenset[Key]:
    """Return the objects of an older installation, which recorded only its registered tables."""
    try:
        rows = session.fetch_rows(statement("ownership", "registered", schema=schema))
    except SchemaChanged:
        return frozenset()
    return frozenset(FIXED) | {key for table_id, *_ in rows for key in table_objects(int(table_id))}


def table_objects(table_id: int) -> Iterator[Key]:
    """Yield the objects that an installation may create for one captured table."""
    yield "TABLE", sql.log_table_name(table_id)
    for letter in (*sql.TRIGGER_LETTERS, "C"):  # C: the compound trigger, which an earlier version offered
        yield "TRIGGER", sql.trigger_name(letter, table_id)


def owned_table() -> OracleOwnObject:
    """Return the definition of VENUS_OWNED, the table of the record."""
    return OracleOwnObject(kind="TABLE", name=TABLE, sql=statement("ownership", "table"))


def record_statement(keys: Iterable[Key], *, adopted: bool = False) -> str:
    """Return the statement that records objects before they are created; `adopted`: they exist already."""
    rows = " UNION ALL ".join(statement("ownership", "row", kind=literal(k), name=literal(n)) for k, n in keys)
    return statement("ownership", "adopt" if adopted else "record", rows=rows)


_TYPE = re.compile(r"(?P<name>[A-Z0-9]+)(?:\((?P<width>\d+)(?: CHAR)?\))?")
#: The type changes that Oracle allows while a table has rows.
_WIDENS_TO = {"CHAR": "VARCHAR2", "NCHAR": "NVARCHAR2"}
_UNLIMITED = 1 << 30


def read_widths(session: OracleSession) -> dict[str, dict[str, str]]:
    """Return the declared types of the key columns of the log tables, by table and column."""
    found: dict[str, dict[str, str]] = {}
    for table, column, data_type, chars, octets, precision in session.fetch_rows(
        statement("dictionary", "log_columns")
    ):
        found.setdefault(str(table), {})[str(column)] = _format_type(str(data_type), chars, octets, precision)
    return found


def _format_type(data_type: str, chars: object, octets: object, precision: object) -> str:
    if "CHAR" in data_type:
        return f"{data_type}({chars})"
    if data_type == "RAW":
        return f"RAW({octets})"
    return f"NUMBER({precision})" if data_type == "NUMBER" and precision is not None else data_type


def find_narrow_columns(
    table: KeyedTable, table_id: int, there: dict[str, dict[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the columns of a table's log that are too narrow, with the type that they need."""
    columns = there.get(log_table_name(table_id), {})
    for column, key in zip(log_key_columns(len(table.key)), table.key, strict=True):
        if column in columns and _is_narrower(columns[column], key.log_type):
            yield column, key.log_type


def _is_narrower(there: str, wanted: str) -> bool:
    (name, width), (to, limit) = _split_type(there), _split_type(wanted)
    return _WIDENS_TO.get(name, name) == to and (name != to or width < limit)


def _split_type(spelled: str) -> tuple[str, int]:
    found = _TYPE.fullmatch(spelled)
    assert found is not None, spelled
    return found["name"], int(found["width"] or _UNLIMITED)


def widen_column(table_id: int, column: str, to: str) -> str:
    """Return the statement that widens a column of a log."""
    return statement("triggers", "wider_column", log=log_table_name(table_id), column=column, type=to)
