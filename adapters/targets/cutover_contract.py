"""The contract of a target for a cut-over: compare rows, continue counters, enforce constraints, set a mark.

Only kinds of targets with the capability `cuts_over` implement this contract. The caller (adapters/cutover) decides the
order of the steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from venus.adapters.targets.switching import SideRecord, SwitchPosition
from venus.adapters.targets.views import TargetTable, TargetView
from venus.codec.batch import TableChanges
from venus.codec.packed import PackedBytes
from venus.model import TableSchema

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, RegisteredTable
    from venus.network.row_filters import RowsIdentity

#: A callback for rows of a table in the layout of its newest version: the record ids, then the rows.
RowSink = Callable[[PackedBytes, PackedBytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverObstacle:
    """An obstacle to the cut-over."""

    what: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The obstacle with its remedy, as text for operators."""
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDifference:
    """A difference between a table at the target and at the source, with the statement that removes it."""

    table: str
    what: str
    statement: str
    blocks: bool  # whether the target guarantees less than the source
    is_extra: bool = False  # whether only the target has this constraint

    @property
    def block(self) -> CutoverObstacle:
        """The difference as an obstacle to the cut-over."""
        return CutoverObstacle(what=f"{self.table}: {self.what}", remedy=self.statement)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverTable:
    """A table of a cut-over, with its name at the target."""

    schema: TableSchema
    name: str  # at the target, for messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceCheck:
    """A foreign key of the target, or one that VENUS has yet to add."""

    name: str
    shown: str  # for messages: child (columns) -> parent
    orphans: int  # rows that refer to nothing
    example: str  # an example of these rows
    not_valid: bool = False  # NOT VALID at the source: such rows are allowed there


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSetting:
    """A counter at the target with its new value."""

    sequence: str
    next_value: int
    step: int
    table: str = ""
    column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverMark:
    """A cut-over as the target has recorded it."""

    done: bool  # False: it was interrupted after the mark and has to be finished
    sequence: int
    offset: int
    certificate: dict[str, Any]
    marked_at: datetime
    done_at: datetime | None

    @classmethod
    def from_row(cls, row: Seq[Any]) -> CutoverMark:
        """Return the mark that a row of VENUS's own table describes."""
        state, sequence, offset, certificate, marked_at, done_at = row
        return cls(
            done=state == "DONE",
            sequence=sequence,
            offset=offset,
            certificate=json.loads(certificate),
            marked_at=marked_at,
            done_at=done_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOpening:
    """Content of the transaction that opens a database to the application and takes over capture there."""

    record: SideRecord
    position: SwitchPosition
    #: Statements of the handover; `preparation` runs before the transaction, and may be repeated.
    statements: tuple[str, ...]
    preparation: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowStart:
    """The position and the tables at the cut from which the application's former database follows."""

    offset: int
    epoch: int
    last_sequence: int
    rows: RowsIdentity | None
    schemas: tuple[TableSchema, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLimits:
    """Values that a column can hold. The defaults mean no limit."""

    #: The type as its database spells it, for messages.
    type: str = ""
    lowest: Decimal | None = None
    highest: Decimal | None = None
    #: What `lowest` and `highest` count: numbers, or hours of an interval.
    unit: str = "numbers"
    #: Digits after the decimal point; None = any number.
    scale: int | None = None
    characters: int = 0
    bytes: int = 0
    #: The character set; empty = every character of Unicode.
    charset: str = ""
    #: Labels of an enum.
    labels: tuple[str, ...] | None = None
    #: The first and last instant, as texts that order like the instants; empty = none.
    earliest: str = ""
    latest: str = ""
    #: Which of NaN, infinity and BC the type accepts although they are outside the range.
    specials: frozenset[str] = frozenset()
    required: bool = False
    #: Whether '' becomes NULL.
    empty_is_null: bool = False
    #: Conditions of a domain.
    checks: tuple[str, ...] = ()


#: The limits of each column, by (name of the table at the source, name of the column).
SideLimits = Mapping[tuple[str, str], ColumnLimits]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSideObject:
    """A table or a column that only the new database has; `rows`: how many rows have a value there."""

    table: str
    column: str = ""
    rows: int = 0


class FallBackSide(Protocol):
    """One of two databases that replicate to each other, so that the application can switch between them.

    Each method that changes the database does so in one transaction; see adapters/cutover.
    """

    name: str

    def read(self) -> SideRecord | None:
        """Return this database's record of its role; None if it has no record."""
        ...

    def find_obstacles(self, tables: Seq[TableSchema]) -> list[CutoverObstacle]:
        """Return what prevents VENUS from applying changes to these tables of the application. Reads only."""
        ...

    def read_limits(self, tables: Seq[TableSchema]) -> SideLimits:
        """Return the limits of the values that the columns of these tables can hold here."""
        ...

    def find_own_objects(self, tables: Seq[TableSchema], others: Collection[str]) -> list[NewSideObject]:
        """Return columns of these tables that only this database has, and further tables that `others` lacks."""
        ...

    def describe_open_transactions(self) -> str:
        """Describe transactions of other sessions, which may hold a lock; empty if none is visible."""
        ...

    def install(self) -> None:
        """Create VENUS's own tables that this database needs, whether it belongs to the application or follows."""
        ...

    def reject_writes(self, record: SideRecord, tables: Seq[TableSchema]) -> None:
        """Reject writes of the application from now on, and store the record.

        Waits for transactions that have written to the tables, so no write is in flight afterwards.
        """
        ...

    def seal(self, record: SideRecord, epoch: int, tables: Seq[TableSchema]) -> SwitchPosition:
        """End capture at this database permanently, store the record, and return the position of the end.

        Raises Refused if a change waits in a log table, or Fenced if another process captures in a later epoch.
        """
        ...

    def reopen(self, record: SideRecord) -> None:
        """Accept writes and capture again, as before the switch, and store the record."""
        ...

    def tidy(self) -> None:
        """Remove the objects that rejected writes and are no longer used; nothing depends on them."""
        ...

    def plan_handover(self, tables: Seq[RegisteredTable], released: Seq[RegisteredTable]) -> SideHandover:
        """Plan how this database continues the capture of these tables. Reads only."""
        ...

    def read_start(self) -> FollowStart:
        """Return position and tables of the cut at which this database was opened to the application."""
        ...

    def follow(self, record: SideRecord, start: FollowStart) -> None:
        """Begin to follow from this cut, without a load, and store the record."""
        ...

    def keep_following(self) -> None:
        """Undo the preparation of a handover, before the other database accepts writes again. May be repeated."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class SideHandover(Protocol):
    """Statements by which a database takes over capture from another one, and the obstacles."""

    @property
    def preparation(self) -> tuple[str, ...]:
        """Statements that run before the transaction of the handover and may be repeated."""
        ...

    @property
    def statements(self) -> tuple[str, ...]:
        """Statements of the handover's transaction."""
        ...

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons why this database cannot take over capture; empty = it can."""
        ...


class RowConverter(Protocol):
    """Converter of rows of one table into the form in which the target stores them."""

    def convert_rows(self, section: TableChanges, schema: TableSchema) -> TableChanges:
        """Return rows of version `schema` as the target writes them, in the newest version."""
        ...


class CutoverTarget(Protocol):
    """A session with a target that is about to be handed over to the application.

    Everything before `put_mark` may be repeated and does not disturb a running apply loop.
    """

    def prepare(self) -> None:
        """Upgrade VENUS's own tables. Raises Refused if the target was never loaded."""
        ...

    def read_mark(self) -> CutoverMark | None:
        """Return the mark; None if the target was not cut over."""
        ...

    def read_view(self) -> TargetView:
        """Return the current state of the target."""
        ...

    # -- checks ----------------------------------------------------------------------------------------------------

    def read_tables(self) -> list[CutoverTable]:
        """Read the tables in their newest versions. Later calls refer to these tables."""
        ...

    def find_differences(self) -> list[CutoverObstacle]:
        """Return the differences that an operator has to repair because VENUS does not."""
        ...

    def find_schema_differences(self) -> list[SchemaDifference]:
        """Compare every table with the source's description of it."""
        ...

    def open_snapshot(self) -> AbstractContextManager[None]:
        """Open a snapshot, so that every `read_rows` within the block sees the same state of the target."""
        ...

    def read_rows(self, table_id: int, take: RowSink) -> None:
        """Pass every row of a table to `take`, a few megabytes at a time."""
        ...

    def open_row_converter(self, table_id: int) -> AbstractContextManager[RowConverter]:
        """Open a converter of a table's rows, which lets the target itself convert them and leaves nothing behind."""
        ...

    def check_references(self) -> list[ReferenceCheck]:
        """Check every foreign key row by row, even one that the target reports as valid."""
        ...

    def set_counters(self, numberings: Seq[Numbering]) -> list[CounterSetting]:
        """Set the target's counters to continue after its rows' numbers and after the source's counters.

        Raises Refused if a counter cannot continue at that number.
        """
        ...

    # -- the hand-over ---------------------------------------------------------------------------------------------

    def lock_switch(self) -> None:
        """Prevent other processes from switching until the session ends; wait for one that was just killed.

        May be repeated; connects again if the connection was lost. Raises Refused while another process switches.
        """
        ...

    def put_mark(
        self,
        certificate: dict[str, Any],
        check: Callable[[Seq[TargetTable]], None],
        opening: SideOpening | None = None,
    ) -> None:
        """Pause and mark the target in one transaction that locks the applied offset.

        `check` receives the tables as this transaction sees them; if `check` raises an error, nothing changes. With
        `opening`, the target also captures and accepts writes from then on (capability `falls_back`).
        """
        ...

    def enforce(self, invalid: Collection[str], numberings: Seq[Numbering]) -> list[str]:
        """Enable constraints and identities that would have disturbed replication; return a line for each rejected one.

        `invalid` names the foreign keys that existing rows violate; these keys hold for new rows only. May be repeated.
        """
        ...

    def finish_mark(self, certificate: dict[str, Any]) -> None:
        """Store the certificate and mark the cut-over as done."""
        ...

    def relax(self, invalid: Collection[str], numberings: Seq[Numbering]) -> None:
        """Undo the changes of `enforce`."""
        ...

    def remove_mark(self) -> None:
        """Return the target to VENUS in one transaction."""
        ...
