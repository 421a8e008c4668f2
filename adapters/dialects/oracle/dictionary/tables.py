"""Tables as Oracle's dictionary describes them: kind, key, how columns are read, refusals, choice by patterns.

VENUS leaves out only tables without rows of the application's own. It refuses a table that has rows of the application
and cannot be carried, so that nothing is silently missing at the target.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from venus.adapters.dialects.column_choice import Patterns, find_useless_patterns
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.dictionary.overrides import find_mapping, type_by_switch
from venus.adapters.dialects.oracle.dictionary.types import (
    FRACTION_MAX,
    OracleDeclaredType,
    OracleTypeMapping,
    log_type_of,
)
from venus.adapters.dialects.oracle.language.ddl import KeyedTable, OracleKeyColumn
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.driver import NationalText
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import ARCHIVE_STATE, statement
from venus.errors import SourceError, UnsupportedType
from venus.model import Column, LeftOut, TableSchema

LEFT_OUT = {
    "temporary": "a temporary table: its rows are a session's own",
    "nested": "the storage of a nested table: its rows are values of another table",
    "secondary": "made by a domain index",
    "IOT_OVERFLOW": "the overflow of an index-organized table, whose rows are carried whole",
    "IOT_MAPPING": "the mapping table of an index-organized table",
    "materialized view": "a materialized view: its rows are computed from other tables",
    "materialized view log": "the log of a materialized view",
    "external table": "an external table: its rows lie in files outside the database",
    "queue table": "a table of Advanced Queuing: its rows are messages in transit",
    "queue state": "a table that Advanced Queuing keeps for a queue",
    "flashback archive": "a table of a Flashback Archive: its rows are the past of another table",
}
REFUSED = {
    "object table": "an object table: its rows are objects, which have no columns of their own",
    "XMLType table": "an XMLType table: its rows are documents without a column",
}
LEDGER = "a blockchain table: its hidden columns, which chain the rows, are not carried"
CLUSTERED = "it belongs to a cluster: TRUNCATE CLUSTER is noticed only afterwards, and the table has to be read again"
MOVABLE = "row movement is enabled: FLASHBACK TABLE fires no trigger unless it says ENABLE TRIGGERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """The consequences of a table's kind: why it is left out or refused, and a remark."""

    left_out: str = ""
    refused: str = ""
    remark: str = ""


@dataclass(slots=True)
class TableKinds:
    """Reader of the kinds of tables in some schemas."""

    _session: OracleSession
    _version: Version
    _sees_ledgers: bool = True

    def read_kinds(self, owner: str) -> dict[str, str]:
        """Return the kind of each table that is not an ordinary one."""
        rows = self._session.fetch_rows(statement("kinds", "kinds"), {"owner": owner})
        return {str(name): "ledger" for name in self._ledgers(owner)} | {str(name): str(kind) for kind, name in rows}

    def _ledgers(self, owner: str) -> list[str]:
        """Return the names of the blockchain tables of a schema."""
        if not (self._version.ledgers and self._sees_ledgers):
            return []
        try:
            return [str(row[0]) for row in self._session.fetch_rows(statement("kinds", "ledgers"), {"owner": owner})]
        except (SourceError, SchemaChanged):  # a 19c before the update that introduced ledger tables; do not ask again
            self._sees_ledgers = False
            return []


#: The tables that Oracle makes for itself, by the beginning of their names.
_MADE_BY_ORACLE = {"AQ$_": "queue state", "SYS_FBA_": "flashback archive"}


