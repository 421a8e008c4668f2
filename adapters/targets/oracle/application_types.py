"""Types of the application's columns in its former Oracle database: how values are declared and bound. Pure.

The application has chosen the types, and capture has a rule for reading each of them
(dialects/oracle/dictionary/types.py). VENUS writes values back by the inverse of this rule. If capture cannot read
every part of a type's values, such as the name of a time zone, a column of this type prevents a cut-over with a way
back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial

from venus.adapters.dialects.oracle.dictionary.overrides import ENCODED
from venus.adapters.dialects.oracle.dictionary.tables import OracleReading
from venus.adapters.dialects.oracle.dictionary.types import FRACTION_MAX, MOMENT, OracleDeclaredType
from venus.adapters.targets.oracle.types import ColumnBinding, binding, is_calendar_day
from venus.adapters.targets.relational.place import UnfitValue
from venus.codec.columns import Value
from venus.model import Kind, LogicalType

_NUMBER = LogicalType(kind=Kind.DECIMAL)
_BC, _UTC = " BC", "+00"
_YEAR_MIN, _YEAR_MAX = -4712, 9999
_MONTHS = re.compile(r"(?:(-?\d+) years?)? ?(?:(-?\d+) mons?)?")
_DAYS = re.compile(r"(?:(-?\d+) days?)? ?(?:(-)?(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?")


def declare(declared: OracleDeclaredType) -> str:
    """Return the type of a column of VENUS's own tables that holds the values of this application's column."""
    if declared.data_type in ("VARCHAR2", "CHAR"):
        return f"{declared.data_type}({declared.length} {'BYTE' if declared.in_bytes else 'CHAR'})"
    return declared.sql_type


def find_loss(reading: OracleReading) -> str:
    """Return why a column could not get its values back unchanged after a switch; empty if it could."""
    declared, rule = reading.declared, reading.mapping.text
    name = declared.data_type
    if rule.startswith(ENCODED) or reading.mapping.encoding:
        return "its bytes are read in another character set"
    if name.endswith("WITH TIME ZONE") and "LOCAL" not in name:
        return f"{name}: the name of the zone does not travel"
    if name.startswith(("TIMESTAMP", "INTERVAL DAY")) and (declared.scale or 0) > FRACTION_MAX:
        return f"{name}: digits after the sixth do not travel"
    if name in _LOST:
        return f"{name} {_LOST[name]}"
    return "" if rule in _BINDERS else f"{name} cannot be written"


_LOST = {
    "XMLTYPE": "keeps no text as it was written",
    "JSON": "keeps no text as it was written",
    "LONG": "cannot be compared with what was written",
    "LONG RAW": "cannot be compared with what was written",
    "ROWID": "means nothing in another row",
    "UROWID": "means nothing in another row",
    "BOOLEAN": "was never written by VENUS",
}


def bind(reading: OracleReading) -> ColumnBinding:
    """Return how canonical values are bound to a column. Raises UnfitValue for a type that would change them."""
    if why := find_loss(reading):
        raise UnfitValue(why)
    return _BINDERS[reading.mapping.text](reading.declared)


def _bind_number(declared: OracleDeclaredType) -> ColumnBinding:
    if declared.data_type == "NUMBER" and declared.precision is not None:
        return binding(_NUMBER, f"NUMBER({declared.precision},{declared.scale or 0})")
    if declared.data_type == "NUMBER" and declared.scale is not None:
        return binding(_NUMBER, f"NUMBER(38,{declared.scale})")
    return binding(_NUMBER, "NUMBER")


def _to_float(text: str) -> float:
    """Convert a text to a float. Raises UnfitValue for -0, which Oracle does not have."""
    value = float(text)
    if value == 0 and text.startswith("-"):
        raise UnfitValue("Oracle has no -0")
    return value


def _bind_float(_: OracleDeclaredType) -> ColumnBinding:
    """Return how a BINARY_FLOAT or BINARY_DOUBLE is bound."""
    return ColumnBinding(_to_float, db_type="BINARY_DOUBLE")


def _bind_text(declared: OracleDeclaredType) -> ColumnBinding:
    if declared.data_type.endswith("LOB"):
        return ColumnBinding(lambda text: text, db_type="LONG_NVARCHAR" if declared.is_national else "LONG")
    unit = "BYTE" if declared.in_bytes else "CHAR"
    plain = binding(LogicalType(kind=Kind.TEXT), f"VARCHAR2({declared.length} {unit})")
    return ColumnBinding(plain.convert, db_type="NVARCHAR" if declared.is_national else "")


def _bind_octets(declared: OracleDeclaredType) -> ColumnBinding:
    """Return how a RAW or BLOB is bound."""
    kind = LogicalType(kind=Kind.BYTES)
    return binding(kind, "BLOB" if declared.data_type == "BLOB" else f"RAW({declared.length})")


def _to_moment(digits: int, text: str) -> str:
    """Return a date or timestamp as text for Oracle, with a signed year. Raises UnfitValue if it does not fit."""
    is_bc = text.endswith(_BC)
    whole, _, fraction = text.removesuffix(_BC).removesuffix(_UTC).partition(".")
    day, _, clock = whole.partition(" ")
    year, _, rest = day.partition("-")
    if not year.isdigit() or not rest or not _YEAR_MIN <= (-int(year) if is_bc else int(year)) <= _YEAR_MAX:
        raise UnfitValue("no DATE of Oracle is infinite, before 4712 BC or behind 9999")
    if not is_bc and not is_calendar_day(day):
        raise UnfitValue("no DATE of Oracle is among the days that its calendar skips")
    if len(fraction.rstrip("0")) > digits:
        raise UnfitValue(f"its seconds have more than {digits} decimal places")
    moment = f"{'-' if is_bc else ' '}{year:0>4}-{rest} {clock or '00:00:00'}"
    return f"{moment}.{fraction.ljust(digits, '0')[:digits]}" if digits else moment


def _bind_moment(declared: OracleDeclaredType) -> ColumnBinding:
    """Return how a DATE or TIMESTAMP without a time zone is bound."""
    digits = 0 if declared.data_type == "DATE" else min(declared.scale or 0, FRACTION_MAX)
    fraction = f".FF{digits}" if digits else ""
    function = "TO_DATE" if declared.data_type == "DATE" else "TO_TIMESTAMP"
    return ColumnBinding(partial(_to_moment, digits), f"{function}({{b}}, '{MOMENT}{fraction}')")


def _bind_instant(declared: OracleDeclaredType) -> ColumnBinding:
    """Return how a TIMESTAMP with a time zone is bound, in UTC."""
    moment = _bind_moment(declared)
    return ColumnBinding(moment.convert, f"FROM_TZ({moment.sql}, '+00:00')")


def _bind_day(_: OracleDeclaredType) -> ColumnBinding:
    """Return how a DATE without a time of day is bound."""
    return ColumnBinding(partial(_to_moment, 0), f"TO_DATE({{b}}, '{MOMENT}')")


def _to_months(text: str) -> str:
    """Convert an interval to Oracle's text of years and months. Raises UnfitValue for any other interval."""
    found = _MONTHS.fullmatch(text) if text != "00:00:00" else None
    if found is None and text != "00:00:00":
        raise UnfitValue("it is no number of years and months")
    months = int(found[1] or 0) * 12 + int(found[2] or 0) if found else 0
    return f"{'-' if months < 0 else '+'}{abs(months) // 12}-{abs(months) % 12}"


