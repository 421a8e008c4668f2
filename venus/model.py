"""The domain types of VENUS, without any I/O.

`sequence` is a position in the source, assigned by the upper adapter; `offset` is a position in a business's queue at
the broker. Both are ints that must never mix, hence the NewTypes. Tables and types are described here once, for
capture, transport, target DDL and verification alike; `venus.codec.schema` converts them to protobuf and back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType

Sequence = NewType("Sequence", int)
Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)
BatchNo = NewType("BatchNo", int)

#: Requests the full data (VENUS 3.3, the full interface).
FULL = Offset(-1)

#: The longest name of a business or a target.
NAME_CHARS_MAX = 128
ADDRESS_CHARS_MAX = 300
PORT_MAX = 65535
#: Waiting rows of a log table are counted up to this number: after a long stop, each full count would read many rows.
LOG_ROWS_COUNTED_MAX = 100_000
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,]+):(\d{1,5})")


class Kind(IntEnum):
    """Logical types; the canonical text of each is written in protos/venus/wire/change.proto."""

    INT = 1
    DECIMAL = 2
    FLOAT = 3
    TEXT = 4
    CHAR = 5
    BYTES = 6
    BOOL = 7
    DATE = 8
    TIME = 9
    TIMETZ = 10
    TIMESTAMP = 11
    TIMESTAMPTZ = 12
    INTERVAL = 13
    JSON = 14
    UUID = 15
    ARRAY = 16
    NATIVE = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalType:
    """The type of a column, independent of any database. `length` is bytes for INT and FLOAT, characters for text."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    length: int = 0
    element: LogicalType | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column; `number` is its field number in the row message and is never reused within a table."""

    name: str
    number: int
    type: LogicalType
    nullable: bool = True
    source_type: str = ""
    default_sql: str = ""
    identity: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A secondary index or unique constraint.

    `definition` is empty for plain ascending columns, else the text after `ON table` in PostgreSQL's syntax, with the
    source's column names in double quotes; `columns` are then the columns that it mentions.
    """

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    constraint: bool = False  # declared as a UNIQUE constraint
    definition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A reference to another table.

    The source has executed the actions of the foreign key already, so they must not run again while VENUS applies
    changes. The actions are transported for the cutover, when the application writes to the target (`venus cutover`).
    An empty action is NO ACTION.
    """

    name: str
    columns: tuple[str, ...]
    referred_namespace: str
    referred_table: str
    referred_columns: tuple[str, ...]
    on_delete: str = ""
    on_update: str = ""
    #: The source enforces it for new rows only; older rows may violate it.
    not_valid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check constraint in PostgreSQL's syntax, with the source's column names in double quotes."""

    name: str
    sql: str
    #: The source enforces it for new rows only; older rows may violate it.
    not_valid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnType:
    """An enum or a domain of the application, used by columns of a table (PostgreSQL).

    A column uses the type if the column's `source_type` is `spelled`, or `spelled` followed by []. Columns of a domain
    have the logical type of its base type.
    """

    namespace: str
    name: str
    sql_name: str
    labels: tuple[str, ...] = ()  # of an enum, in order
    base: LogicalType | None = None  # of a domain: the type of its values; None = an enum
    base_sql_name: str = ""  # of a domain: its base type, which may be another domain
    not_null: bool = False
    default_sql: str = ""
    checks: tuple[Check, ...] = ()  # about VALUE


