"""Row filters of a broker set, fitted to the versions of the tables, and the identity of the rows that it has. Pure.

A filter applies to every table that ever had its name, from the version at the cut of the full data on. From the first
version that it does not fit, nothing of the table is mirrored, because rows selected by different columns must not be
mixed. A new cut starts over.

The identity is sent with every position. Two sets have the same rows of a table at an offset if the same ranges of the
same columns filtered every change. A set and all its upstream sets filter, so their ranges are combined. A predicate
applies while it fits a table. From the first version that it does not fit, the table is frozen; the predicate may fit
again later. So each run of versions that it fits has its own identity: frozen rows differ from rows selected again.
Within a run the identity is the same, wherever the full data was copied. Labels are not part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import xxhash

from venus.model import TableSchema
from venus.network.topology import is_labelled
from venus.predicates.ranges import Predicate, Range, compile_predicate, differing_column, intersect
from venus.predicates.syntax import PredicateRefused, parse, to_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Predicate for the rows of all tables with one name. `tables`: id and newest version of each at the cut."""

    table: str
    predicate: str
    tables: tuple[tuple[int, int], ...] = ()

    @property
    def content(self) -> tuple[str, str]:
        """The configured content, without the tables that it was fitted to."""
        return self.table.lower(), self.predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFilter:
    """A filter fitted to one table. `refused` says why nothing is mirrored from the version `until` on."""

    name: str
    text: str
    first: int = 0  # earlier versions are mirrored without the filter
    predicates: Mapping[int, Predicate] = field(default_factory=dict)
    until: int | None = None
    refused: str = ""

    def has_version(self, version: int) -> bool:
        """Whether anything of this version is mirrored."""
        return self.until is None or version < self.until

    def predicate_at(self, version: int) -> Predicate | None:
        """Return the predicate for a mirrored version; None = every row is wanted."""
        if version < self.first and self.first not in self.predicates:
            return None
        return self.predicates.get(max(version, self.first))


def parse_filters(where: Mapping[str, str]) -> tuple[RowFilter, ...]:
    """Parse the configured filters of a business. Raises PredicateRefused."""
    return tuple(RowFilter(table=name, predicate=to_sql(parse(text))) for name, text in sorted(where.items()))


def decode_filters(stored: Iterable[Mapping[str, Any]]) -> tuple[RowFilter, ...]:
    """Decode filters from dictionaries of their fields."""
    return tuple(RowFilter(**{**one, "tables": tuple((n, v) for n, v in one["tables"])}) for one in stored)


def is_same(one: Iterable[RowFilter], other: Iterable[RowFilter]) -> bool:
    """Whether two sets of filters select the same rows of the same tables."""
    return sorted(f.content for f in one) == sorted(f.content for f in other)


def with_tables(filters: Seq[RowFilter], schemas: Iterable[TableSchema]) -> tuple[RowFilter, ...]:
    """Return the filters with the tables that they apply to; `schemas` are all versions below the cut."""
    tables = _versions(schemas) if filters else {}
    return tuple(
        RowFilter(
            table=one.table,
            predicate=one.predicate,
            tables=tuple((n, versions[-1].version) for n, versions in tables.items() if _has_name(one, versions)),
        )
        for one in filters
    )


def fit_filters(filters: Seq[RowFilter], schemas: Iterable[TableSchema]) -> dict[int, FittedFilter]:
    """Fit the filters to each table that one of them applies to; `schemas` are all versions."""
    found = {}
    for table_id, versions in _versions(schemas).items():
        for one in filters:
            first = dict(one.tables).get(table_id)
            if first is not None or _has_name(one, versions):
                found[table_id] = _fit(one, versions, first)
                break
    return found


def first_fitting_version(one: FittedFilter, versions: Mapping[int, TableSchema]) -> int:
    """Return the earliest version from which the predicate fits every version up to the first filtered one."""
    begin = min(one.predicates)
    found, now = begin, one.predicates[begin]
    for version in sorted((v for v in versions if v < begin), reverse=True):
        try:
            before = compile_predicate(one.text, versions[version])
        except PredicateRefused:
            break
        if differing_column(before, now):
            break
        found, now = version, before
    return found