def table_kind(row: Row, special: Map[str, str]) -> TableKind:
    """Return the kind of a table from its row in ALL_TABLES."""
    _, name, _, _, temporary, nested, secondary, iot_type, cluster, movement = row
    sort = special.get(name, "")
    sort = sort or next((kind for start, kind in _MADE_BY_ORACLE.items() if str(name).startswith(start)), "")
    if temporary == "Y":
        sort = "temporary"
    elif nested == "YES":
        sort = "nested"
    elif secondary == "Y":
        sort = "secondary"
    elif iot_type in ("IOT_OVERFLOW", "IOT_MAPPING"):
        sort = str(iot_type)
    remark = LEDGER if sort == "ledger" else CLUSTERED if cluster else MOVABLE if movement == "ENABLED" else ""
    return TableKind(left_out=LEFT_OUT.get(sort, ""), refused=REFUSED.get(sort, ""), remark=remark)


def kinds_without_table(special: Map[str, str], listed: Seq[str]) -> dict[str, TableKind]:
    """Return the refused tables that ALL_TABLES does not contain."""
    return {
        name: TableKind(refused=REFUSED[sort])
        for name, sort in special.items()
        if sort in REFUSED and name not in listed
    }


NOTHING: Map[str, str] = MappingProxyType({})
#: Hidden columns that VENUS reads on purpose.
OWN_HIDDEN = ("RECORDID", ARCHIVE_STATE)
NO_KEY = "it has neither a primary key nor a unique key of columns that are NOT NULL"
#: Collations under which only identical texts are equal keys.
_BINARY_COLLATIONS = (None, "", "BINARY", "USING_NLS_COMP")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTable:
    """A table as the dictionary lists it: its name, its approximate size, its kind."""

    owner: str
    name: str
    partitioned: bool
    rows: int
    #: VENUS created it: the heartbeat, a log table, the registry.
    is_own: bool = False
    kind: TableKind = field(default_factory=TableKind)

    @property
    def qualified_name(self) -> str:
        """The table as OWNER.TABLE."""
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterSets:
    """The character sets of a database; empty if they are unknown."""

    database: str = ""
    national: str = ""

    @property
    def is_unicode(self) -> bool:
        """Whether VENUS receives every text as it is stored, without a lossy conversion."""
        return self.database in ("", "AL32UTF8", "UTF8", "UTFE")

    def converts(self, declared: OracleDeclaredType) -> bool:
        """Whether the server converts values of this type into Unicode."""
        return not self.is_unicode and declared.data_type in _CONVERTED


def read_character_sets(session: OracleSession) -> CharacterSets:
    """Read the character sets of the database."""
    found = {str(name): str(value) for name, value in session.fetch_rows(statement("sampling", "character_sets"))}
    return CharacterSets(database=found.get("NLS_CHARACTERSET", ""), national=found.get("NLS_NCHAR_CHARACTERSET", ""))


#: Types whose texts are in the database's character set.
_CONVERTED = ("CHAR", "VARCHAR2", "CLOB", "LONG", "XMLTYPE", "JSON")
#: The rule of rows.py for a text that the server converts into Unicode.
CONVERTED = "converted"


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleReading:
    """How one column is read: its declared type, the mapping of this type, and the SQL expressions."""

    declared: OracleDeclaredType
    mapping: OracleTypeMapping
    #: The server converts it into Unicode from a smaller character set, and may replace bytes.
    is_converted: bool = False

    @property
    def rule(self) -> str:
        """The name of the rule in rows.py that converts the driver's value to canonical text."""
        return CONVERTED if self.is_converted and self.mapping.text == "text" else self.mapping.text

    def expression(self, column: str) -> str:
        """Return the expression that selects this column."""
        return self.mapping.select(self.declared).replace("{c}", column)

    def cast_logged(self, column: str) -> str:
        """Return the expression that converts a log table's column to this column's type: a CHAR gets its blanks."""
        padded = self.declared.padding_type
        return f"CAST({column} AS {padded})" if padded else column

    def bind_expression(self, name: object) -> str:
        """Return the expression that a condition compares with this column, for a value bound under `name`."""
        return self.cast_logged(self.mapping.bind.format(n=name))

    def bind_value(self, value: object) -> object:
        """Return the object to bind for a fetched value."""
        return NationalText(value) if self.declared.is_national and isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTable:
    """A table as the dictionary describes it now."""

    schema: TableSchema
    keyed: KeyedTable
    readings: dict[str, OracleReading]
    listed: ListedTable
    #: The reasons why it cannot be captured, one line each.
    refusals: tuple[str, ...] = ()
    #: Remarks for the operator about a table that can be captured.
    remarks: tuple[str, ...] = ()


