"""Identity of the rows that a broker set has, sent with every position. Pure.

Two sets have the same rows of a table at an offset if the same ranges of the same columns filtered every change. A set
and all its upstream sets filter, so their ranges are combined. A predicate applies while it fits a table. From the
first version that it does not fit, the table is frozen; the predicate may fit again later. So each run of versions that
it fits has its own identity: frozen rows differ from rows selected again. Within a run the identity is the same,
wherever the full data was copied. Labels are not part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import xxhash

from venus.model import TableSchema
from venus.network.row_filters import FittedFilter, RowFilter, first_fitting_version, fit_filters
from venus.predicates.ranges import Range, compile_predicate, intersect

#: The filters of each set from the home down, at the cut of its full data; sets without filters are omitted.
Levels = tuple[tuple[RowFilter, ...], ...]

#: Maximum length of descriptions.
ROWS_CHARS_MAX = 500
NO_ROWS, EVERY_ROW = "no rows", "every row"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """The rows of a table, in words and as a digest."""

    table_id: int
    name: str
    rows: str
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsIdentity:
    """The tables with missing rows at a set; tables that are not named are complete."""

    set: str = ""
    tables: tuple[TableRows, ...] = ()

    @property
    def digests(self) -> dict[int, int]:
        """The digests, which alone are compared."""
        return {one.table_id: one.digest for one in self.tables}

    def rows_of(self, table_id: int) -> str:
        """Return the rows of a table in words."""
        return next((one.rows for one in self.tables if one.table_id == table_id), EVERY_ROW)


def encode_identity(identity: RowsIdentity | None) -> dict[str, Any] | None:
    """Encode an identity to store it with a position."""
    if identity is None:
        return None
    tables = [[one.table_id, one.name, one.rows, f"{one.digest:016x}"] for one in identity.tables]
    return {"set": identity.set, "tables": tables}


def decode_identity(stored: dict[str, Any] | None) -> RowsIdentity | None:
    """Decode an identity; None = a position of an older version, which has none."""
    if stored is None:
        return None
    tables = (
        TableRows(table_id=table_id, name=name, rows=rows, digest=int(digest, 16))
        for table_id, name, rows, digest in stored["tables"]
    )
    return RowsIdentity(set=stored["set"], tables=tuple(tables))


def partial_tables(levels: Levels, schemas: Iterable[TableSchema]) -> dict[int, TableRows]:
    """Return the tables with missing rows; `schemas` are all versions below an offset."""
    versions: defaultdict[int, dict[int, TableSchema]] = defaultdict(dict)
    for schema in schemas:
        versions[schema.table_id][schema.version] = schema
    known = [schema for found in versions.values() for schema in found.values()]
    by_level = [(level, fit_filters(level, known)) for level in levels]
    found = {}
    for table_id, its in sorted(versions.items()):
        spans = [_find_span(level, fits[table_id], its) for level, fits in by_level if table_id in fits]
        if spans:
            name = its[max(its)].qualified
            rows, identity = _combine(spans, its)
            digest = xxhash.xxh3_64_intdigest(identity.encode())
            found[table_id] = TableRows(table_id=table_id, name=name, rows=rows[:ROWS_CHARS_MAX], digest=digest)
    return found


def find_differing(brought: RowsIdentity, here: RowsIdentity, tables: Collection[int] | None = None) -> tuple[int, ...]:
    """Return the tables whose rows differ between a consumer's position and this set; `tables` None = all."""
    one, other = brought.digests, here.digests
    return tuple(
        table_id
        for table_id in sorted(one.keys() | other.keys())
        if one.get(table_id) != other.get(table_id) and (tables is None or table_id in tables)
    )


def describe_differences(differ: Seq[int], brought: RowsIdentity, here: RowsIdentity) -> str:
    """Describe the differences, of a few tables."""
    names = {one.table_id: one.name for one in (*brought.tables, *here.tables)}
    said = [f"{names[n]} ({here.rows_of(n)}; until now {brought.rows_of(n)})" for n in differ[:_SHOWN_MAX]]
    more = f" and {len(differ) - _SHOWN_MAX} more tables" if len(differ) > _SHOWN_MAX else ""
    return ", ".join(said) + more


_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The versions of a table to which a filter of one set applies. `end` None = it still applies."""

    text: str
    first: int
    end: int | None
    has_rows: bool = True
    whole: bool = False  # every row, up to `end`

    def has_version(self, version: int) -> bool:
        return self.first <= version and (self.end is None or version < self.end)


def _find_span(level: Seq[RowFilter], one: FittedFilter, versions: dict[int, TableSchema]) -> _Span:
    if not one.predicates and one.until:
        return _Span(text=one.text, first=min(versions), end=one.until, whole=True)
    if not one.predicates:
        return _Span(text=one.text, first=0, end=0, has_rows=False)
    return _Span(text=one.text, first=first_fitting_version(one, versions), end=one.until)


def _combine(spans: Seq[_Span], versions: dict[int, TableSchema]) -> tuple[str, str]:
    """Return the rows that pass every set on the path, in words and as the text for the digest."""
    if not all(span.has_rows for span in spans):
        return NO_ROWS, NO_ROWS
    first = max(span.first for span in spans)
    if not all(span.has_version(first) for span in spans):  # one set was frozen before another was filled
        each = [_combine([span], versions) for span in spans]
        return " and then ".join(words for words, _ in each), ";".join(identity for _, identity in each)
    texts = dict.fromkeys(span.text for span in spans if not span.whole)
    ranges = _intersect(texts, versions[first])
    if ranges is None:
        return NO_ROWS, NO_ROWS
    until = min((span.end for span in spans if span.whole and span.end), default=0)
    end = f" until version {until}" if until else ""
    words = " and ".join(texts) or EVERY_ROW
    counted = " and ".join(f"#{one.column.number} {one.sql}" for one in ranges)
    return f"{words}{end}", f"{counted} since {first}{end}"


def _intersect(texts: Iterable[str], schema: TableSchema) -> list[Range] | None:
    """Return the intersection of all predicates' ranges, None if it is empty."""
    found: dict[int, Range] = {}
    for text in texts:
        for one in compile_predicate(text, schema).ranges:
            number = one.column.number
            both = intersect(found[number], one) if number in found else one
            if both is None:
                return None
            found[number] = both
    return [found[number] for number in sorted(found)]
