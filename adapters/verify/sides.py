"""The two kinds of sides of a comparison: the database computes checksums, or VENUS reads rows and computes them.

For a slice, a side returns the checksum of each bucket, the keys and checksums in chosen buckets, and the rows of
chosen keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from venus.adapters.dialects.verify_contract import Buckets, Key, Reader, Slice, Subject, key_forms
from venus.adapters.verify.rows import Columns, Row, checksums, columns_of, rows_inside
from venus.codec.batch import TableChanges
from venus.model import TableSchema

#: How many keys one statement selects when rows are fetched.
KEYS_AT_ONCE = 500

Ints = npt.NDArray[np.int64]
Scan = Callable[[Slice, Collection[int] | None], Iterator[TableChanges]]


class Side(Protocol):
    """Side of a comparison (source, full data or target) in one snapshot."""

    #: How many rows, or keys with checksums, were transferred from their store.
    moved: int
    #: Keys that several rows share, with the number of rows, from the last call of `hashes`.
    repeated: dict[Key, int]

    def buckets(self, part: Slice) -> Buckets:
        """Return the row count and the sum of the checksums of each bucket of a slice."""
        ...

    def hashes(self, part: Slice, buckets: Collection[int]) -> dict[Key, int]:
        """Return the checksum of every row in these buckets, by key."""
        ...

    def rows(self, part: Slice, keys: Seq[Key]) -> dict[Key, Row]:
        """Return the rows of a slice with these keys."""
        ...


class PushedSide:
    """Side whose database computes the checksums."""

    def __init__(self, reader: Reader, subject: Subject) -> None:
        self._reader = reader
        self._subject = subject
        self.moved = 0
        self.repeated: dict[Key, int] = {}

    def buckets(self, part: Slice) -> Buckets:
        return self._reader.read_buckets(self._subject, part)

    def hashes(self, part: Slice, buckets: Collection[int]) -> dict[Key, int]:
        found = list(self._reader.read_hashes(self._subject, part, buckets))
        self.moved += len(found)
        self.repeated = _find_repeated(key for key, _ in found)
        return dict(found)

    def rows(self, part: Slice, keys: Seq[Key]) -> dict[Key, Row]:
        found = find_rows(self._reader, self._subject, keys)
        self.moved += len(found)
        return found


def _find_repeated(keys: Iterable[Key]) -> dict[Key, int]:
    """Return the keys that occur more than once, with their numbers."""
    return {key: rows for key, rows in Counter(keys).items() if rows > 1}


def find_rows(reader: Reader, subject: Subject, keys: Seq[Key]) -> dict[Key, Row]:
    """Read the rows with these keys, many at a time."""
    wanted, schema = set(keys), subject.schema
    found: dict[Key, Row] = {}
    for first in range(0, len(keys), KEYS_AT_ONCE):
        for section in reader.find_rows(subject, keys[first : first + KEYS_AT_ONCE]):
            columns = columns_of(section, {schema.version: schema}, schema)
            pairs = zip(key_forms(columns, schema), zip(*columns, strict=True), strict=True)
            found |= {key: row for key, row in pairs if key in wanted}
    return found


@dataclass(slots=True)
class _ReadSection:
    """Section of rows that were read, with the checksum and the bucket of each row."""

    columns: Columns
    sums: npt.NDArray[np.uint64]
    places: Ints


@dataclass(slots=True)
class ScannedSide:
    """Side whose rows VENUS reads, to compute the checksums itself.

    The rows of a range slice are kept; the rows of a whole table are read again at each call.
    """

    scan: Scan
    subject: Subject
    versions: Mapping[int, TableSchema]
    #: The predicate: only rows that it selects are compared; empty means every row.
    predicate: str = ""
    moved: int = 0
    repeated: dict[Key, int] = field(default_factory=dict)
    _kept: tuple[Slice, list[_ReadSection]] | None = None
    _rows: dict[Key, Row] = field(default_factory=dict)

    def buckets(self, part: Slice) -> Buckets:
        counts = np.zeros(part.buckets, dtype=np.int64)
        totals = [0] * part.buckets
        for read in self._sections(part, None):
            counts += np.bincount(read.places, minlength=part.buckets)
            _add_checksums(totals, read)
        return {n: (int(count), totals[n]) for n, count in enumerate(counts.tolist()) if count}

    def hashes(self, part: Slice, buckets: Collection[int]) -> dict[Key, int]:
        found: dict[Key, int] = {}
        every: list[Key] = []
        self._rows = {}
        wanted = np.zeros(part.buckets, dtype=np.bool_)
        wanted[list(buckets)] = True
        for read in self._sections(part, buckets):
            chosen = np.flatnonzero(wanted[read.places]).tolist()
            columns = [[column[n] for n in chosen] for column in read.columns]
            keys = key_forms(columns, self.subject.schema)
            every += keys
            found.update(zip(keys, read.sums[chosen].tolist(), strict=True))
            self._rows.update(zip(keys, zip(*columns, strict=True), strict=True))
        self.repeated = _find_repeated(every)
        return found

    def rows(self, part: Slice, keys: Seq[Key]) -> dict[Key, Row]:
        return {key: self._rows[key] for key in keys if key in self._rows}

    def _sections(self, part: Slice, buckets: Collection[int] | None) -> Iterable[_ReadSection]:
        """Return the sections of a slice. Keeps the sections of a range slice for the next call."""
        if self._kept is not None and self._kept[0] == part:
            return self._kept[1]
        if not part.step:
            return self._read_sections(part, buckets)
        self._kept = (part, list(self._read_sections(part, None)))
        return self._kept[1]

    def _read_sections(self, part: Slice, buckets: Collection[int] | None) -> Iterator[_ReadSection]:
        """Yield the rows of a slice that the predicate chooses, with checksums and buckets."""
        schema = self.subject.schema
        for section in self.scan(part, buckets):
            self.moved += section.count
            columns = columns_of(section, self.versions, schema)
            if self.predicate and section.count:
                chosen = np.flatnonzero(rows_inside(self.predicate, columns, schema)).tolist()
                columns = [[column[n] for n in chosen] for column in columns]
            sums = checksums(columns, schema, self.subject.digest)
            places = places_of(columns, part, self.subject)
            if part.sampled:
                inside = np.flatnonzero(places < part.sampled).tolist()
                columns = [[column[n] for n in inside] for column in columns]
                sums, places = sums[inside], places[inside]
            yield _ReadSection(columns, sums, places)


def places_of(columns: Columns, part: Slice, subject: Subject) -> Ints:
    """Return the bucket of each row."""
    if not part.step:
        key = columns[: len(subject.schema.key)]
        return (checksums(key, subject.schema, subject.digest) & np.uint64(part.buckets - 1)).astype(np.int64)
    leading = np.fromiter(map(int, columns[0]), dtype=np.int64, count=len(columns[0]))  # type: ignore[arg-type]
    inside = np.minimum(np.maximum(leading, part.origin), part.end)
    return (inside - part.origin) // part.step


def _add_checksums(totals: list[int], read: _ReadSection) -> None:
    """Add a section's checksums to the totals of its buckets, in halves: sums of 60-bit values exceed 64 bits."""
    low = np.bincount(read.places, weights=(read.sums & np.uint64(0x3FFFFFFF)).astype(np.float64))
    high = np.bincount(read.places, weights=(read.sums >> np.uint64(30)).astype(np.float64))
    for n in np.flatnonzero(np.bincount(read.places)).tolist():
        totals[n] += (int(high[n]) << 30) + int(low[n])