@dataclass(slots=True)
class _ColumnReader:
    """Collector of the columns of a table that can be carried, with refusals and remarks."""

    columns: list[Column] = field(default_factory=list)
    readings: dict[str, OracleReading] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def build_table(
    listed: ListedTable,
    rows: Seq[Row],
    keys: Seq[Row],
    known: TableSchema | None = None,
    number_max: int = 0,
    asked: Map[str, str] = NOTHING,
    switches: Map[str, str] = NOTHING,
) -> OracleTable:
    """Build a table from dictionary rows. Requested types: `asked` by upper-case column, `switches` by type. Pure."""
    read = _ColumnReader()
    numbers = {c.name: c.number for c in known.columns} if known else {}
    number_max = max([number_max, *numbers.values()])
    for row in rows:
        number = numbers.get(row[0], number_max + 1)
        if _read_column(read, row, number, listed, asked, switches):
            number_max = max(number_max, number)
    key = _choose_key(keys, {c.name: c for c in read.columns})
    key_columns = [_key_column(name, read.readings[name]) for name in key]
    schema = TableSchema(
        table_id=known.table_id if known else 0,
        version=known.version if known else 1,
        namespace=listed.owner,
        name=listed.name,
        columns=tuple(read.columns),
        key=tuple(key),
        source_dialect="oracle",
    )
    keyed = KeyedTable(owner=listed.owner, name=listed.name, key=tuple(key_columns))
    refused = (*read.refused, *_key_refusals(keyed, read.readings, {row[0]: row[9] for row in rows}))
    return OracleTable(
        schema=schema, keyed=keyed, readings=read.readings, listed=listed, refusals=refused, remarks=tuple(read.remarks)
    )


def _read_column(
    read: _ColumnReader, row: Row, number: int, listed: ListedTable, asked: Map[str, str], switches: Map[str, str]
) -> bool:
    """Add a column to `read` with the way to read it; return False if it cannot be carried."""
    name, declared = row[0], _declared_type(row)
    try:
        to = asked.get(name.upper()) or type_by_switch(switches, declared)
        reading = OracleReading(
            declared=declared, mapping=find_mapping(declared, to, f"{listed.qualified_name}.{name}")
        )
    except UnsupportedType as e:
        read.refused.append(f"column {name}: {e}")
        return False
    read.readings[name] = reading
    logical = reading.mapping.logical(declared)
    nullable = row[8] == "Y"
    read.columns.append(
        Column(name=name, number=number, type=logical, nullable=nullable, source_type=declared.sql_type)
    )
    if len(row) > 10 and row[10] == "YES" and name not in OWN_HIDDEN:
        read.remarks.append(f"column {name} is invisible at the source, and an ordinary column at the target")
    if (declared.scale or 0) > FRACTION_MAX and declared.data_type.startswith("TIMESTAMP"):
        read.remarks.append(f"column {name}: {declared.data_type}: digits after the sixth are cut off")
    return True


def _key_refusals(keyed: KeyedTable, readings: Map[str, OracleReading], collations: Map[str, object]) -> list[str]:
    """Return the reasons why a table has no key that distinguishes its rows."""
    if not keyed.key:
        return [NO_KEY]
    return [
        *(
            f"key column {k.name}: {readings[k.name].declared.sql_type} cannot be in a key"
            for k in keyed.key
            if not k.log_type
        ),
        *(
            f"key column {k.name}: under collation {collations[k.name]} unequal texts are one key"
            for k in keyed.key
            if collations[k.name] not in _BINARY_COLLATIONS
        ),
    ]


