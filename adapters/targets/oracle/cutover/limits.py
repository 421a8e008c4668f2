"""The values that columns of an Oracle database can hold (targets/way_back.py). Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

from venus.adapters.dialects.oracle.dictionary.tables import CharacterSets, OracleReading
from venus.adapters.dialects.oracle.dictionary.types import OracleDeclaredType
from venus.adapters.targets.cutover_contract import ColumnLimits
from venus.adapters.targets.way_back import travelling_limits
from venus.model import Column, Kind

#: The greatest NUMBER without a precision.
_NUMBER_MAX = Decimal("9.99E125")
_LAST_MOMENT = "9999-12-31 23:59:59.999999"
_PLACES = re.compile(r"INTERVAL (YEAR|DAY)\((\d)\)")
_TEXTS = (Kind.TEXT, Kind.CHAR)


def limit_column(column: Column, reading: OracleReading, sets: CharacterSets) -> ColumnLimits:
    """Return the limits of a column's values: no infinite time, and no empty text except in a LOB."""
    declared, kind = reading.declared, column.type.kind
    limits = replace(travelling_limits(column), type=declared.sql_type, specials=frozenset())
    if declared.data_type in ("NUMBER", "FLOAT") and kind is not Kind.BOOL:
        limits = replace(limits, **_number_limits(declared))
    if kind is Kind.FLOAT:
        limits = replace(limits, specials=frozenset({"infinity", "NaN"}))
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.DATE):
        limits = replace(limits, latest=_LAST_MOMENT, specials=frozenset({"BC"}))
    if found := _PLACES.match(declared.data_type):
        highest = Decimal(10 ** int(found[2]) - 1)
        limits = replace(limits, lowest=-highest, highest=highest, unit=f"{found[1].lower()}s")
    if kind in (*_TEXTS, Kind.BYTES) and not reading.mapping.located:
        limits = replace(limits, empty_is_null=True)
    if kind in _TEXTS and declared.in_bytes:
        limits = replace(limits, bytes=declared.length)
    if kind in _TEXTS and sets.converts(declared):
        limits = replace(limits, charset=sets.database)
    return limits


def _number_limits(declared: OracleDeclaredType) -> dict[str, Any]:
    """Return the lowest and the highest value of a NUMBER or FLOAT."""
    if declared.precision is None or declared.data_type == "FLOAT":
        return {"lowest": -_NUMBER_MAX, "highest": _NUMBER_MAX}
    scale = declared.scale or 0
    highest = Decimal((0, (9,) * declared.precision, -scale))
    return {"lowest": highest.copy_negate(), "highest": highest}
