"""A predicate over one table: a range for each column that it names, in one canonical form. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import xxhash

from venus.model import Column, TableSchema
from venus.predicates.constants import UNORDERED, PredicateSort, Value, sort_of, value_of
from venus.predicates.syntax import PredicateRefused, Term, parse, quote_column
from venus.text.formatting import suggest_nearest

#: This many characters of a predicate cost as much as one value.
CHARS_OF_VALUE = 256


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range."""

    value: Value
    inclusive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Values of one column: only NULL if `null`; else `values`, or if None, all but NULL between the bounds."""

    column: Column
    sort: PredicateSort | None
    low: Bound | None = None
    high: Bound | None = None
    values: tuple[Value, ...] | None = None
    null: bool = False

    @property
    def sql(self) -> str:
        """The range in SQL."""
        name = quote_column(self.column.name)
        if self.null:
            return f"{name} is null"
        if self.values is not None:
            if len(self.values) == 1:
                return f"{name} = {self.values[0].sql}"
            return f"{name} in ({', '.join(v.sql for v in self.values)})"
        ends = [(self.low, ">"), (self.high, "<")]
        found = [f"{name} {sign}{'=' * b.inclusive} {b.value.sql}" for b, sign in ends if b is not None]
        return " and ".join(found) or f"{name} is not null"

    def holds(self, key: Any) -> bool:
        """Return whether a value that is not NULL is in the range."""
        if self.null:
            return False
        if self.values is not None:
            return any(key == v.key for v in self.values)
        return (
            self.low is None or key > self.low.value.key or (self.low.inclusive and key == self.low.value.key)
        ) and (self.high is None or key < self.high.value.key or (self.high.inclusive and key == self.high.value.key))


@dataclass(frozen=True)
class Predicate:
    """The rows of one table that a target gets: those that are in every range."""

    schema: TableSchema
    ranges: tuple[Range, ...]

    @cached_property
    def canonical(self) -> str:
        """The canonical text: two texts that mean the same ranges have the same one."""
        return " and ".join(r.sql for r in self.ranges)

    @cached_property
    def cost(self) -> int:
        """How many constants it compares; a long text counts as several."""
        ranges = sum(len(r.values) if r.values is not None else 1 for r in self.ranges)
        return max(ranges, len(self.canonical) // CHARS_OF_VALUE)

    @cached_property
    def digest(self) -> str:
        """A short name of the canonical form, in hexadecimal."""
        return f"{xxhash.xxh3_64_intdigest(self.canonical.encode()):016x}"


def compile_predicate(text: str, schema: TableSchema) -> Predicate:
    """Return a predicate's text as ranges over a table's columns. Raises PredicateRefused."""
    found: dict[str, Range] = {}
    for term in parse(text):
        column = _column(term, schema)
        narrowed = _narrow(found.get(column.name), term, column, schema)
        if narrowed is None:
            raise PredicateRefused(
                f"character {term.at}: no value of {column.name} meets this and what stands before it"
            )
        found[column.name] = narrowed
    return Predicate(schema, tuple(found[name] for name in sorted(found)))


def _column(term: Term, schema: TableSchema) -> Column:
    """Return the column that a term names. Raises PredicateRefused."""
    by_name = {c.name: c for c in schema.columns}
    if term.column in by_name:
        return by_name[term.column]
    alike = [c for c in schema.columns if not term.quoted and c.name.lower() == term.column.lower()]
    if len(alike) == 1:
        return alike[0]
    what = "more than one column" if alike else "no column"
    near = " or ".join(quote_column(c.name) for c in alike)
    hint = f"write {near}" if alike else f"its columns: {', '.join(by_name)}"
    raise PredicateRefused(
        f"character {term.at}: {schema.qualified_name} has {what} {term.column}"
        f"{'' if alike else suggest_nearest(term.column, by_name)}",
        hint=hint,
    )


def _narrow(known: Range | None, term: Term, column: Column, schema: TableSchema) -> Range | None:
    """Return the values in both the known range and the term; None = there are none."""
    sort = sort_of(schema, column)
    if term.sign == "null":
        return Range(column=column, sort=sort, null=True) if known is None or known.null else None
    if known is not None and known.null:
        return None
    known = known or Range(column=column, sort=sort)
    if term.sign == "not null":
        return known
    if sort is None:
        raise PredicateRefused(
            f"character {term.at}: {column.name} is {column.source_type or column.type.kind.name.lower()}, which "
            "databases do not compare alike",
            hint=f"allowed: {column.name} IS NULL and IS NOT NULL",
        )
    if term.sign not in ("=", "in") and sort in UNORDERED:
        raise PredicateRefused(f"character {term.at}: {column.name} is a {sort.value}, which has no order: use = or IN")
    values = [value_of(constant, schema, column, sort) for constant in term.values]
    if term.sign in ("=", "in"):
        return _restrict_to_values(known, values)
    return _restrict_by_bound(known, term.sign, values[0])


def intersect(one: Range, other: Range) -> Range | None:
    """Return the values in both of two ranges of one column; None = there are none."""
    if one.null or other.null:
        return one if one.null and other.null else None
    if other.values is not None:
        return _restrict_to_values(one, other.values)
    found: Range | None = one
    for bound, sign in ((other.low, ">"), (other.high, "<")):
        if bound is not None and found is not None:
            found = _restrict_by_bound(found, sign + "=" * bound.inclusive, bound.value)
    return found


def _restrict_to_values(known: Range, values: Iterable[Value]) -> Range | None:
    """Return the range limited to some values; None = none is left."""
    distinct = {value.key: value for value in values}
    kept = tuple(distinct[key] for key in sorted(distinct) if known.holds(key))
    return replace(known, low=None, high=None, values=kept) if kept else None


def _restrict_by_bound(known: Range, sign: str, value: Value) -> Range | None:
    """Return the range limited by one more bound; None = nothing is left."""
    bound = Bound(value, inclusive=sign.endswith("="))
    if known.values is not None:
        low, high = (bound, None) if sign[0] == ">" else (None, bound)
        end = Range(column=known.column, sort=known.sort, low=low, high=high)
        kept = tuple(v for v in known.values if end.holds(v.key))
        return replace(known, values=kept) if kept else None
    if sign[0] == ">":
        bound = bound if known.low is None else max(known.low, bound, key=lambda b: (b.value.key, not b.inclusive))
        return _normalise(replace(known, low=bound))
    bound = bound if known.high is None else min(known.high, bound, key=lambda b: (b.value.key, b.inclusive))
    return _normalise(replace(known, high=bound))


def _normalise(found: Range) -> Range | None:
    """Return a range in normal form: ends that meet become one value; None = the range is empty."""
    low, high = found.low, found.high
    if low is None or high is None or low.value.key < high.value.key:
        return found
    if low.value.key == high.value.key and low.inclusive and high.inclusive:
        return replace(found, low=None, high=None, values=(low.value,))
    return None


def is_same(one: str, other: str, schemas: Seq[TableSchema]) -> bool:
    """Return whether two texts mean the same rows, by the first version that fits both; an empty text = every row."""
    if one == other:
        return True
    for schema in schemas if one and other else ():
        try:
            return compile_predicate(one, schema).canonical == compile_predicate(other, schema).canonical
        except PredicateRefused:
            continue
    return False


def differing_column(before: Predicate | None, after: Predicate | None) -> str:
    """Return a column that both name but whose range differs; empty = there is none.

    Both are compiled from one text, for two versions of a table.
    """
    known = {r.column.name: r.column.number for r in before.ranges} if before else {}
    named = [r.column for r in after.ranges] if after else []
    return next((c.name for c in named if known.get(c.name, c.number) != c.number), "")


def contains(wide: Predicate, narrow: Predicate) -> bool:
    """Return whether every row inside `narrow` is inside `wide`; both are of one version of a table."""
    known = {found.column.number: found for found in narrow.ranges}
    return all(r.column.number in known and _is_within(r, known[r.column.number]) for r in wide.ranges)


def _is_within(wide: Range, narrow: Range) -> bool:
    """Return whether a range is inside another one."""
    if wide.null or narrow.null:
        return wide.null and narrow.null
    if wide.values is None and wide.low is None and wide.high is None:
        return True  # everything but NULL
    if narrow.values is not None:
        return all(wide.holds(value.key) for value in narrow.values)
    return wide.values is None and _is_above(wide.low, narrow.low) and _is_below(wide.high, narrow.high)


def _is_above(wide: Bound | None, narrow: Bound | None) -> bool:
    """Return whether the lower bound `narrow` is at or above the lower bound `wide`."""
    if wide is None or narrow is None:
        return wide is None
    same = narrow.value.key == wide.value.key and (wide.inclusive or not narrow.inclusive)
    return bool(narrow.value.key > wide.value.key) or same


def _is_below(wide: Bound | None, narrow: Bound | None) -> bool:
    """Return whether the upper bound `narrow` is at or below the upper bound `wide`."""
    if wide is None or narrow is None:
        return wide is None
    same = narrow.value.key == wide.value.key and (wide.inclusive or not narrow.inclusive)
    return bool(narrow.value.key < wide.value.key) or same
