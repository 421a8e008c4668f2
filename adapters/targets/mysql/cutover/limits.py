"""Which values the columns of a MariaDB or MySQL database can hold (targets/way_back.py). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from venus.adapters.dialects.mysql.dictionary.types import MysqlDeclaredType
from venus.adapters.targets.cutover_contract import ColumnLimits
from venus.adapters.targets.way_back import travelling_limits
from venus.model import Column

_INT_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
#: The longest value of types that have a limit by themselves.
_BYTES = {"tinytext": 255, "text": 65_535, "mediumtext": 16_777_215}
_BYTES |= {name.replace("text", "blob"): size for name, size in _BYTES.items()}
_UNICODE = ("", "utf8mb4", "utf16", "utf16le", "utf32")
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_FIRST_YEAR, _LAST_DAY = "0000-01-01", "9999-12-31"


def _integer_limits(declared: MysqlDeclaredType) -> dict[str, Any]:
    bits = _INT_BITS[declared.data_type]
    if declared.is_unsigned:
        return {"lowest": Decimal(0), "highest": Decimal(2**bits - 1)}
    return {"lowest": Decimal(-(2 ** (bits - 1))), "highest": Decimal(2 ** (bits - 1) - 1)}


def _decimal_limits(declared: MysqlDeclaredType) -> dict[str, Any]:
    return {"lowest": Decimal(0)} if declared.is_unsigned else {}


def _time_limits(declared: MysqlDeclaredType) -> dict[str, Any]:
    return {"lowest": Decimal(-838), "highest": Decimal(838), "unit": "hours", "scale": declared.fraction}


#: By data type: the fields of `ColumnLimits` in which it differs from the logical type.
_LIMITS: Mapping[str, Callable[[MysqlDeclaredType], dict[str, Any]]] = {
    **dict.fromkeys(_INT_BITS, _integer_limits),
    "decimal": _decimal_limits,
    "year": lambda _: {"lowest": Decimal(1901), "highest": Decimal(2155)},
    "enum": lambda declared: {"labels": parse_labels(declared.column_type)},
    "date": lambda _: {"earliest": _FIRST_YEAR, "latest": _LAST_DAY},
    "datetime": lambda _: {"earliest": _FIRST_YEAR, "latest": f"{_LAST_DAY} 23:59:59.999999"},
    "timestamp": lambda _: {"earliest": "1970-01-01 00:00:01", "latest": "2038-01-19 03:14:07.999999"},
    "time": _time_limits,
}


def limit_column(column: Column, declared: MysqlDeclaredType) -> ColumnLimits:
    """Return the limits of a column's values: neither NaN nor infinity, and no year before 0."""
    limits = replace(travelling_limits(column), specials=frozenset())
    if declared.data_type in _BYTES and not declared.is_json:
        limits = replace(limits, bytes=_BYTES[declared.data_type])
    if declared.is_text and declared.charset not in _UNICODE:
        limits = replace(limits, charset=declared.charset)
    differs = _LIMITS.get(declared.data_type)
    return replace(limits, **differs(declared)) if differs is not None else limits


def parse_labels(column_type: str) -> tuple[str, ...]:
    """Return the labels of an enum as the dictionary spells its type."""
    return tuple(label.replace("''", "'") for label in _LABEL.findall(column_type))
