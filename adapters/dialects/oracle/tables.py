"""Tables as Oracle's dictionary describes them: what identifies a row, how columns are read, what is refused."""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from venus.adapters.dialects.oracle.connection import Row
from venus.adapters.dialects.oracle.ddl import KeyColumn, Keyed
from venus.adapters.dialects.oracle.driver import National
from venus.adapters.dialects.oracle.kinds import Kind
from venus.adapters.dialects.oracle.names import ARCHIVE_STATE
from venus.adapters.dialects.oracle.overrides import (
    overridden,
    switched,
)
from venus.adapters.dialects.oracle.types import FRACTION_MAX, Declared, Mapping, log_type_of
from venus.errors import UnsupportedType
from venus.model import Column, LeftOut, TableSchema

NOTHING: Map[str, str] = MappingProxyType({})
#: Hidden columns that VENUS asks for itself.
OWN_HIDDEN = ("RECORDID", ARCHIVE_STATE)
NO_KEY = "it has neither a primary key nor a unique key of columns that are NOT NULL"
#: Collations under which equal keys are the same text.
_BINARY_COLLATIONS = (None, "", "BINARY", "USING_NLS_COMP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A table that could be captured."""

    owner: str
    name: str
    partitioned: bool
    rows: int
    #: VENUS has made it: the heartbeat, a log table, the registry.
    is_own: bool = False
    kind: Kind = field(default_factory=Kind)

    @property
    def qualified(self) -> str:
        """OWNER.TABLE."""
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How one column is read."""

    declared: Declared
    mapping: Mapping

    def expression(self, column: str) -> str:
        """Return what to select for this column."""
        return self.mapping.select(self.declared).replace("{c}", column)

    def logged(self, column: str) -> str:
        """Return a log table's column as the table's own has it: a CHAR with its blanks."""
        padded = self.declared.padded
        return f"CAST({column} AS {padded})" if padded else column

    def bind(self, name: object) -> str:
        """Return what a condition has in place of a value of this column that is bound under this name."""
        return self.logged(self.mapping.bind.format(n=name))

    def bindable(self, value: object) -> object:
        """Return what to bind for a value as it was fetched."""
        return National(value) if self.declared.is_national and isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as the dictionary has it now."""

    schema: TableSchema
    keyed: Keyed
    readings: dict[str, Reading]
    listed: Listed
    #: Why it cannot be captured, one line each.
    refused: tuple[str, ...] = ()
    #: What people should know, though it can.
    remarks: tuple[str, ...] = ()


@dataclass(slots=True)
class _Read:
    """The columns of a table as far as they can be carried, and what there is to say of them."""

    columns: list[Column] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def described(
    listed: Listed, rows: Seq[Row], keys: Seq[Row], known: TableSchema | None = None, number_max: int = 0,
    asked: Map[str, str] = NOTHING, switches: Map[str, str] = NOTHING,
) -> Table:  # fmt: skip
    """Make a table of what the dictionary said; `asked` by upper-case column, `switches` by type. Pure."""
    read = _Read()
    numbers = {c.name: c.number for c in known.columns} if known else {}
    number_max = max([number_max, *numbers.values()])
    for row in rows:
        number = numbers.get(row[0], number_max + 1)
        if _read_column(read, row, number, listed, asked, switches):
            number_max = max(number_max, number)
    key = _key(keys, {c.name: c for c in read.columns})
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
    keyed = Keyed(owner=listed.owner, name=listed.name, key=tuple(key_columns))
    refused = (*read.refused, *_refused_keys(keyed, read.readings, {row[0]: row[9] for row in rows}))
    return Table(
        schema=schema, keyed=keyed, readings=read.readings, listed=listed, refused=refused, remarks=tuple(read.remarks)
    )


def _read_column(
    read: _Read, row: Row, number: int, listed: Listed, asked: Map[str, str], switches: Map[str, str]
) -> bool:
    """Add a column; return whether it can be carried."""
    name, declared = row[0], _declared(row)
    try:
        to = asked.get(name.upper()) or switched(switches, declared)
        reading = Reading(declared=declared, mapping=overridden(declared, to, f"{listed.qualified}.{name}"))
    except UnsupportedType as e:
        read.refused.append(f"column {name}: {e}")
        return False
    read.readings[name] = reading
    logical = reading.mapping.logical(declared)
    nullable = row[8] == "Y"
    read.columns.append(Column(name=name, number=number, type=logical, nullable=nullable, source_type=declared.spelled))
    if len(row) > 10 and row[10] == "YES" and name not in OWN_HIDDEN:
        read.remarks.append(f"column {name} is invisible at the source, and an ordinary column at the target")
    if (declared.scale or 0) > FRACTION_MAX and declared.data_type.startswith("TIMESTAMP"):
        read.remarks.append(f"column {name}: {declared.data_type}: digits after the sixth are cut off")
    return True


def _refused_keys(keyed: Keyed, readings: Map[str, Reading], collations: Map[str, object]) -> list[str]:
    """Say why a table has no key by which its rows can be told apart."""
    if not keyed.key:
        return [NO_KEY]
    return [
        *(f"key column {k.name}: {readings[k.name].declared.spelled} cannot be in a key" for k in keyed.key
          if not k.log_type),
        *(f"key column {k.name}: under collation {collations[k.name]} unequal texts are one key" for k in keyed.key
          if collations[k.name] not in _BINARY_COLLATIONS),
    ]  # fmt: skip


def excluded_keys(left: Seq[LeftOut], table: Table, keys: Seq[Row]) -> list[str]:
    """Say that a table has a key only with columns that are not to travel."""
    if table.schema.key:
        return []
    names = {o.name for o in left} & {column for _, _, column in keys}
    return [f"column {name} is in its key and cannot be excluded in [source.columns]" for name in sorted(names)]


def with_id(table: Table, table_id: int) -> Table:
    """Return the table under its number."""
    return replace(table, schema=replace(table.schema, table_id=table_id))


def _declared(row: Row) -> Declared:
    _, data_type, owner, length, chars, used, precision, scale, *_ = row
    return Declared(
        data_type=data_type,
        owner=owner or "",
        length=int(chars or 0) if "CHAR" in data_type else int(length or 0) if data_type == "RAW" else 0,
        precision=None if precision is None else int(precision),
        scale=None if scale is None else int(scale),
        in_bytes=used == "B",
    )


def _key(keys: Seq[Row], columns: dict[str, Column]) -> list[str]:
    """Return the primary key, else the first unique constraint or index whose columns are all NOT NULL."""
    constraints: dict[str, list[str]] = {}
    for name, _, column in keys:  # the primary key's rows come first
        constraints.setdefault(name, []).append(column)
    for names in constraints.values():
        if all(n in columns and not columns[n].nullable for n in names):
            return names
    return []


def _key_column(name: str, reading: Reading) -> KeyColumn:
    log_type = log_type_of(reading.declared, reading.mapping)
    return KeyColumn(name=name, log_type=log_type, is_text=reading.mapping.text == "text")
