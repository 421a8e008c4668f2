"""Row filters of a broker set: configured predicates, fitted to the versions of the tables. Pure.

A filter applies to every table that ever had its name, from the version at the cut of the full data on. From the first
version that it does not fit, nothing of the table is mirrored, because rows selected by different columns must not be
mixed. A new cut starts over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from venus.model import TableSchema
from venus.network.topology import is_labelled
from venus.predicates.ranges import Predicate, compile_predicate, differing_column
from venus.predicates.syntax import PredicateRefused, parse, to_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Filter for the rows of all tables of a name. `tables`: id and newest version of each at the cut."""

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
    """Return the first version of a table from which the predicate fits all, up to the first one that it applies to."""
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
    return any(is_labelled((one.table,), s.namespace, s.name) for s in versions)


def _fit(one: RowFilter, versions: Seq[TableSchema], first: int | None) -> FittedFilter:
    born = next((s.version for s in versions if _has_name(one, [s])), versions[0].version)
    late = first is None and born != versions[0].version
    begin = born if first is None else first
    name = versions[-1].qualified
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
    """Return why a filter does not fit a version, or its predicate there."""
    try:
        now = compile_predicate(one.predicate, schema)
    except PredicateRefused as refused:
        return f"its predicate ({one.predicate}) does not fit version {schema.version}: {refused}", None
    other = differing_column(before, now) if before is not None else ""
    if not other:
        return "", now
    return f"its predicate ({one.predicate}) names {other}, another column since version {schema.version}", now
