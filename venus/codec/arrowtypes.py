"""Which Arrow type holds every value of a column exactly, for Spark and for Parquet files (issue 3, section 4).

A type that cannot hold each value stays text: the canonical text of protos/venus/wire/change.proto, which loses
nothing. What no type can promise (a date before Christ, NaN in a decimal) is found when a value is met: `Misfit`.
"""

from __future__ import annotations

import pyarrow as pa

from venus.model import Column, Kind, LogicalType

#: Digits of Arrow's and Spark's widest decimal.
_DIGITS_MAX = 38
_FRACTION_MAX = 6
_INTS = {2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


def arrow_type(logical: LogicalType) -> pa.DataType:
    """Return the type for values of this kind; text for whatever has no exact counterpart."""
    match logical.kind:
        case Kind.INT:
            return _INTS.get(logical.length, pa.string())
        case Kind.FLOAT:
            return pa.float32() if logical.length == 4 else pa.float64()
        case Kind.DECIMAL:
            return _decimal(logical.precision, logical.scale)
        case Kind.BYTES:
            return pa.binary()
        case Kind.BOOL:
            return pa.bool_()
        case Kind.DATE:
            return pa.date32()
        case Kind.TIMESTAMP if logical.precision <= _FRACTION_MAX:
            return pa.timestamp("us")
        case Kind.TIMESTAMPTZ if logical.precision <= _FRACTION_MAX:
            return pa.timestamp("us", tz="UTC")
    return pa.string()


def _decimal(precision: int, scale: int) -> pa.DataType:
    if scale < 0:  # NUMBER(5,-2) has up to seven digits, none behind the point
        precision, scale = precision - scale, 0
    precision = max(precision, scale)  # NUMBER(2,5) is 0.000xx
    return pa.decimal128(precision, scale) if 0 < precision <= _DIGITS_MAX else pa.string()


def becomes_text(logical: LogicalType) -> bool:
    """Whether values that are no text for the source are text here, because no type holds them exactly."""
    textual = logical.kind in (Kind.TEXT, Kind.CHAR, Kind.JSON, Kind.UUID)
    return not textual and arrow_type(logical) == pa.string()


def column_type(column: Column, text_columns: frozenset[str] = frozenset()) -> pa.DataType:
    """Return a column's type; `text_columns` are those that an operator or a misfit has turned into text."""
    if column.name in text_columns and column.type.kind is not Kind.BYTES:
        return pa.string()
    return arrow_type(column.type)