def _to_days(text: str) -> str:
    """Convert an interval to Oracle's text of days and seconds. Raises UnfitValue for any other interval."""
    found = _DAYS.fullmatch(text)
    if found is None:
        raise UnfitValue("it is no number of days and seconds")
    days, sign, hours, minutes, seconds, fraction = found.groups()
    number = int(days or 0)
    clock = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    micros = (clock * 10**6 + int((fraction or "").ljust(6, "0")[:6] or 0)) * (-1 if sign else 1)
    total = number * 86_400 * 10**6 + micros
    if (number > 0 > micros) or (number < 0 < micros) or abs(micros) >= 86_400 * 10**6:
        raise UnfitValue("its days and its time have different signs, or its time is longer than a day")
    left, micros = divmod(abs(total), 10**6)
    left, second = divmod(left, 60)
    left, minute = divmod(left, 60)
    day, hour = divmod(left, 24)
    return f"{'-' if total < 0 else '+'}{day} {hour:02}:{minute:02}:{second:02}.{micros:06}"


def _to_uuid(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def _to_flag(text: Value) -> Decimal:
    """Convert a boolean's text to 1 or 0."""
    return Decimal(int(text == "t"))


#: The functions that bind values, by the rule with which capture reads them (dialects/oracle/rows.py).
_BINDERS: Mapping[str, Callable[[OracleDeclaredType], ColumnBinding]] = {
    "number": _bind_number,
    "whole": _bind_number,
    "single": _bind_float,
    "double": _bind_float,
    "text": _bind_text,
    "octets": _bind_octets,
    "moment": _bind_moment,
    "instant": _bind_instant,
    "day": _bind_day,
    "months": lambda _: ColumnBinding(_to_months, "TO_YMINTERVAL({b})"),
    "days": lambda _: ColumnBinding(_to_days, "TO_DSINTERVAL({b})"),
    "uuid": lambda _: ColumnBinding(_to_uuid),
    "flag": lambda _: ColumnBinding(_to_flag, db_type="NUMBER"),
}


def compared_value(reading: OracleReading, value: Value) -> Value:
    """Return a canonical value as it is compared with the one sent: a NUMBER without trailing zeros."""
    if value is None or reading.mapping.text != "number":
        return value
    number = Decimal(str(value))
    return f"{number.normalize():f}" if number.is_finite() else value
