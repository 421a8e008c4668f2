"""The interface by which `venus verify` reads a database: checksums of buckets, their rows, keys that wait in the log.

Support is optional: a dialect that supports `venus verify` has a module `verify` with `open_reader(settings)`. A
reader holds one snapshot at a time, between `begin` and `end`. As in data-diff and Veridata, databases compute
checksums where the rows are, and only differing buckets are examined. The checksum of a row is 60 bits of a digest
over one text per column, the *form* of the value. Every dialect writes the forms that `style_of` prescribes; this
module writes the forms where the database does not compute them. If calibration finds that a database computes other
forms of a table, the table's rows are read from that database and compared instead. The conditions that select rows
use only SQL that every database has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from venus.adapters.dialects.contract import RegisteredTable, SchemaChanged
from venus.adapters.dialects.registry import dialect_of
from venus.codec.batch import TableChanges
from venus.codec.columns import Value
from venus.config import Settings
from venus.errors import Refused
from venus.model import Kind, LogicalType, Sequence, TableSchema

#: The separator of a row's forms, and the form of NULL. The length in bytes precedes a form that can be any text.
SEPARATOR, NULL = "\x1f", "\x1e"
#: The number of leading hexadecimal digits used of a digest: 60 bits fit a signed number of 64 bits in every database.
HEX_DIGITS = 15

#: The forms of a key, without lengths: they identify a row on both sides.
Key = tuple[str, ...]


class FormStyle(Enum):
    """The conversion of a canonical text into a form."""

    PLAIN = "the canonical text"
    NUMBER = "without zeros at the end of the fraction"
    PADDED = "without trailing blanks, preceded by its length"
    FREE = "preceded by its length"
    HEX = "hexadecimal"


_STYLES = {
    Kind.TEXT: FormStyle.FREE,
    Kind.CHAR: FormStyle.PADDED,
    Kind.BYTES: FormStyle.HEX,
    Kind.JSON: FormStyle.FREE,
    Kind.ARRAY: FormStyle.FREE,
    Kind.NATIVE: FormStyle.FREE,
}


def style_of(logical: LogicalType) -> FormStyle:
    """Return how canonical texts of this type become forms, the texts that are compared."""
    if logical.kind is Kind.DECIMAL and not logical.precision:
        return FormStyle.NUMBER  # no scale is declared: 1.5 and 1.50 are one value
    return _STYLES.get(logical.kind, FormStyle.PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One table to compare, described in the same way for source and target."""

    schema: TableSchema
    where: str = ""  # a condition in SQL that both databases accept
    digest: str = "md5"  # or sha256
    predicate: str = ""  # selects the rows that the target gets; empty = every row


