"""Division of a table into slices and of a slice into buckets. Pure.

Where the leading key column is an integer, slices are its ranges, with about equally many rows. Any other key is
ordered differently by every database, so such a table is one slice, in buckets by the digest of its key.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq

from venus.adapters.dialects.verify_contract import Slice
from venus.model import Kind, TableSchema

#: Rows of a slice: a tenth or two of a second at a database, and little to read again after a change.
SLICE_ROWS = 50_000
RANGE_BUCKETS = 512
#: Rows of a bucket of a table that is one slice.
BUCKET_ROWS = 64
BUCKETS_MIN, BUCKETS_MAX = 64, 1 << 16
#: Beyond this the arithmetic of ranges would not fit 64 bits.
_RANGE_MAX = 1 << 61


def can_slice_by_range(schema: TableSchema) -> bool:
    """Return whether the table can be divided by ranges of its key."""
    return schema.wire_columns[0].type.kind is Kind.INT


def range_slices(cuts: Seq[int]) -> list[Slice]:
    """Return the slices between these values of the leading key, open at both ends; [] if impossible."""
    bounds = sorted(set(cuts))
    if not bounds:
        return [_between(0, None, None, 0, 0)]
    if bounds[0] < -_RANGE_MAX or bounds[-1] > _RANGE_MAX:
        return []
    inner = bounds[1:-1]
    lows, highs = [None, *inner], [*inner, None]
    return [
        _between(n, low, high, bounds[0] if low is None else low, bounds[-1] if high is None else high - 1)
        for n, (low, high) in enumerate(zip(lows, highs, strict=True))
    ]


def _between(number: int, low: int | None, high: int | None, first: int, last: int) -> Slice:
    width = max(1, last - first + 1)
    step = -(-width // RANGE_BUCKETS)
    return Slice(number=number, low=low, high=high, origin=first, step=step, buckets=min(RANGE_BUCKETS, width))


def whole_slice(rows: int) -> Slice:
    """Return the single slice of a whole table."""
    wanted = max(BUCKETS_MIN, min(BUCKETS_MAX, rows // BUCKET_ROWS))
    return Slice(buckets=1 << (wanted - 1).bit_length())


def draw_sample(slices: Seq[Slice], share: float, draw: random.Random) -> list[Slice]:
    """Return a share of the slices, at least one; of a whole table, a share of its buckets."""
    if share >= 1:
        return list(slices)
    if len(slices) == 1 and not slices[0].step:
        whole = slices[0]
        return [Slice(buckets=whole.buckets, sampled=max(1, round(whole.buckets * share)))]
    chosen = draw.sample(list(slices), max(1, round(len(slices) * share)))
    return sorted(chosen, key=lambda part: part.number)