def _versions(schemas: Iterable[TableSchema]) -> dict[int, list[TableSchema]]:
    """Return the versions of each table in their order; VENUS's own heartbeat is never filtered."""
    found: defaultdict[int, list[TableSchema]] = defaultdict(list)
    for schema in schemas:
        if not schema.is_heartbeat:
            found[schema.table_id].append(schema)
    return {n: sorted(versions, key=lambda s: s.version) for n, versions in sorted(found.items())}


def _has_name(one: RowFilter, versions: Iterable[TableSchema]) -> bool:
    """Return whether a table has a filter's name in any of these versions."""
    return any(is_labelled((one.table,), s.namespace, s.name) for s in versions)


def _fit(one: RowFilter, versions: Seq[TableSchema], first: int | None) -> FittedFilter:
    """Fit a filter to a table; `first` is the version at the cut, None = the table came later."""
    born = next((s.version for s in versions if _has_name(one, [s])), versions[0].version)
    late = first is None and born != versions[0].version
    begin = born if first is None else first
    name = versions[-1].qualified_name
    found: dict[int, Predicate] = {}
    before: Predicate | None = None
    for schema in versions:
        if schema.version < begin:
            continue
        wrong, now = _judge(one, before, schema)
        if late:
            wrong = f"it has the name {one.table} since version {schema.version}, and its rows came whole before"
        if wrong or now is None:
            until = schema.version if found or late else 0
            return FittedFilter(
                name=name, text=one.predicate, first=begin, predicates=found, until=until, refused=wrong
            )
        found[schema.version] = before = now
    return FittedFilter(name=name, text=one.predicate, first=begin, predicates=found)


def _judge(one: RowFilter, before: Predicate | None, schema: TableSchema) -> tuple[str, Predicate | None]:
    """Return why a filter does not fit a version, empty = it fits, and its predicate there if there is one."""
    try:
        now = compile_predicate(one.predicate, schema)
    except PredicateRefused as refused:
        return f"its predicate ({one.predicate}) does not fit version {schema.version}: {refused}", None
    other = differing_column(before, now) if before is not None else ""
    if not other:
        return "", now
    return f"its predicate ({one.predicate}) names {other}, another column since version {schema.version}", now


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
    """Decode an identity; None = the position is of an older version, which stores none."""
    if stored is None:
        return None
    tables = (
        TableRows(table_id=table_id, name=name, rows=rows, digest=int(digest, 16))
        for table_id, name, rows, digest in stored["tables"]
    )
    return RowsIdentity(set=stored["set"], tables=tuple(tables))


def partial_tables(levels: Levels, schemas: Iterable[TableSchema]) -> dict[int, TableRows]:
    """Return the tables with missing rows or masked columns; `schemas` are all versions below an offset."""
    versions: defaultdict[int, dict[int, TableSchema]] = defaultdict(dict)
    for schema in schemas:
        versions[schema.table_id][schema.version] = schema
    known = [schema for found in versions.values() for schema in found.values()]
    by_level = [(level, fit_filters(level, known)) for level in levels]
    found = {}
    for table_id, its in sorted(versions.items()):
        spans = [_find_span(level, fits[table_id], its) for level, fits in by_level if table_id in fits]
        newest = its[max(its)]
        if spans or newest.masked_above:
            name = newest.qualified_name
            rows, identity = _combine(spans, its) if spans else (EVERY_ROW, EVERY_ROW)
            if newest.masked_above:
                rows, identity = f"{rows}; {newest.masked_above}", f"{identity}; {newest.masked_above}"
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
    """The versions of a table to which a filter of one set applies. `end` is None while it applies."""

    text: str
    first: int
    end: int | None
    has_rows: bool = True
    whole: bool = False  # every row passes, in the versions before `end`

    def has_version(self, version: int) -> bool:
        """Return whether the filter applies to a version."""
        return self.first <= version and (self.end is None or version < self.end)


def _find_span(level: Seq[RowFilter], one: FittedFilter, versions: dict[int, TableSchema]) -> _Span:
    """Return the versions to which one set's filter of a table applies."""
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
    if not all(span.has_version(first) for span in spans):  # one set froze it before another was filled
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
