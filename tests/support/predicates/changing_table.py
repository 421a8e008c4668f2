"""The table of histories whose columns change: its versions, and every row as each version encodes it.

It is the table of `predicate_histories`. Columns that predicates name are dropped and added again under the same name,
or renamed and renamed back. Columns also change their types: whole amounts become fractions, days become texts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tests.support.predicates.predicate_histories import ROWS, SCHEMA, Row
from venus.codec import schema as schemas_codec
from venus.codec.columns import Value, from_columns
from venus.codec.packed import pack_items
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import StoredRows
from venus.model import TableSchema

_ID, _REGION, *_REST = SCHEMA.columns
_AMOUNT, _DAY = _REST
DROPPED, RENAMED, RETYPED = "dropped", "renamed", "retyped"
#: Versions of the table: the first; without a column that predicates name; with a new or the renamed column of that
#: name; with a column of another type that compares in the same way; also with one that compares differently.
VERSIONS = {
    DROPPED: {
        1: SCHEMA,
        2: replace(SCHEMA, version=2, columns=(_ID, *_REST)),
        3: replace(SCHEMA, version=3, columns=(_ID, *_REST, replace(_REGION, number=9))),
    },
    RENAMED: {
        1: SCHEMA,
        2: replace(SCHEMA, version=2, columns=(_ID, replace(_REGION, name="area"), *_REST)),
        3: replace(SCHEMA, version=3),
    },
    RETYPED: {
        1: replace(SCHEMA, columns=(_ID, _REGION, replace(_AMOUNT, type=_ID.type), _DAY)),
        2: replace(SCHEMA, version=2),
        3: replace(SCHEMA, version=3, columns=(_ID, _REGION, _AMOUNT, replace(_DAY, type=_REGION.type))),
    },
}


def has_halves(kind: str, version: int) -> bool:
    """Return whether rows that this version writes have amounts that are larger by a half."""
    return kind == RETYPED and version > 1


def amount_text(amount: int | None, kind: str, version: int) -> str | None:
    """Return an amount as text in a row of this version."""
    if amount is None:
        return None
    if (kind, version) == (RETYPED, 1):
        return str(amount)
    return f"{amount + 0.5 * has_halves(kind, version):.2f}"


def _encode_rows(kind: str, schema: TableSchema) -> dict[Row, bytes]:
    """Return the bytes of every row in a version of the table."""
    values: dict[str, list[Value]] = {
        "id": ["0"] * len(ROWS),
        "region": [r for r, _, _ in ROWS],
        "area": [r for r, _, _ in ROWS],
        "amount": [amount_text(a, kind, schema.version) for _, a, _ in ROWS],
        "day": [d for _, _, d in ROWS],
    }
    _, rows = from_columns([values[c.name] for c in schema.columns], Layout.of(schema))
    return dict(zip(ROWS, rows.split(), strict=True))


#: Versions by kind of change.
ENCODED_ROWS = {
    kind: {n: _encode_rows(kind, schema) for n, schema in found.items()} for kind, found in VERSIONS.items()
}
_DECODED_ROWS = {
    kind: {n: {encoded: row for row, encoded in rows.items()} for n, rows in found.items()}
    for kind, found in ENCODED_ROWS.items()
}
WIRE_SCHEMAS = {
    kind: {n: schemas_codec.to_wire(schema) for n, schema in found.items()} for kind, found in VERSIONS.items()
}


def row_in_version(row: Row, version: int, kind: str) -> Row:
    """Return a row as this version of the table has it, even if an older version wrote it."""
    return row if version == 1 or kind == RENAMED else (None, *row[1:])


@cache
def decode_row(value: bytes, now: int, kind: str) -> Row:
    """Return a stored row in the newest version of its table."""
    stored = StoredRows(pack_items([value]))
    version = int(stored.heads["version"][0])
    row = _DECODED_ROWS[kind][version][stored.rows.data]
    return row if version == now else row_in_version(row, now, kind)
