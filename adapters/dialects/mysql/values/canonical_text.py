"""Conversion of MySQL's texts to canonical text (protos/venus/wire/change.proto), a column at a time.

A value without a canonical form (a zero date, 31 February under ALLOW_INVALID_DATES) is never changed silently. It
halts its table, or becomes NULL if the source's URL requests that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence as Seq
from datetime import date, datetime
from functools import partial

from venus.adapters.dialects.floats import float_text
from venus.adapters.dialects.mysql.dictionary.types import NO_TEXT, MysqlDeclaredType
from venus.model import Column, Kind

Value = str | bytes | None
MysqlValueRule = Callable[[Seq[Value]], Seq[Value]]

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(.*)", re.DOTALL)


class MysqlValueError(ValueError):
    """A value that has no canonical form."""


def value_rule(column: Column, declared: MysqlDeclaredType, *, zero_dates_null: bool) -> MysqlValueRule | None:
    """Return the conversion of a column's values; None if the server's texts are canonical."""
    kind = column.type.kind
    if declared.may_be_no_text:
        return partial(_check_texts, charset=declared.charset)
    if kind is Kind.FLOAT:
        return partial(_convert_each, partial(_convert_float, length=column.type.length))
    if kind is Kind.BOOL:
        return partial(_convert_each, lambda v: "t" if v == "1" else "f")
    if kind is Kind.INTERVAL:
        return partial(_convert_each, _trim_fraction) if column.type.precision else None
    if kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        zone = "+00" if kind is Kind.TIMESTAMPTZ else ""
        fraction = bool(column.type.precision) and kind is not Kind.DATE
        return partial(_convert_dates, is_date=kind is Kind.DATE, fraction=fraction, zone=zone, null=zero_dates_null)
    return None


def _convert_each(write: Callable[[str], str], values: Seq[Value]) -> list[Value]:
    return [v if v is None else write(v) for v in values]  # type: ignore[arg-type]


def _check_texts(values: Seq[Value], *, charset: str) -> Seq[Value]:
    for value in values:
        if value is not None and value.startswith(NO_TEXT):  # type: ignore[arg-type]
            raise MysqlValueError(f"its bytes {value[1:]!r} are not text in {charset}")
    return values


def _convert_float(text: str, *, length: int) -> str:
    return float_text(float(text), length=length)


def _trim_fraction(text: str) -> str:
    """Remove trailing zeros of a fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _convert_dates(values: Seq[Value], *, is_date: bool, fraction: bool, zone: str, null: bool) -> Seq[Value]:
    """Convert a column of dates. Valid dates are checked as a whole column, without a conversion of each."""
    parse: Callable[[str], object] = date.fromisoformat if is_date else datetime.fromisoformat
    try:
        for value in values:
            if value is not None:
                parse(value)  # type: ignore[arg-type]
    except ValueError:
        return [_convert_date(v, parse, fraction=fraction, zone=zone, null=null) for v in values]  # type: ignore[arg-type]
    if not fraction and not zone:
        return values
    return _convert_each(lambda v: (_trim_fraction(v) if fraction else v) + zone, values)


def _convert_date(
    value: str | None, parse: Callable[[str], object], *, fraction: bool, zone: str, null: bool
) -> str | None:
    if value is None:
        return None
    text, era = value, ""
    match = _DATE.fullmatch(value)
    if match and match[1] == "0000" and match[2] != "00" and match[3] != "00":
        text, era = f"0001-{match[2]}-{match[3]}{match[4]}", " BC"  # MySQL's calendar has a year 0
    try:
        parse(text)
    except ValueError:
        if null:
            return None
        raise MysqlValueError(f"{value} is not a calendar date") from None
    return (_trim_fraction(text) if fraction else text) + zone + era
