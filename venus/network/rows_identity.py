"""Which rows of its tables a broker set has: an identity that travels with every position. Pure.

Two sets have the same rows of a table at an offset if every change was judged by the same ranges of the same columns.
What a set has was judged by itself and by every set above it, so their ranges are put together. A predicate holds for
as long as it fits a table; from the first version on that it does not fit, the table stands still, and it may fit again
later. So each run of versions that it fits has its own identity: rows that stood still differ from rows that were
selected again. Within a run the identity is the same, wherever the full data was taken. Labels are not part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import xxhash

from venus.model import TableSchema
from venus.network.row_filters import Fitted, RowFilter, fitted, starts_to_fit
from venus.predicates.ranges import Range, common, compiled

#: The filters of each set from the home down, at the cut of its full data. Without filters a set is left out.
Levels = tuple[tuple[RowFilter, ...], ...]

#: Of what is said for people.
ROWS_CHARS_MAX = 500
NO_ROWS, EVERY_ROW = "no rows", "every row"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Which rows of a table are there, in words, and their digest."""

    table_id: int
    name: str
    rows: str
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsIdentity:
    """The tables of which some rows are missing, by what a set says; tables that are not named are there whole."""

    set: str = ""
    tables: tuple[TableRows, ...] = ()

    @property
    def digests(self) -> dict[int, int]:
        """What counts."""
        return {one.table_id: one.digest for one in self.tables}

    def rows_of(self, table_id: int) -> str:
        """Return which rows of a table are there, in words."""
        return next((one.rows for one in self.tables if one.table_id == table_id), EVERY_ROW)


def encode(identity: RowsIdentity | None) -> dict[str, Any] | None:
    """Return what is stored beside a position."""
    if identity is None:
        return None
    tables = [[one.table_id, one.name, one.rows, f"{one.digest:016x}"] for one in identity.tables]
    return {"set": identity.set, "tables": tables}


def decode(stored: dict[str, Any] | None) -> RowsIdentity | None:
    """Read what `encode` returned; None = a position of an older version, which says nothing."""
    if stored is None:
        return None
    tables = (
        TableRows(table_id=table_id, name=name, rows=rows, digest=int(digest, 16))
        for table_id, name, rows, digest in stored["tables"]
    )
    return RowsIdentity(set=stored["set"], tables=tuple(tables))


def tables_of(levels: Levels, schemas: Iterable[TableSchema]) -> dict[int, TableRows]:
    """Return the tables of which some rows are missing; `schemas` are all versions below an offset."""
    versions: defaultdict[int, dict[int, TableSchema]] = defaultdict(dict)
    for schema in schemas:
        versions[schema.table_id][schema.version] = schema
    known = [schema for found in versions.values() for schema in found.values()]
    by_level = [(level, fitted(level, known)) for level in levels]
    found = {}
    for table_id, its in sorted(versions.items()):
        spans = [_span(level, fits[table_id], its) for level, fits in by_level if table_id in fits]
        if spans:
            name = its[max(its)].qualified
            rows, identity = _together(spans, its)
            digest = xxhash.xxh3_64_intdigest(identity.encode())
            found[table_id] = TableRows(table_id=table_id, name=name, rows=rows[:ROWS_CHARS_MAX], digest=digest)
    return found


def differing(brought: RowsIdentity, here: RowsIdentity, tables: Collection[int] | None = None) -> tuple[int, ...]:
    """Return the tables of which other rows are here than where somebody comes from; `tables` None = look at all."""
    one, other = brought.digests, here.digests
    return tuple(
        table_id
        for table_id in sorted(one.keys() | other.keys())
        if one.get(table_id) != other.get(table_id) and (tables is None or table_id in tables)
    )


def told(differ: Seq[int], brought: RowsIdentity, here: RowsIdentity) -> str:
    """Return what is different, for people; a few tables."""
    names = {one.table_id: one.name for one in (*brought.tables, *here.tables)}
    said = [f"{names[n]} ({here.rows_of(n)}; until now {brought.rows_of(n)})" for n in differ[:_SHOWN_MAX]]
    more = f" and {len(differ) - _SHOWN_MAX} more tables" if len(differ) > _SHOWN_MAX else ""
    return ", ".join(said) + more


_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The versions of a table for which a filter of one set holds. `end` None = it still does."""

    text: str
    first: int
    end: int | None
    has_rows: bool = True
    whole: bool = False  # every row, up to `end`

    def meets(self, version: int) -> bool:
        return self.first <= version and (self.end is None or version < self.end)


def _span(level: Seq[RowFilter], one: Fitted, versions: dict[int, TableSchema]) -> _Span:
    if not one.predicates and one.until:
        return _Span(text=one.text, first=min(versions), end=one.until, whole=True)
    if not one.predicates:
        return _Span(text=one.text, first=0, end=0, has_rows=False)
    return _Span(text=one.text, first=starts_to_fit(one, versions), end=one.until)


def _together(spans: Seq[_Span], versions: dict[int, TableSchema]) -> tuple[str, str]:
    """Return what every set on the way lets through, in words and as what is hashed."""
    if not all(span.has_rows for span in spans):
        return NO_ROWS, NO_ROWS
    first = max(span.first for span in spans)
    if not all(span.meets(first) for span in spans):  # one stood still before another was filled
        each = [_together([span], versions) for span in spans]
        return " and then ".join(words for words, _ in each), ";".join(identity for _, identity in each)
    texts = dict.fromkeys(span.text for span in spans if not span.whole)
    ranges = _ranges(texts, versions[first])
    if ranges is None:
        return NO_ROWS, NO_ROWS
    until = min((span.end for span in spans if span.whole and span.end), default=0)
    end = f" until version {until}" if until else ""
    words = " and ".join(texts) or EVERY_ROW
    counted = " and ".join(f"#{one.column.number} {one.sql}" for one in ranges)
    return f"{words}{end}", f"{counted} since {first}{end}"


def _ranges(texts: Iterable[str], schema: TableSchema) -> list[Range] | None:
    """Return the ranges that are inside all predicates, None if nothing can be."""
    found: dict[int, Range] = {}
    for text in texts:
        for one in compiled(text, schema).ranges:
            number = one.column.number
            both = common(found[number], one) if number in found else one
            if both is None:
                return None
            found[number] = both
    return [found[number] for number in sorted(found)]
