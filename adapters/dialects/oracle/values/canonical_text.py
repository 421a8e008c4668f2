"""The conversion of fetched values into canonical text, a column at a time (protos/venus/wire/change.proto). Pure.

Values stay exact: a float where a decimal is expected means that the driver was set up wrongly, and raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from venus.adapters.dialects.floats import float_text
from venus.codec.columns import Value
from venus.errors import SourceError

_MONTHS = re.compile(r"([+-])(\d+)-(\d+)")
_DAYS = re.compile(r"([+-])(\d+) (\d+):(\d+):(\d+)(?:\.(\d+))?")


def canonical_texts(rule: str, values: Iterable[Any], scale: int = 0) -> list[Value]:
    """Return a column's values as canonical text (bytes for binary ones); decimals with `scale` digits if above 0."""
    to_text = _RULES[rule]
    if rule == "number" and scale > 0:
        return [None if v is None else f"{_to_decimal(v):.{scale}f}" for v in values]
    return [None if v is None else to_text(v) for v in values]


def _to_decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise SourceError(f"the driver returned {type(value).__name__} for a NUMBER, which is not exact")
    return Decimal(value)


def _number(value: Any) -> str:
    text = format(_to_decimal(value), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise SourceError(f"the driver returned {type(value).__name__} for text")
    return value


def _octets(value: Any) -> bytes:
    return bytes(value)


def _boolean(value: Any) -> str:
    return "t" if value else "f"


def _trim_fraction(value: str) -> str:
    """Drop the zeros at the end of a fraction, which the server writes up to the requested number of digits."""
    text = value.strip()
    return text.rstrip("0").rstrip(".") if "." in text else text


def _flag(value: Any) -> str:
    if value not in (0, 1):
        raise SourceError(f"{value} is neither 0 nor 1, as a boolean must be")
    return "t" if value else "f"


def _whole(value: Any) -> str:
    number = _to_decimal(value)
    if number != int(number) or not -(1 << 63) <= number < 1 << 63:
        raise SourceError(f"{value} is not a whole number of 64 bits")
    return str(int(number))


def _day(value: str) -> str:
    text = value.strip()
    if not text.endswith(" 00:00:00"):
        raise SourceError(f"{text} has a time of day, which a date cannot have")
    return _moment(text.removesuffix(" 00:00:00"))


def _uuid(value: Any) -> str:
    if len(value) != 16:
        raise SourceError(f"a uuid has 16 bytes, not {len(value)}")
    return str(UUID(bytes=bytes(value)))


def _moment(value: str) -> str:
    text = _trim_fraction(value)
    return f"{text[1:]} BC" if text.startswith("-") else text


def _instant(value: str) -> str:
    text = _trim_fraction(value)
    return f"{text[1:]}+00 BC" if text.startswith("-") else f"{text}+00"


def _months(value: str) -> str:
    """Convert to PostgreSQL's style: +02-03 becomes 2 years 3 mons."""
    sign, years, months = _match_interval(_MONTHS, value)
    return " ".join(_interval_part(sign, years, "year") + _interval_part(sign, months, "mon")) or "00:00:00"


def _days(value: str) -> str:
    sign, days, hours, minutes, seconds, fraction = _match_interval(_DAYS, value)
    fraction = (fraction or "")[:6].rstrip("0")
    parts = _interval_part(sign, days, "day")
    if int(hours) or int(minutes) or int(seconds) or fraction or not parts:
        zero = not (int(hours) or int(minutes) or int(seconds) or fraction)
        minus = "-" if sign == "-" and not zero else ""
        parts.append(f"{minus}{hours}:{minutes}:{seconds}" + (f".{fraction}" if fraction else ""))
    return " ".join(parts)


def _match_interval(pattern: re.Pattern[str], value: str) -> tuple[Any, ...]:
    found = pattern.fullmatch(value.strip())
    if found is None:
        raise SourceError(f"the server wrote an interval as {value!r}")
    return found.groups()


def _interval_part(sign: str, digits: str, unit: str) -> list[str]:
    number = int(digits) * (-1 if sign == "-" else 1)
    return [f"{number} {unit}{'' if number == 1 else 's'}"] if number else []


_RULES: dict[str, Callable[[Any], Value]] = {
    "number": _number,
    "single": partial(float_text, length=4),
    "double": partial(float_text, length=8),
    "text": _text,
    "octets": _octets,
    "truth": _boolean,
    "flag": _flag,
    "whole": _whole,
    "day": _day,
    "uuid": _uuid,
    "moment": _moment,
    "instant": _instant,
    "months": _months,
    "days": _days,
}
