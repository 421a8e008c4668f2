"""The functions that mask a whole column of canonical text, and the key that some of them need. Pure.

The function hmac is AES-CMAC of the canonical text, 128 bits: equal values stay equal, so joins keep working, and
different values stay different. NULL stays NULL, except for a constant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from venus.errors import ConfigError
from venus.masking.fit import HMAC_BYTES, is_citext
from venus.masking.keyed_hash import Bytes, Ints, hash_values
from venus.masking.syntax import CONSTANT, TEXT, TRUNCATE, YEAR, ColumnRule
from venus.model import Column, Kind, LogicalType

#: Takes and returns the values of a column: an Arrow array of large_binary, or of type null.
ColumnFunction = Callable[[pa.Array], pa.Array]

_BYTES = pa.large_binary()
#: AES-256.
_KEY_BYTES = 32
_YEARS = {
    Kind.DATE: (r"^(\d+)-\d\d-\d\d( BC)?$", r"\1-01-01\2"),
    Kind.TIMESTAMP: (r"^(\d+)-\d\d-\d\d[ T][\d:.]+( BC)?$", r"\1-01-01 00:00:00\2"),
    Kind.TIMESTAMPTZ: (r"^(\d+)-\d\d-\d\d[ T][\d:.]+(\+00)?(?::00)?( BC)?$", r"\1-01-01 00:00:00+00\3"),
}
_ENDLESS = pa.array(["infinity", "-infinity"], pa.large_string())
#: The places of a uuid's digits; the hyphens are at the others.
_UUID_PLACES = [i for i in range(36) if i not in (8, 13, 18, 23)]
#: The spelling of most dates.
_DAY = np.frombuffer(b"0000-00-00", dtype=np.uint8)
_LITERAL = re.compile(r"'((?:[^']|'')*)'(::[\w \"().]+)?")


class MaskingKey:
    """The key of the hmac columns of a target. The key's text never appears; the key's id may be shown."""

    __slots__ = ("_key", "key_id")

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret, digest_size=_KEY_BYTES, person=b"venus column").digest()
        self.key_id = hashlib.blake2b(key=self._key, digest_size=4, person=b"venus key id").hexdigest()

    def __repr__(self) -> str:
        return f"MaskingKey({self.key_id})"

    def hash_values(self, data: Bytes, bounds: Ints) -> bytes:
        """Return the hashes of the values between these bounds, end to end."""
        return hash_values(self._key, data, bounds)


def column_function(rule: ColumnRule, column: Column, key: MaskingKey | None) -> ColumnFunction:
    """Return the function that masks a column by this rule, which fits it."""
    match rule.mask:
        case "hmac":
            if key is None:
                raise ConfigError(
                    f"column {column.name} is masked by a key, and no masking_key_file is set",
                    hint="set it, or let `venus sync` finish the change of the rules before the table is resumed",
                )
            return lambda values: _hash(values, column.type, key)
        case "null":
            return lambda values: pa.nulls(len(values), _BYTES)
        case "year":
            return lambda values: _first_of_year(values, column.type.kind)
        case "truncate":
            return lambda values: _as_bytes(pc.utf8_slice_codeunits(_as_text(values), 0, int(rule.argument)))
        case "text":
            return lambda values: pc.if_else(values.is_valid(), _scalar(rule.argument), pa.scalar(None, _BYTES))
        case "constant":
            return lambda values: pa.repeat(_scalar(rule.argument), len(values))
    raise AssertionError(rule.mask)


def mask_literal(column: Column, rule: ColumnRule) -> str:
    """Return the default of a masked column: its literal masked, or the constant; empty = none."""
    if rule.mask == CONSTANT:
        return _quote(rule.argument)
    found = _LITERAL.fullmatch(column.default_sql.strip())
    if found is None or rule.mask not in (YEAR, TRUNCATE, TEXT):
        return ""
    value = pa.array([found[1].replace("''", "'").encode()], _BYTES)
    (masked,) = column_function(rule, column, None)(value).to_pylist()
    return "" if masked is None else _quote(masked.decode())


def _quote(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), _BYTES)


def _as_text(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.large_string())


def _as_bytes(texts: pa.Array) -> pa.Array:
    return pc.cast(texts, _BYTES)


def _hash(values: pa.Array, logical: LogicalType, key: MaskingKey) -> pa.Array:
    """Return the hash of each value."""
    if is_citext(logical):
        values = _as_bytes(pc.utf8_lower(_as_text(values)))
    found = _spell_hashes(key.hash_values(*_view_bytes(values)), logical.kind)
    return pc.if_else(values.is_valid(), found, pa.scalar(None, _BYTES)) if values.null_count else found


def _view_bytes(values: pa.Array) -> tuple[Bytes, Ints]:
    """Return the bytes of values, and where each begins and the last one ends."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data or b"", dtype=np.uint8), bounds


def _spell_hashes(digests: bytes, kind: Kind) -> pa.Array:
    """Return hashes as values of a column: bytes, UUIDs, or hexadecimal text."""
    if kind is Kind.BYTES:
        return _fixed_width(digests, HMAC_BYTES)
    digits = digests.hex().encode()
    if kind is not Kind.UUID:
        return _fixed_width(digits, 2 * HMAC_BYTES)
    spelled = np.full((len(digests) // HMAC_BYTES, 36), ord("-"), dtype=np.uint8)
    spelled[:, _UUID_PLACES] = np.frombuffer(digits, dtype=np.uint8).reshape(-1, 2 * HMAC_BYTES)
    return _fixed_width(spelled.tobytes(), 36)


def _first_of_plain_years(values: pa.Array) -> pa.Array | None:
    """Return the first day of each date's year at once; None unless all values are dates like 2026-01-31."""
    if values.null_count or not len(values) or values.type != _BYTES:
        return None
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    if data is None or (np.diff(bounds) != len(_DAY)).any():
        return None
    days = np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]].reshape(-1, len(_DAY))
    if not ((days - ord("0") < 10) == (ord("0") == _DAY)).all() or (days[:, ord("-") == _DAY] != ord("-")).any():
        return None
    days = days.copy()
    days[:, 4:] = np.frombuffer(b"-01-01", dtype=np.uint8)
    return _fixed_width(days.tobytes(), len(_DAY))


def _fixed_width(data: bytes, width: int) -> pa.Array:
    """Return values of equal width as an Arrow array."""
    bounds = np.arange(0, len(data) + 1, width, dtype=np.int64)
    return pa.Array.from_buffers(_BYTES, len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _first_of_year(values: pa.Array, kind: Kind) -> pa.Array:
    """Return the first moment of each value's year; a value of unknown spelling becomes NULL, to stay hidden."""
    if kind is Kind.DATE and (plain := _first_of_plain_years(values)) is not None:
        return plain
    texts = _as_text(values)
    pattern, into = _YEARS[kind]
    known = pc.match_substring_regex(texts, pattern)
    years = pc.replace_substring_regex(texts, pattern, into)
    others = pc.if_else(pc.is_in(texts, value_set=_ENDLESS), texts, pa.scalar(None, pa.large_string()))
    return _as_bytes(pc.if_else(known, years, others))
