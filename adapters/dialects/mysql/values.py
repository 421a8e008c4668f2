"""Values as MySQL writes them become canonical text (protos/venus/wire/change.proto), a column at a time.

What has no canonical form (a zero date, 31 February under ALLOW_INVALID_DATES) is never silently changed: it halts its
table, or becomes NULL where the source's URL says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence as Seq
from datetime import date, datetime
from functools import partial

from venus.adapters.dialects.floats import float_text
from venus.adapters.dialects.mysql.types import NO_TEXT, Declared
from venus.model import Column, Kind

Value = str | bytes | None
Rule = Callable[[Seq[Value]], Seq[Value]]

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(.*)", re.DOTALL)


class DoesNotFit(ValueError):
    """A value that has no canonical form."""


def rule_of(column: Column, declared: Declared, *, zero_dates_null: bool) -> Rule | None:
    """Return how a column's values are rewritten; None: they are canonical as they come."""
    kind = column.type.kind
    if declared.may_be_no_text:
        return partial(_texts, charset=declared.charset)
    if kind is Kind.FLOAT:
        return partial(_each, partial(_float, length=column.type.length))
    if kind is Kind.BOOL:
        return partial(_each, lambda v: "t" if v == "1" else "f")
    if kind is Kind.INTERVAL:
        return partial(_each, _short) if column.type.precision else None
    if kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        zone = "+00" if kind is Kind.TIMESTAMPTZ else ""
        fraction = bool(column.type.precision) and kind is not Kind.DATE
        return partial(_dates, is_date=kind is Kind.DATE, fraction=fraction, zone=zone, null=zero_dates_null)
    return None


def _each(write: Callable[[str], str], values: Seq[Value]) -> list[Value]:
    return [v if v is None else write(v) for v in values]  # type: ignore[arg-type]


def _texts(values: Seq[Value], *, charset: str) -> Seq[Value]:
    for value in values:
        if value is not None and value.startswith(NO_TEXT):  # type: ignore[arg-type]
            raise DoesNotFit(f"its bytes {value[1:]!r} are no text in {charset}")
    return values


def _float(text: str, *, length: int) -> str:
    return float_text(float(text), length=length)


def _short(text: str) -> str:
    """Drop the zeros at the end of a fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _dates(values: Seq[Value], *, is_date: bool, fraction: bool, zone: str, null: bool) -> Seq[Value]:
    """Check a column of dates; the usual ones need no work of their own."""
    parse: Callable[[str], object] = date.fromisoformat if is_date else datetime.fromisoformat
    try:
        for value in values:
            if value is not None:
                parse(value)  # type: ignore[arg-type]
    except ValueError:
        return [_date(v, parse, fraction=fraction, zone=zone, null=null) for v in values]  # type: ignore[arg-type]
    if not fraction and not zone:
        return values
    return _each(lambda v: (_short(v) if fraction else v) + zone, values)


def _date(value: str | None, parse: Callable[[str], object], *, fraction: bool, zone: str, null: bool) -> str | None:
    if value is None:
        return None
    text, era = value, ""
    match = _DATE.fullmatch(value)
    if match and match[1] == "0000" and match[2] != "00" and match[3] != "00":
        text, era = f"0001-{match[2]}-{match[3]}{match[4]}", " BC"  # the year 0 of the calendar that MySQL reckons by
    try:
        parse(text)
    except ValueError:
        if null:
            return None
        raise DoesNotFit(f"{value} is not a calendar date") from None
    return (_short(text) if fraction else text) + zone + era
