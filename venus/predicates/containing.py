"""Whether every row inside one predicate is inside another one. Pure."""

from __future__ import annotations

from venus.predicates.ranges import Bound, Predicate, Range


def contains(wide: Predicate, narrow: Predicate) -> bool:
    """Whether all that is inside `narrow` is inside `wide`; both are of one version of a table."""
    known = {found.column.number: found for found in narrow.ranges}
    return all(r.column.number in known and _is_within(r, known[r.column.number]) for r in wide.ranges)


def _is_within(wide: Range, narrow: Range) -> bool:
    if wide.null or narrow.null:
        return wide.null and narrow.null
    if wide.values is None and wide.low is None and wide.high is None:
        return True  # everything but NULL
    if narrow.values is not None:
        return all(wide.holds(value.key) for value in narrow.values)
    return wide.values is None and _is_above(wide.low, narrow.low) and _is_below(wide.high, narrow.high)


def _is_above(wide: Bound | None, narrow: Bound | None) -> bool:
    if wide is None or narrow is None:
        return wide is None
    same = narrow.value.key == wide.value.key and (wide.inclusive or not narrow.inclusive)
    return bool(narrow.value.key > wide.value.key) or same


def _is_below(wide: Bound | None, narrow: Bound | None) -> bool:
    if wide is None or narrow is None:
        return wide is None
    same = narrow.value.key == wide.value.key and (wide.inclusive or not narrow.inclusive)
    return bool(narrow.value.key < wide.value.key) or same