def excluded_key_refusals(left: Seq[LeftOut], table: OracleTable, keys: Seq[Row]) -> list[str]:
    """Return the excluded columns without which a table has no key, as reasons to refuse it."""
    if table.schema.key:
        return []
    names = {o.name for o in left} & {column for _, _, column in keys}
    return [f"column {name} is in its key and cannot be excluded in [source.columns]" for name in sorted(names)]


def with_id(table: OracleTable, table_id: int) -> OracleTable:
    """Return the table with its number in the registry."""
    return replace(table, schema=replace(table.schema, table_id=table_id))


def _declared_type(row: Row) -> OracleDeclaredType:
    _, data_type, owner, length, chars, used, precision, scale, *_ = row
    return OracleDeclaredType(
        data_type=data_type,
        owner=owner or "",
        length=int(chars or 0) if "CHAR" in data_type else int(length or 0) if data_type == "RAW" else 0,
        precision=None if precision is None else int(precision),
        scale=None if scale is None else int(scale),
        in_bytes=used == "B",
    )


def _choose_key(keys: Seq[Row], columns: dict[str, Column]) -> list[str]:
    """Return the primary key, else the first unique constraint or index whose columns are all NOT NULL."""
    constraints: dict[str, list[str]] = {}
    for name, _, column in keys:  # the primary key's rows come first
        constraints.setdefault(name, []).append(column)
    for names in constraints.values():
        if all(n in columns and not columns[n].nullable for n in names):
            return names
    return []


def _key_column(name: str, reading: OracleReading) -> OracleKeyColumn:
    log_type = log_type_of(reading.declared, reading.mapping)
    return OracleKeyColumn(name=name, log_type=log_type, is_text=reading.mapping.is_text)


def choose_tables(listed: Seq[ListedTable], include: Seq[str], exclude: Seq[str]) -> list[ListedTable]:
    """Return the tables that the patterns choose, without VENUS's own."""
    included, excluded = Patterns(map(_normalise_pattern, include)), Patterns(map(_normalise_pattern, exclude))
    return [
        t
        for t in application_tables(listed)
        if not t.kind.left_out and included.match(*pattern_names(t)) and not excluded.match(*pattern_names(t))
    ]


def left_out_tables(listed: Seq[ListedTable], include: Seq[str], exclude: Seq[str]) -> list[ListedTable]:
    """Return the tables that the patterns choose and that have no rows of the application's own."""
    ordinary = [replace(t, kind=replace(t.kind, left_out="")) for t in listed if t.kind.left_out]
    names = {(t.owner, t.name) for t in choose_tables(ordinary, include, exclude)}
    return [t for t in listed if (t.owner, t.name) in names]


def application_tables(listed: Seq[ListedTable]) -> list[ListedTable]:
    """Return the tables without VENUS's own."""
    return [t for t in listed if not t.is_own]


def pattern_names(listed: ListedTable) -> tuple[str, ...]:
    """Return the two names by which a pattern can match a table, in upper case: /TABLE and OWNER.TABLE."""
    return f"/{listed.name}".upper(), f"{listed.owner}.{listed.name}".upper()


def find_unmatched_patterns(listed: Seq[ListedTable], patterns: Seq[str]) -> list[str]:
    """Return the patterns that choose no table: most likely they are misspelt."""
    return find_useless_patterns(patterns, map(pattern_names, application_tables(listed)), normalise=_normalise_pattern)


def _normalise_pattern(pattern: str) -> str:
    """Return a pattern in the form that is compared; without a dot it matches tables of any owner."""
    return pattern.upper() if "." in pattern else f"/{pattern}".upper()


def heartbeat_table(at: ListedTable) -> OracleTable:
    """Describe VENUS's heartbeat table before it exists."""
    columns = [
        (name, "NUMBER", None, 22, 0, None, digits, 0, "N", None) for name, digits in (("ID", 9), ("BEAT_AT", 18))
    ]
    return build_table(at, columns, [("VENUS_HEARTBEAT_PK", "P", "ID")])