#: `LeftOut.what` of a child table, one that inherits from this table; its name in SQL is the `definition`.
CHILD_TABLE = "heir"
#: `LeftOut.what` of a column that a broker set above masks or drops (venus/masking/border.py).
MASKED = "masked column"
#: `LeftOut.reason` of an index that is still being built, such as by REINDEX CONCURRENTLY; the entry is temporary.
UNFINISHED = "it is not valid at the source either"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A property of a table at the source that no target gets automatically; it is always reported."""

    what: str  # "check constraint", "index", "default of column", ...
    name: str
    definition: str  # as the source spells it
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One version of one table: enough to build it at a target with the source switched off."""

    table_id: int
    version: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    comment: str = ""
    source_dialect: str = ""
    checks: tuple[Check, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    types: tuple[OwnType, ...] = ()

    @property
    def qualified_name(self) -> str:
        """The displayed name: namespace.table."""
        return f"{self.namespace}.{self.name}"

    @property
    def child_tables(self) -> tuple[str, ...]:
        """The tables that inherit from this one at the source; queries of it there include their rows."""
        return tuple(left.name for left in self.left_out if left.what == CHILD_TABLE)

    @property
    def masked_above(self) -> str:
        """The columns that a broker set above masks or drops, with the id of its key, as text; empty = none."""
        return ", ".join(f"{one.name} ({one.definition}; {one.reason})" for one in self.left_out if one.what == MASKED)

    @property
    def identity(self) -> tuple[tuple[str, int], ...]:
        """The identity of its rows: the key columns with their numbers. A recreated column gets a new number."""
        numbers = {c.name: c.number for c in self.columns}
        return tuple((name, numbers[name]) for name in self.key)

    def has_same_key(self, other: TableSchema) -> bool:
        """Whether the same columns identify its rows; in a database of another kind they may have other names."""
        if self.source_dialect == other.source_dialect:
            return self.identity == other.identity
        return [number for _, number in self.identity] == [number for _, number in other.identity]

    @property
    def is_heartbeat(self) -> bool:
        """Whether this is the heartbeat table of VENUS, which measures lag and is no table of the application."""
        return is_heartbeat(self.namespace, self.name)

    @property
    def wire_columns(self) -> tuple[Column, ...]:
        """The columns in wire order: the key's in key order (they form the record_id), then the others."""
        by_name = {c.name: c for c in self.columns}
        keys = tuple(by_name[name] for name in self.key)
        return keys + tuple(c for c in self.columns if c.name not in self.key)


class ChangeKind(IntEnum):
    """Kind of a section of a batch: row changes, or a marker such as a truncation."""

    CHANGES = 0
    TRUNCATE = 1
    SWEEP_BEGIN = 2
    SWEEP_END = 3
    LEFT_OUT = 4


class Verdict(IntEnum):
    """Decision on a half message, by its producer (also as the answer to a review) or by an operator."""

    UNKNOWN = 0
    COMMIT = 1
    ROLLBACK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A row of the source's batch table: it exists if and only if the batch's local transaction has committed."""

    batch_no: BatchNo
    epoch: Epoch
    first_sequence: Sequence
    last_sequence: Sequence  # first - 1 for an empty batch
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceIdentity:
    """Facts that distinguish a database from its copies: as recorded at the source, and as they are now."""

    recorded: Mapping[str, str]  # empty before the first capture
    present: Mapping[str, str]
    #: Groups of facts, the best first; the first group that both sides know decides. If its facts differ, so do
    #: the databases.
    decisive: Seq[Seq[str]]
    #: Facts that differ in a copy, but also after a legitimate fail-over.
    doubtful: Seq[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check. `blocks` = VENUS refuses to continue."""

    where: str
    message: str
    remedy: str = ""
    blocks: bool = False
    details: tuple[str, ...] = field(default=())
    #: Statements that an administrator may run at the source, in order, to remove the cause.
    script: tuple[str, ...] = field(default=())
    #: The only table concerned, `namespace.table`: the others can be captured without it. Empty = all are concerned.
    table: str = ""


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT, with an IPv6 host in brackets."""
    found = _ADDRESS.fullmatch(text) if len(text) <= ADDRESS_CHARS_MAX else None
    return found is not None and int(found[2]) <= PORT_MAX


def is_every_interface(address: str) -> bool:
    """Whether an address is that of every interface: a broker may listen there, and no client can use it."""
    return address.rpartition(":")[0] in ("0.0.0.0", "[::]")


def is_heartbeat(namespace: str, name: str) -> bool:
    """Whether a table of this name is the heartbeat table of VENUS."""
    return (namespace, name) == ("venus", "heartbeat") or name.lower() == "venus_heartbeat"


def is_name(text: str, chars_max: int = NAME_CHARS_MAX) -> bool:
    """Whether a text may name something: printable characters, and no space at either end."""
    return 0 < len(text) <= chars_max and text.isprintable() and text == text.strip()


def count_phrase(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 table", "2 tables"; `plural` is for nouns that do not just add an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"
