"""The values that columns of a SQLite file can hold and give back (targets/way_back.py). Pure.

A column of SQLite can hold any value. The limits are those of capture, which reads values according to the declared
type.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from venus.adapters.targets.cutover_contract import ColumnLimits
from venus.adapters.targets.way_back import travelling_limits
from venus.model import Column, Kind

#: How many digits SQLite keeps of a number that is not a 64-bit integer.
_DIGITS = 15
_FIRST_DAY, _LAST_DAY = "0001-01-01", "9999-12-31"
_INFINITE = (Kind.FLOAT, Kind.DECIMAL)


def limit_column(column: Column, declared: str) -> ColumnLimits:
    """Return the limits of a column's values: no NaN, no infinite time, and no year before 1."""
    kind = column.type
    limits = replace(travelling_limits(column), type=declared, required=False, specials=frozenset())
    if kind.kind in _INFINITE and not kind.precision:
        limits = replace(limits, specials=frozenset({"infinity"}))
    if kind.kind is Kind.DECIMAL and not kind.precision:
        return replace(limits, scale=_DIGITS)
    if kind.kind is Kind.DECIMAL and kind.precision > _DIGITS and kind.scale > 0:
        highest = Decimal((0, (9,) * _DIGITS, -kind.scale))
        return replace(limits, lowest=-highest, highest=highest)
    if kind.kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        last = _LAST_DAY if kind.kind is Kind.DATE else f"{_LAST_DAY} 23:59:59.999999"
        return replace(limits, earliest=_FIRST_DAY, latest=last)
    return limits
