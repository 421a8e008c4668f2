"""One number for a whole table, the same wherever it is read and in whatever order (features 3, U9).

The hash of a table is the sum of xxh3-128 over its row messages, modulo 2^128: order does not matter, a missing or
doubled row does. A row message is canonical text, so three readings of equal rows give equal sums: the source's own
snapshot, the broker's full data, and the target, whose COPY text goes through the same codec. Where two databases spell
one value in two ways (12.5 and 12.50), both are compared as the target spells them.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from venus.codec.changes import TableChanges
from venus.codec.columns import from_columns, to_columns
from venus.codec.layout import Layout
from venus.codec.packed import Packed
from venus.model import TableSchema

_MODULUS = 1 << 128


@dataclass(slots=True)
class TableHash:
    """Grows by sections of rows."""

    rows: int = 0
    total: int = 0

    def add(self, record_ids: Packed, rows: Packed) -> None:
        """Add the messages of a section: record_id and row together are one."""
        pairs = zip(record_ids.split(), rows.split(), strict=True)
        digests = map(xxhash.xxh3_128_intdigest, (record_id + row for record_id, row in pairs))
        self.total = (self.total + sum(digests)) % _MODULUS
        self.rows += len(record_ids)

    @property
    def text(self) -> str:
        """The hash as people and JSON have it."""
        return f"{self.total:032x}"


def laid_out(section: TableChanges, version: TableSchema, newest: TableSchema) -> tuple[Packed, Packed]:
    """Return the rows of a section in this version as messages of the newest one.

    Rows that were written before a column was added lack it; of rows that still have a dropped one, it is left out.
    """
    have, wanted = Layout.of(version), Layout.of(newest)
    if have.numbers == wanted.numbers and have.key_count == wanted.key_count:
        return section.record_ids, section.rows
    values = dict(zip(have.numbers, to_columns(section.record_ids, section.rows, have), strict=True))
    nothing = [None] * section.count
    return from_columns([values.get(number, nothing) for number in wanted.numbers], wanted)
