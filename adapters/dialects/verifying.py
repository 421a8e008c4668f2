"""What verification asks of a database: bucket checksums, the rows behind them, and what still waits in the log.

Optional: a dialect that offers it has a module `verify` with `open_reader(settings)`. A reader holds one snapshot at a
time, between `begin` and `end`. Its method is the usual one of the field (data-diff, Veridata; spark.md 3): checksums
are computed where the rows are, and only differing buckets are looked into. A row's checksum is 60 bits of a digest
over one text per column, its *form*; every dialect writes the forms that `style_of` asks for, and what does not come
out as the same text is noticed by calibration and compared row by row instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Protocol, cast

from venus.adapters.dialects.contract import RegisteredTable, SchemaChanged
from venus.adapters.dialects.registry import dialect_of
from venus.codec.changes import TableChanges
from venus.config import Settings
from venus.errors import Refused
from venus.model import Kind, LogicalType, Sequence, TableSchema

#: Between the forms of a row, and instead of a NULL; a form that can hold any text is preceded by its length in bytes.
SEPARATOR, NULL = "\x1f", "\x1e"
#: The leading hexadecimal digits of a digest that count: 60 bits fit a signed number of 64 in every database.
HEX_DIGITS = 15

#: A key in its forms, without lengths: how a row is named on both sides.
Key = tuple[str, ...]


class Style(Enum):
    """How a canonical text becomes a form."""

    PLAIN = "the canonical text"
    NUMBER = "without zeros at the end of the fraction"
    PADDED = "without blanks at the end, behind its length"
    FREE = "behind its length"
    HEX = "hexadecimal"


_STYLES = {
    Kind.TEXT: Style.FREE,
    Kind.CHAR: Style.PADDED,
    Kind.BYTES: Style.HEX,
    Kind.JSON: Style.FREE,
    Kind.ARRAY: Style.FREE,
    Kind.NATIVE: Style.FREE,
}


def style_of(logical: LogicalType) -> Style:
    """Return the style of a column's forms."""
    if logical.kind is Kind.DECIMAL and not logical.precision:
        return Style.NUMBER  # no scale is declared: 1.5 and 1.50 are one value
    return _STYLES.get(logical.kind, Style.PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One table as it is compared; the same for both sides."""

    schema: TableSchema
    where: str = ""  # a condition in SQL that both databases understand
    digest: str = "md5"  # or sha256
    predicate: str = ""  # which of its rows the target gets; empty = every row


class AnotherTable(SchemaChanged):
    """What the source has under a table's name is not what is captured, if it has anything there at all."""

    @classmethod
    def instead_of(cls, subject: Subject) -> AnotherTable:
        """Return the error that names the table."""
        return cls(
            f"{subject.schema.qualified} is not at the source as it is captured: it was altered, dropped or renamed; "
            "`venus status` says what to do once `venus sync` has seen it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a table in buckets: by ranges of the leading key column, or (`step` 0) the whole table by key digest.

    Ranges are contiguous, so that a differing bucket is read through the key's index, and rows that change together
    are in few of them. `low` and `high` bound the rows (None = open); what lies outside of the planned
    `origin .. origin + step * buckets` falls into the first or last bucket.
    """

    number: int = 0
    low: int | None = None
    high: int | None = None
    origin: int = 0
    step: int = 0
    buckets: int = 1
    #: Only buckets below this are compared: a sample of a table that is taken whole.
    sampled: int = 0

    @property
    def end(self) -> int:
        """The last key that has a place of its own."""
        return self.origin + self.step * self.buckets - 1

    def ranges(self, buckets: Collection[int] | None) -> list[tuple[int | None, int | None]]:
        """Return the key ranges [low, high) of these buckets, None = all; neighbours are joined."""
        if buckets is None:
            return [(self.low, self.high)]
        found: list[tuple[int | None, int | None]] = []
        for number in sorted(buckets):
            low = self.low if number == 0 else self.origin + number * self.step
            high = self.high if number == self.buckets - 1 else self.origin + (number + 1) * self.step
            if found and found[-1][1] == low:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
        return found


#: Bucket -> how many rows, and the sum of their checksums.
Buckets = dict[int, tuple[int, int]]


class Reader(Protocol):
    """One session at a database that is compared; used by one thread."""

    #: Whether the database computes checksums; if not, rows are read and the checksums computed here.
    pushes_down: bool

    def close(self) -> None: ...

    def begin(self, subject: Subject) -> None:
        """Open a snapshot in which the table cannot be truncated under our eyes. Raises SchemaChanged."""
        ...

    def end(self) -> None:
        """Let the snapshot go."""
        ...

    def estimate(self, subject: Subject) -> int:
        """Return about how many rows there are."""
        ...

    def cuts(self, subject: Subject, rows: int) -> list[int]:
        """Return every so-many-th value of the leading key column, with the first and the last; [] for no rows.

        Asked only where that column is of Kind.INT.
        """
        ...

    def buckets(self, subject: Subject, part: Slice) -> Buckets: ...

    def hashes(self, subject: Subject, part: Slice, buckets: Collection[int]) -> Iterator[tuple[Key, int]]:
        """Yield key and checksum of every row in these buckets."""
        ...

    def forms(self, subject: Subject, keys: Seq[Key]) -> list[tuple[Key, int, tuple[str, ...]]]:
        """Return key, checksum and the forms of each column: what calibration looks at."""
        ...

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        """Read rows: of a range slice those in the buckets, of a whole table all. `rows_max` 0 = no limit."""
        ...

    def find(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        """Read the rows that have these keys; rows whose keys only compare equal may come along."""
        ...


class SourceReader(Reader, Protocol):
    """A reader of the source: it also knows what has not been captured yet."""

    def tables(self) -> list[RegisteredTable]: ...

    def next_sequence(self) -> Sequence:
        """Return the checkpoint row's next Sequence as the snapshot shows it.

        Every change that the snapshot shows is in a batch below it, or its key is in the log (`waiting`).
        """
        ...

    def waiting(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        """Return those of the keys that the log names in this snapshot; all of them if it names the whole table."""
        ...

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        """Write these keys into the log, as if the application had changed their rows; in one transaction.

        The next cut then reads the rows as they are and ships them, or their absence, with new Sequences: the
        ordinary, ordered path, in which a change made meanwhile by anybody else is simply what is read.
        """
        ...


class _VerifyModule(Protocol):
    def open_reader(self, settings: Settings) -> SourceReader: ...


def open_reader(settings: Settings) -> SourceReader:
    """Connect to the source that `[source] url` names, to compare it."""
    dialect = dialect_of(settings.source.url.get_secret_value())
    name = f"venus.adapters.dialects.{dialect}.verify"
    try:
        module = cast(_VerifyModule, import_module(name))
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise Refused(f"a {dialect} source cannot be verified yet", hint="use --leg target") from error
    return module.open_reader(settings)
