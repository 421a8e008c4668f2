"""Evaluation of predicates on whole columns, with the semantics of SQL's WHERE. Pure.

Values come as canonical text in Arrow arrays, NULL as null. Nothing is computed per row, except for values that floats
cannot distinguish from a bound, and dates beyond the years 0001 to 9999: these are compared exactly, each text once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from venus.model import Column
from venus.predicates.constants import PredicateSort, Value
from venus.predicates.ranges import Bound, Predicate, Range

Bools = npt.NDArray[np.bool_]
#: Returns the values of a column; as `Values` if several ranges are evaluated on them.
Columns = Callable[[Column], "pa.Array | Values"]

_REGULAR = r"^\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?)?(\+00)?$"
_DAY_CHARS = len("2026-01-31")
_ODD = re.compile(r"(?P<year>\d+)(?P<rest>-\d\d-\d\d(?: [\d:.]+)?)(?:\+00)?(?P<bc> BC)?")


class Values:
    """Values of a column for comparison with ranges; conversions are computed once.

    Threads may share it: concurrent computations have the same result.
    """

    def __init__(self, values: pa.Array) -> None:
        self.all = values
        self._plain: dict[PredicateSort | None, pa.Array] = {}

    @cached_property
    def null(self) -> Bools:
        """Which values are NULL."""
        return _bools(pc.is_null(self.all))

    @cached_property
    def there(self) -> pa.Array:
        """The values that are not NULL."""
        return self.all.drop_null() if self.null.any() else self.all

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64] | None:
        """The values that are not NULL as floats, rounded; None if one of them is no float."""
        try:
            return _machine_numbers(self.there)
        except pa.ArrowInvalid:
            return None

    def plain(self, sort: PredicateSort | None) -> pa.Array:
        """Return the values that are not NULL, in the form in which their sort orders them as bytes."""
        found = self._plain.get(sort)
        if found is None:
            found = self._plain[sort] = _AS_BYTES.get(sort, _as_is)(self.there)
        return found


def evaluate_predicate(predicate: Predicate, columns: Columns, rows: int) -> Bools:
    """Return which of the rows are in every range; `columns` gives a column's values."""
    found: Bools = np.ones(rows, dtype=np.bool_)
    for wanted in predicate.ranges:
        if found.any():
            found &= evaluate_range(wanted, columns(wanted.column))
    return found


def evaluate_range(wanted: Range, values: pa.Array | Values) -> Bools:
    """Return which values are in a range; NULL is in none, except in that of IS NULL."""
    known = values if isinstance(values, Values) else Values(values)
    if wanted.null:
        return known.null
    if wanted.values is None and wanted.low is None and wanted.high is None:
        return ~known.null
    way = _WAYS.get(wanted.sort or PredicateSort.TEXT, _match_bytes)
    if not known.null.any():
        return way(wanted, known)
    found: Bools = np.zeros(len(known.null), dtype=np.bool_)
    if len(known.there):
        found[~known.null] = way(wanted, known)
    return found


# -- numbers -----------------------------------------------------------------------------------------------------------


def _match_numbers(wanted: Range, values: Values) -> Bools:
    """Return which numbers are in a range: compared as floats, and exactly where the float is a bound."""
    rounded = values.numbers
    if rounded is None:
        return _match_exactly(wanted, values.there, _decimal)
    found = _compare(wanted, rounded)
    unsure: Bools = np.isin(rounded, [float(v.key) for v in _constants(wanted)])
    if unsure.any():
        found[unsure] = _match_exactly(wanted, values.there.filter(pa.array(unsure)), _decimal)
    return found


def _match_floats(wanted: Range, values: Values) -> Bools:
    """Return which floats of eight bytes are in a range."""
    return _compare(wanted, _machine_numbers(values.there) if values.numbers is None else values.numbers)


def _machine_numbers(values: pa.Array) -> npt.NDArray[np.float64]:
    """Return texts of numbers as floats, rounded."""
    found: npt.NDArray[np.float64] = pc.cast(pc.cast(values, pa.large_string()), pa.float64()).to_numpy(
        zero_copy_only=False
    )
    return found


def _compare(wanted: Range, numbers: npt.NDArray[np.float64]) -> Bools:
    """Return which floats are in a range; NaN is above everything, as PostgreSQL and Oracle have it."""
    found: Bools
    if wanted.values is not None:
        found = np.isin(numbers, [float(v.key) for v in wanted.values])
        return found
    found = np.ones(len(numbers), dtype=np.bool_)
    nan = np.isnan(numbers)
    if wanted.low is not None:
        low = float(wanted.low.value.key)
        found &= nan | (numbers >= low if wanted.low.inclusive else numbers > low)
    if wanted.high is not None:
        high = float(wanted.high.value.key)
        found &= ~nan & (numbers <= high if wanted.high.inclusive else numbers < high)
    return found


