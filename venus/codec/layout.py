"""How the rows of one table version are laid out: the columns of the record_id, and the tags of all columns.

Every function that reads or writes row bytes (copytext, columns) uses it (VENUS 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.errors import ProtocolError
from venus.model import Column, Kind, TableSchema

#: Field numbers that protobuf keeps for itself.
_RESERVED = range(19_000, 20_000)
_NUMBER_MAX = 2**29 - 1
_CACHED_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The wire order of a table version; the first `key_count` columns are the record_id's."""

    schema: TableSchema
    columns: tuple[Column, ...]
    key_count: int
    numbers: tuple[int, ...]
    binary: tuple[bool, ...]
    #: The tag before each value: field number and wire type 2, as a varint.
    tags: tuple[bytes, ...]

    @classmethod
    def of(cls, schema: TableSchema) -> Layout:
        """Return the layout of this version, from a cache."""
        at = (schema.table_id, schema.version)
        known = _cache.get(at)
        # Ids are unique only within a business, so the schema itself decides whether the entry is the right one.
        if known is not None and (known.schema is schema or known.schema == schema):
            return known
        if len(_cache) >= _CACHED_MAX:
            _cache.clear()
        made = _cache[at] = cls._make(schema)
        return made

    @classmethod
    def _make(cls, schema: TableSchema) -> Layout:
        check(schema)
        columns = schema.wire_columns
        numbers = tuple(c.number for c in columns)
        return cls(
            schema=schema,
            columns=columns,
            key_count=len(schema.key),
            numbers=numbers,
            binary=tuple(c.type.kind is Kind.BYTES for c in columns),
            tags=tuple(varint(number << 3 | 2) for number in numbers),
        )

    @property
    def place(self) -> str:
        """The table version as error messages name it."""
        return f"{self.schema.qualified} version {self.schema.version}"


_cache: dict[tuple[int, int], Layout] = {}


def check(schema: TableSchema) -> None:
    """Raise ProtocolError unless rows of this schema can be identified and encoded."""
    place = f"{schema.qualified} version {schema.version}"
    names = [c.name for c in schema.columns]
    numbers = [c.number for c in schema.columns]
    if len(set(names)) != len(names):
        raise ProtocolError(f"{place}: two columns have the same name")
    if len(set(numbers)) != len(numbers):
        raise ProtocolError(f"{place}: two columns have the same field number")
    if bad := [n for n in numbers if not 1 <= n <= _NUMBER_MAX or n in _RESERVED]:
        raise ProtocolError(f"{place}: {bad[0]} is not a valid field number")
    if not schema.key:
        raise ProtocolError(f"{place}: no key")
    if len(set(schema.key)) != len(schema.key) or not set(schema.key) <= set(names):
        raise ProtocolError(f"{place}: the key ({', '.join(schema.key)}) names a column twice or a missing column")


def varint(value: int) -> bytes:
    """Return protobuf's encoding of a number that is not negative."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
