"""What a cut-over asks of a target: to be compared, to number on, to enforce what the source enforces, to be marked.

Only kinds with the capability `cuts_over` have this. The steps and their order are the caller's (adapters/cutover).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from venus.adapters.targets.views import TargetTable, TargetView
from venus.codec.changes import TableChanges
from venus.codec.packed import Packed
from venus.model import TableSchema

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering

#: Takes rows of a table in the layout of its newest version: their record ids, and their rows.
TakeRows = Callable[[Packed, Packed], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Something that forbids the cut-over."""

    what: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDifference:
    """Something of a table that is not at the target as it is at the source, and the statement that mends it."""

    table: str
    what: str
    statement: str
    blocks: bool  # the target promises less than the source

    @property
    def block(self) -> Block:
        """The same as something that forbids the cut-over."""
        return Block(what=f"{self.table}: {self.what}", remedy=self.statement)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableThere:
    """A table as a target has it."""

    schema: TableSchema
    name: str  # at the target, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key of the target, or one that VENUS owes to it."""

    name: str
    shown: str  # for people: child (columns) -> parent
    orphans: int  # rows that refer to nothing
    example: str  # one of them
    not_valid: bool = False  # NOT VALID at the source: such rows are allowed there


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter at the target as it was set."""

    sequence: str
    next_value: int
    step: int
    table: str = ""
    column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A cut-over as the target remembers it."""

    done: bool  # else it was killed behind the mark, and has to be finished
    sequence: int
    offset: int
    certificate: dict[str, Any]
    marked_at: datetime
    done_at: datetime | None


class Speller(Protocol):
    """Writes rows of one table as the target stores them."""

    def spelled(self, section: TableChanges, schema: TableSchema) -> TableChanges:
        """Return rows of `schema`'s version as the target writes them, in the newest version."""
        ...


class CutoverTarget(Protocol):
    """A session with a target that is to become the application's own.

    Everything up to `put_mark` may be repeated and disturbs nobody who follows.
    """

    def prepare(self) -> None:
        """Upgrade VENUS's own tables. Raises Refused if the target was never loaded."""
        ...

    def mark(self) -> Mark | None:
        """Return the mark, None if the target was not cut over."""
        ...

    def look(self) -> TargetView:
        """Say where everything stands."""
        ...

    # -- what is proved --------------------------------------------------------------------------------------------

    def tables(self) -> list[TableThere]:
        """Read which tables are there, in their newest versions. What is asked from here on is about these."""
        ...

    def differences(self) -> list[Block]:
        """Return what people have to mend at the target because VENUS does not."""
        ...

    def schema_differences(self) -> list[SchemaDifference]:
        """Compare every table with the source's description of it."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Let every `read` within see one snapshot."""
        ...

    def read(self, table_id: int, take: TakeRows) -> None:
        """Give out every row of a table, a few megabytes at a time."""
        ...

    def spelling(self, table_id: int) -> AbstractContextManager[Speller]:
        """Have the target spell rows; nothing of it is left behind."""
        ...

    def references(self) -> list[Reference]:
        """Check every foreign key row by row, whatever the target says of it."""
        ...

    def set_counters(self, numberings: Seq[Numbering]) -> list[Counter]:
        """Let the target number on behind its rows and behind the source's counters.

        Raises Refused if a counter cannot continue there.
        """
        ...

    # -- what is final ---------------------------------------------------------------------------------------------

    def put_mark(self, certificate: dict[str, Any], check: Callable[[Seq[TargetTable]], None]) -> None:
        """Pause the target and mark it, in one transaction with the applied offset held.

        `check` is given the tables as they are then; if it raises, nothing has happened.
        """
        ...

    def enforce(self, invalid: Collection[str], numberings: Seq[Numbering]) -> list[str]:
        """Put in force what would have disturbed VENUS; return what the target would not have, one line each.

        `invalid` = names of foreign keys that rows violate: they hold for new rows only. May be repeated.
        """
        ...

    def finish_mark(self, certificate: dict[str, Any]) -> None:
        """Keep the certificate: the cut-over is done."""
        ...

    def relax(self, invalid: Collection[str], numberings: Seq[Numbering]) -> None:
        """Take back what `enforce` has done."""
        ...

    def remove_mark(self) -> None:
        """Give the target back to VENUS, in one transaction."""
        ...