def _constants(wanted: Range) -> list[Value]:
    """Return all constants of a range."""
    return [b.value for b in (wanted.low, wanted.high) if b is not None] + list(wanted.values or ())


def _decimal(text: str) -> Any:
    """Return the sort key of a number; NaN is above every other."""
    return Decimal(text) if text != "NaN" else _GREATEST


class _Greatest:
    """A key above every other, for the numeric NaN as PostgreSQL orders it."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 0


_GREATEST = _Greatest()


# -- texts and bytes ---------------------------------------------------------------------------------------------------


def _match_bytes(wanted: Range, values: Values) -> Bools:
    """Return which values are in a range, compared byte by byte; for UTF-8 that is by code point."""
    return _compare_ordered(wanted, values.plain(wanted.sort))


def _compare_ordered(wanted: Range, plain: pa.Array) -> Bools:
    """Return which values are in a range, compared as bytes."""
    if wanted.values is not None:
        return _bools(pc.is_in(plain, value_set=pa.array([v.key for v in wanted.values], pa.large_binary())))
    found: Bools = np.ones(len(plain), dtype=np.bool_)
    for bound, strict, inclusive in ((wanted.low, pc.greater, pc.greater_equal), (wanted.high, pc.less, pc.less_equal)):
        if bound is not None:
            compare = inclusive if bound.inclusive else strict
            found &= _bools(compare(plain, pa.scalar(bound.value.key, pa.large_binary())))
    return found


def _as_is(values: pa.Array) -> pa.Array:
    """Return the bytes of texts unchanged."""
    return pc.cast(values, pa.large_binary())


def _strip_blanks(values: pa.Array) -> pa.Array:
    """Return texts as bytes without blanks at the end, which do not count in types of fixed length."""
    return _as_is(pc.utf8_rtrim(pc.cast(values, pa.large_string()), " "))


def _times(values: pa.Array) -> pa.Array:
    """Return times as bytes without needless zeros."""
    return _as_is(_strip_zeros(pc.cast(values, pa.large_string())))


_AS_BYTES: dict[PredicateSort | None, Callable[[pa.Array], pa.Array]] = {
    PredicateSort.PADDED: _strip_blanks,
    PredicateSort.TIME: _times,
}


def _match_moments(wanted: Range, values: Values) -> Bools:
    """Return which dates and moments are in a range: compared as text if that keeps the order, else by sort keys."""
    texts = pc.cast(values.there, pa.large_string())
    regular = _bools(pc.match_substring_regex(texts, _REGULAR))
    if regular.all():
        return _compare_ordered(wanted, _as_is(_normalise_moments(texts, wanted.sort)))
    found: Bools = np.zeros(len(texts), dtype=np.bool_)
    if regular.any():
        found[regular] = _compare_ordered(
            wanted, _as_is(_normalise_moments(texts.filter(pa.array(regular)), wanted.sort))
        )
    odd = texts.filter(pa.array(~regular))
    found[~regular] = _match_exactly(_with_years(wanted), odd, _year_and_rest)
    return found


def _normalise_moments(texts: pa.Array, sort: PredicateSort | None) -> pa.Array:
    """Return regular moments as constants are written: with a time unless they are dates, without needless zeros."""
    if sort is PredicateSort.DATE:
        return pc.utf8_slice_codeunits(texts, 0, _DAY_CHARS)
    if sort is PredicateSort.MOMENT_TZ:
        texts = pc.replace_substring(texts, "+00", "", max_replacements=1)
    midnight, blank = pa.scalar("00:00:00", pa.large_string()), pa.scalar(" ", pa.large_string())
    days = pc.equal(pc.utf8_length(texts), _DAY_CHARS)
    texts = pc.if_else(days, pc.binary_join_element_wise(texts, midnight, blank), texts)
    return _strip_zeros(texts)


def _strip_zeros(texts: pa.Array) -> pa.Array:
    """Remove the zeros at the end of a fraction, and its point if no digit is left."""
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.if_else(pc.match_substring(texts, "."), trimmed, texts)


def _with_years(wanted: Range) -> Range:
    """Return the range with its constants as sort keys of year and rest."""

    def shift(bound: Bound | None) -> Bound | None:
        """Replace the constant of a bound by its sort key."""
        return bound and replace(bound, value=replace(bound.value, key=_year_and_rest(bound.value.key.decode())))

    values = wanted.values and tuple(replace(v, key=_year_and_rest(v.key.decode())) for v in wanted.values)
    return replace(wanted, low=shift(wanted.low), high=shift(wanted.high), values=values)


def _year_and_rest(text: str) -> tuple[float, str]:
    """Return a sort key of any moment: the year, negative before Christ, and the rest as text."""
    if text in ("infinity", "-infinity"):
        return float(text), ""
    found = _ODD.fullmatch(text)
    if found is None:
        return float("inf"), text  # no date of any database: after all of them, and equal to none
    rest = found["rest"].rstrip("0").rstrip(".") if "." in found["rest"] else found["rest"]
    return (-int(found["year"]) if found["bc"] else int(found["year"])), rest


# -- for indexes -------------------------------------------------------------------------------------------------------

_MOMENTS = (PredicateSort.DATE, PredicateSort.MOMENT, PredicateSort.MOMENT_TZ)
#: Characters of a moment up to its microseconds, and bytes of a text that become a number.
_MICROS_CHARS, _PREFIX_BYTES = len("2026-01-31 23:59:59.123456"), 6
_LATE_YEAR = 9999


def keys_of(sort: PredicateSort, values: Values) -> list[Any]:
    """Return keys of the values that are not NULL, for comparison with the keys of constants."""
    if sort is PredicateSort.NUMBER:
        return [Decimal(text) for text in pc.cast(values.there, pa.large_string()).to_pylist()]
    if sort is PredicateSort.FLOAT:
        found: list[Any] = order_numbers(sort, values).tolist()
        return found
    if sort in _MOMENTS:
        texts = pc.cast(values.there, pa.large_string())
        regular = pc.match_substring_regex(texts, _REGULAR)
        keys = pc.if_else(regular, _as_is(_normalise_moments(texts, sort)), pa.scalar(None, pa.large_binary()))
    else:
        keys = values.plain(sort)
    listed: list[Any] = keys.to_pylist()
    return listed


def order_numbers(sort: PredicateSort, values: Values) -> npt.NDArray[np.float64]:
    """Return the values that are not NULL as numbers in the same order; some that differ get the same number."""
    if sort in (PredicateSort.NUMBER, PredicateSort.FLOAT):
        found = values.numbers
        if found is None:
            texts = pc.cast(values.there, pa.large_string()).to_pylist()
            found = np.array([float(Decimal(text)) for text in texts], dtype=np.float64)
        return np.where(np.isnan(found), np.inf, found)
    if sort in _MOMENTS:
        return _moment_numbers(pc.cast(values.there, pa.large_string()), sort)
    beginnings = np.array(values.plain(sort).to_pylist(), dtype=f"S{_PREFIX_BYTES}")
    digits = beginnings.view(np.uint8).reshape(len(beginnings), _PREFIX_BYTES).astype(np.float64)
    return digits @ (256.0 ** np.arange(_PREFIX_BYTES - 1, -1, -1))


def _moment_numbers(texts: pa.Array, sort: PredicateSort) -> npt.NDArray[np.float64]:
    """Return microseconds; moments outside the years 0001 to 9999 are infinitely early or late."""
    regular = _bools(pc.match_substring_regex(texts, _REGULAR))
    found = np.empty(len(texts), dtype=np.float64)
    plain = pc.utf8_slice_codeunits(_normalise_moments(texts.filter(pa.array(regular)), sort), 0, _MICROS_CHARS)
    micros = pc.cast(pc.cast(plain, pa.timestamp("us")), pa.int64())
    found[regular] = micros.to_numpy(zero_copy_only=False)
    years = [_year_and_rest(text)[0] for text in texts.filter(pa.array(~regular)).to_pylist()]
    found[~regular] = [np.inf if year > _LATE_YEAR else -np.inf for year in years]
    return found


# -- comparison with a range -------------------------------------------------------------------------------------------


def _match_exactly(wanted: Range, values: pa.Array, key: Callable[[str], Any]) -> Bools:
    """Return which values are in a range; `key` converts each distinct text to its sort key."""
    coded = pc.cast(values, pa.large_string()).dictionary_encode()
    verdicts = np.fromiter((wanted.holds(key(t)) for t in coded.dictionary.to_pylist()), dtype=np.bool_)
    found: Bools = verdicts[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _bools(array: pa.Array) -> Bools:
    """Return an Arrow array of booleans as a numpy array."""
    found: Bools = array.to_numpy(zero_copy_only=False)
    return found


_WAYS: dict[PredicateSort, Callable[[Range, Values], Bools]] = {
    PredicateSort.NUMBER: _match_numbers,
    PredicateSort.FLOAT: _match_floats,
    PredicateSort.DATE: _match_moments,
    PredicateSort.MOMENT: _match_moments,
    PredicateSort.MOMENT_TZ: _match_moments,
}