class TableReplaced(SchemaChanged):
    """The table of this name at the source is not the captured one, or does not exist."""

    @classmethod
    def for_subject(cls, subject: Subject) -> TableReplaced:
        """Return the error that names the table of a comparison."""
        return cls(
            f"{subject.schema.qualified_name} at the source is not the captured table: it was altered, "
            "dropped or renamed; `venus status` says what to do once `venus sync` has noticed the change"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a table, divided into buckets by ranges of the leading key column, or (`step` 0) by key digest.

    Ranges are contiguous, so that a differing bucket is read through the key's index and rows that change together
    share a few buckets. `low` and `high` bound the rows (None = open). Rows outside of the planned range `origin ..
    origin + step * buckets` belong to the first or the last bucket.
    """

    number: int = 0
    low: int | None = None
    high: int | None = None
    origin: int = 0
    step: int = 0
    buckets: int = 1
    #: Only buckets below this number are compared: a sample of a table in a single slice.
    sampled: int = 0

    @property
    def end(self) -> int:
        """The last key of the planned ranges."""
        return self.origin + self.step * self.buckets - 1

    def ranges(self, buckets: Collection[int] | None) -> list[tuple[int | None, int | None]]:
        """Return the key ranges [low, high) of these buckets, None = all; adjacent ranges are merged."""
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


#: By bucket: the number of rows and the sum of their checksums.
Buckets = dict[int, tuple[int, int]]


class Reader(Protocol):
    """Reader of one database of a comparison: it reads checksums and rows in a snapshot. Used by one thread."""

    #: Whether the database computes checksums; otherwise the adapter reads the rows and computes them.
    pushes_down: bool

    def close(self) -> None: ...

    def begin(self, subject: Subject) -> None:
        """Open a snapshot during which the table cannot be truncated. Raises SchemaChanged."""
        ...

    def end(self) -> None:
        """Close the snapshot."""
        ...

    def estimate_rows(self, subject: Subject) -> int:
        """Return the approximate number of rows."""
        ...

    def read_split_points(self, subject: Subject, rows: int) -> list[int]:
        """Return every `rows`-th value of the leading key column, with the first and the last; [] for no rows.

        Called only if the leading key column is of Kind.INT.
        """
        ...

    def read_buckets(self, subject: Subject, part: Slice) -> Buckets:
        """Return the row count and the sum of the checksums of each bucket."""
        ...

    def read_hashes(self, subject: Subject, part: Slice, buckets: Collection[int]) -> Iterator[tuple[Key, int]]:
        """Yield key and checksum of every row in these buckets."""
        ...

    def read_forms(self, subject: Subject, keys: Seq[Key]) -> list[tuple[Key, int, tuple[str, ...]]]:
        """Return key, checksum and the forms of each column, for calibration."""
        ...

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        """Read the rows in the buckets of a range slice, or all rows of a whole table. `rows_max` 0 = no limit."""
        ...

    def find_rows(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        """Read the rows with these keys; rows whose keys only compare as equal may be included."""
        ...


class SourceReader(Reader, Protocol):
    """A reader of the source, which also reads what has not been captured yet."""

    def read_tables(self) -> list[RegisteredTable]: ...

    def read_next_sequence(self) -> Sequence:
        """Return the next Sequence of the checkpoint row in this snapshot.

        Every change that the snapshot shows is in a batch below this Sequence, or its key is in the log
        (`find_waiting_keys`).
        """
        ...

    def find_waiting_keys(self, subject: Subject, keys: Seq[Key]) -> set[Key]:
        """Return the keys that are in the log in this snapshot; all of them if the log records the whole table."""
        ...

    def touch(self, subject: Subject, keys: Seq[Key]) -> None:
        """Write these keys into the log in one transaction, as if the application had changed their rows.

        The next cut reads the present rows of these keys and ships them, or deletions of missing ones, with new
        Sequences. The rows thus take the ordinary, ordered path, together with changes that other sessions make.
        """
        ...


class ChecksumReader(ABC):
    """A reader whose database computes the checksums, with the blocks of the dialect's verify.sql."""

    pushes_down = True

    @abstractmethod
    def _query(self, block: str, subject: Subject, **parts: str) -> Seq[tuple[Any, ...]]:
        """Return the rows of a block of verify.sql about this table."""

    @abstractmethod
    def _form_terms(self, subject: Subject, *, bare: bool = False) -> list[str]:
        """Return for each column the SQL of its form, the text that is compared; `bare`: without its length."""

    @abstractmethod
    def _checksum_term(self, subject: Subject, forms: Seq[str]) -> str:
        """Return the SQL that computes the checksum of a row from the SQL of its forms."""

    @abstractmethod
    def _leading_key(self, subject: Subject) -> str:
        """Return the SQL of the leading key column."""

    @abstractmethod
    def _range_bucket(self, key: str, part: Slice) -> str:
        """Return the SQL that computes a row's bucket number in a range slice; `key` is the leading key column."""

    @abstractmethod
    def _key_parts(self, subject: Subject, keys: Seq[Key]) -> dict[str, str]:
        """Return the placeholders of a block, with the SQL that selects the rows with these keys."""

    def read_buckets(self, subject: Subject, part: Slice) -> Buckets:
        bucket, where = self._bucket_term(subject, part), self._slice_condition(subject, part, None)
        checksum = self._checksum_term(subject, self._form_terms(subject))
        found = self._query("buckets", subject, bucket=bucket, checksum=checksum, where=where)
        return {int(bucket): (int(count), int(total)) for bucket, count, total in found}

    def read_hashes(self, subject: Subject, part: Slice, buckets: Collection[int]) -> Iterator[tuple[Key, int]]:
        keys, where = self._key_forms(subject), self._slice_condition(subject, part, buckets)
        checksum = self._checksum_term(subject, self._form_terms(subject))
        return ((r[1:], int(r[0])) for r in self._query("hashes", subject, checksum=checksum, keys=keys, where=where))

    def read_forms(self, subject: Subject, keys: Seq[Key]) -> list[tuple[Key, int, tuple[str, ...]]]:
        width, forms = len(subject.schema.key), self._form_terms(subject)
        parts = {"checksum": self._checksum_term(subject, forms), "forms": ", ".join(forms)}
        parts |= {"keys": self._key_forms(subject)} | self._key_parts(subject, keys)
        return [(r[1 : 1 + width], int(r[0]), r[1 + width :]) for r in self._query("forms", subject, **parts)]

    def _key_forms(self, subject: Subject) -> str:
        """Return the SQL of the forms of the key columns, without lengths."""
        return ", ".join(self._form_terms(subject, bare=True)[: len(subject.schema.key)])

    def _bucket_term(self, subject: Subject, part: Slice) -> str:
        """Return the SQL that computes a row's bucket number in any slice."""
        if part.step:
            return self._range_bucket(self._leading_key(subject), part)
        forms = self._form_terms(subject)[: len(subject.schema.key)]
        return f"({self._checksum_term(subject, forms)} & {part.buckets - 1})"

    def _slice_condition(self, subject: Subject, part: Slice, buckets: Collection[int] | None) -> str:
        """Return the SQL condition that selects a slice's rows, of all buckets or of these."""
        if part.step:
            return range_condition(subject, self._leading_key(subject), part, buckets)
        bucket = self._bucket_term(subject, part)
        chosen = f"{bucket} IN ({', '.join(map(str, sorted(buckets)))})" if buckets else ALWAYS
        sampled = f"{bucket} < {part.sampled}" if part.sampled else ALWAYS
        return f"{row_condition(subject)} AND {chosen} AND {sampled}"


class RowReader:
    """A reader of a database that computes no checksums: the caller reads the rows and computes them."""

    pushes_down = False

    def read_buckets(self, subject: Subject, part: Slice) -> NoReturn:
        _refuse_checksums(subject)

    def read_hashes(self, subject: Subject, part: Slice, buckets: Collection[int]) -> NoReturn:
        _refuse_checksums(subject)

    def read_forms(self, subject: Subject, keys: Seq[Key]) -> NoReturn:
        _refuse_checksums(subject)


def _refuse_checksums(subject: Subject) -> NoReturn:
    raise AssertionError(f"{subject.schema.qualified_name}: no checksum is asked of this database")


def key_forms(columns: Seq[Seq[Value]], schema: TableSchema) -> list[Key]:
    """Return the key of each row, in forms; `columns` are the values by column, the key columns first."""
    types = [c.type for c in schema.wire_columns[: len(schema.key)]]
    texts = [plain_forms(kind, column) for kind, column in zip(types, columns, strict=False)]
    return list(zip(*texts, strict=True))


def plain_forms(kind: LogicalType, values: Seq[Value]) -> list[str]:
    """Convert the canonical texts of one column to forms, the texts that are compared, without lengths."""
    match style_of(kind):
        case FormStyle.HEX:
            return [NULL if v is None else v.hex() for v in values]  # type: ignore[union-attr]
        case FormStyle.NUMBER:
            return [NULL if v is None else _trim_zeros(v) for v in values]  # type: ignore[arg-type]
        case FormStyle.PADDED:
            return [NULL if v is None else str(v).rstrip(" ") for v in values]
    return [NULL if v is None else v for v in values]  # type: ignore[misc]


def sized_forms(kind: LogicalType, values: Seq[Value]) -> list[str]:
    """Convert the canonical texts of one column to forms, with the length before a form that can be any text."""
    texts = plain_forms(kind, values)
    if style_of(kind) not in (FormStyle.FREE, FormStyle.PADDED):
        return texts
    return [
        NULL if v is None else f"{len(text) if text.isascii() else len(text.encode())}:{text}"
        for v, text in zip(values, texts, strict=True)
    ]


def _trim_zeros(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


ALWAYS, NEVER = "1 = 1", "1 = 0"


def row_condition(subject: Subject) -> str:
    """Return the condition that selects the rows to compare."""
    return f"({subject.where})" if subject.where else ALWAYS


def range_condition(subject: Subject, key: str, part: Slice, buckets: Collection[int] | None) -> str:
    """Return the condition for the rows in these buckets of a range slice; None = all buckets. `key` is SQL."""
    return f"{row_condition(subject)} AND ({' OR '.join(_range_term(key, *r) for r in part.ranges(buckets)) or NEVER})"


def _range_term(key: str, low: int | None, high: int | None) -> str:
    conditions = [f"{key} >= {low}"] * (low is not None) + [f"{key} < {high}"] * (high is not None)
    return f"({' AND '.join(conditions) or ALWAYS})"


class _VerifyModule(Protocol):
    """The module `verify` of a dialect."""

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
