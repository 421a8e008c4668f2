"""The parts of a comparison that no database decides: forms (verify_contract.py) and conditions in SQL. Pure.

Forms are written here where the database does not compute them. The conditions use only SQL that every database has.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import NoReturn

from venus.adapters.dialects.verify_contract import NULL, FormStyle, Key, Slice, Subject, style_of
from venus.codec.columns import Value
from venus.model import LogicalType, TableSchema


def key_forms(columns: Seq[Seq[Value]], schema: TableSchema) -> list[Key]:
    """Return the keys of rows; `columns` begin with the columns of the key."""
    types = [c.type for c in schema.wire_columns[: len(schema.key)]]
    texts = [plain_forms(kind, column) for kind, column in zip(types, columns, strict=False)]
    return list(zip(*texts, strict=True))


def plain_forms(kind: LogicalType, values: Seq[Value]) -> list[str]:
    """Return the forms of one column, without lengths."""
    match style_of(kind):
        case FormStyle.HEX:
            return [NULL if v is None else v.hex() for v in values]  # type: ignore[union-attr]
        case FormStyle.NUMBER:
            return [NULL if v is None else _trim_zeros(v) for v in values]  # type: ignore[arg-type]
        case FormStyle.PADDED:
            return [NULL if v is None else str(v).rstrip(" ") for v in values]
    return [NULL if v is None else v for v in values]  # type: ignore[misc]


def sized_forms(kind: LogicalType, values: Seq[Value]) -> list[str]:
    """Return the forms of one column."""
    texts = plain_forms(kind, values)
    if style_of(kind) not in (FormStyle.FREE, FormStyle.PADDED):
        return texts
    return [
        NULL if v is None else f"{len(text) if text.isascii() else len(text.encode())}:{text}"
        for v, text in zip(values, texts, strict=True)
    ]


def _trim_zeros(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


ALWAYS, NEVER = "1 = 1", "1 = 0"


def row_condition(subject: Subject) -> str:
    """Return the condition that selects the rows to compare."""
    return f"({subject.where})" if subject.where else ALWAYS


def range_condition(subject: Subject, key: str, part: Slice, buckets: Collection[int] | None) -> str:
    """Return the condition for the rows in these buckets of a range slice; None = all buckets. `key` is SQL."""
    return f"{row_condition(subject)} AND ({' OR '.join(_range_term(key, *r) for r in part.ranges(buckets)) or NEVER})"


def _range_term(key: str, low: int | None, high: int | None) -> str:
    conditions = [f"{key} >= {low}"] * (low is not None) + [f"{key} < {high}"] * (high is not None)
    return f"({' AND '.join(conditions) or ALWAYS})"


class RowReader:
    """A reader without checksums of the database: the caller reads the rows and computes the checksums itself."""

    pushes_down = False

    def read_buckets(self, subject: Subject, part: Slice) -> NoReturn:
        _refuse_checksums(subject)

    def read_hashes(self, subject: Subject, part: Slice, buckets: Collection[int]) -> NoReturn:
        _refuse_checksums(subject)

    def read_forms(self, subject: Subject, keys: Seq[Key]) -> NoReturn:
        _refuse_checksums(subject)


def _refuse_checksums(subject: Subject) -> NoReturn:
    raise AssertionError(f"{subject.schema.qualified}: no checksum is asked of this database")
