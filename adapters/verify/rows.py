"""Rows as values in one order, and as forms: what the checksums of both sides are computed from. Pure.

Rows come from everywhere as sections of canonical text (TableChanges), in whatever table version they were written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from venus.adapters.dialects.forms import forms, key_forms
from venus.adapters.dialects.verifying import HEX_DIGITS, SEPARATOR, Key, Style, style_of
from venus.codec.changes import TableChanges
from venus.codec.columns import Value, keys_from_columns, keys_to_columns, to_columns
from venus.codec.layout import Layout
from venus.errors import ProtocolError
from venus.model import Column, LogicalType, TableSchema
from venus.predicates.judging import Bools, inside
from venus.predicates.ranges import Predicate, compiled

Row = tuple[Value, ...]
Columns = Seq[Seq[Value]]
Checksums = npt.NDArray[np.uint64]

_SHIFT = np.uint64(64 - 4 * HEX_DIGITS)
_DIGESTS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "md5": (lambda text: hashlib.md5(text, usedforsecurity=False).digest(), 2),
    "sha256": (lambda text: hashlib.sha256(text).digest(), 4),
}


def columns_of(section: TableChanges, versions: Mapping[int, TableSchema], wanted: TableSchema) -> Columns:
    """Return the values of each of `wanted`'s columns, in its wire order; what an older version lacks is NULL."""
    schema = versions.get(section.schema_version)
    if schema is None:
        raise ProtocolError(f"{wanted.qualified}: rows of version {section.schema_version}, which is not known here")
    found = to_columns(section.record_ids, section.rows, Layout.of(schema))
    if schema == wanted:
        return found
    by_number = {c.number: values for c, values in zip(schema.wire_columns, found, strict=True)}
    missing = [None] * section.count
    return [by_number.get(c.number, missing) for c in wanted.wire_columns]


def inside_of(predicate: str, columns: Columns, schema: TableSchema) -> Bools:
    """Say which rows a predicate's target gets, of values in the schema's wire order."""
    by_number = {c.number: values for c, values in zip(schema.wire_columns, columns, strict=True)}

    def column(wanted: Column) -> pa.Array:
        values = (v.encode() if isinstance(v, str) else v for v in by_number[wanted.number])
        return pa.array(list(values), pa.large_binary())

    return inside(_compiled(predicate, schema), column, len(columns[0]))


@lru_cache(maxsize=16)
def _compiled(predicate: str, schema: TableSchema) -> Predicate:
    return compiled(predicate, schema)


def keys_of(section: TableChanges, versions: Mapping[int, TableSchema], wanted: TableSchema) -> list[Key]:
    """Return the keys of a section's changes; also of deleted rows, which have nothing else."""
    schema = versions.get(section.schema_version, wanted)
    return key_forms(keys_to_columns(section.record_ids, Layout.of(schema)), wanted)


def checksums(columns: Columns, schema: TableSchema, digest: str) -> Checksums:
    """Return the checksum of each row, or of each key if `columns` are the key's alone."""
    texts = [forms(c.type, values) for c, values in zip(schema.wire_columns, columns, strict=False)]
    hashed, words = _DIGESTS[digest]
    lines = map(SEPARATOR.join, zip(*texts, strict=True))
    octets = b"".join([hashed(line.encode()) for line in lines])
    return np.frombuffer(octets, dtype=">u8")[::words].astype(np.uint64) >> _SHIFT


def record_ids(keys: Seq[Key], schema: TableSchema) -> list[bytes] | None:
    """Return the record ids of keys; None where a form does not say how the key was spelt (1.5 or 1.50)."""
    layout = Layout.of(schema)
    types = [c.type for c in layout.columns[: layout.key_count]]
    if any(style_of(t) is Style.NUMBER for t in types):
        return None
    columns = [[_spelt(kind, key[n]) for key in keys] for n, kind in enumerate(types)]
    return keys_from_columns(columns, layout).split()


def _spelt(kind: LogicalType, form: str) -> str | bytes:
    match style_of(kind):
        case Style.HEX:
            return bytes.fromhex(form)
        case Style.PADDED:
            return form.ljust(kind.length)
    return form


def key_as_dict(key: Key, schema: TableSchema) -> dict[str, str]:
    """Return a key by column name, for people."""
    return dict(zip(schema.key, key, strict=True))
