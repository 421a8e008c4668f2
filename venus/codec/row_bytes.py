"""The bytes of the rows of one table version: their layout, and the conversion from and to values (VENUS 3.2).

`Layout` has the columns of the record_id, which come first, and the tags of all columns.

Many rows are converted at once, without an object per row. Values are in *cells*: one free byte, then the value. When a
row is written, the free byte takes the (last byte of the) length that protobuf has before each value. When a row is
read, it becomes the delimiter that COPY has between values. So a row consists of one or two pieces per value, and no
byte is moved twice.

Few rows are converted value by value: for a handful of rows the fixed cost of calls on whole batches dominates, and a
transaction of one row pays it in capture and again in apply. Anything unusual (an escape, a key that is NULL, damage)
is left to the code for batches, which also reports the error: a function for few rows then returns None.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from venus.codec.packed import Bools, Bytes, Ints, PackedBytes, Pieces, position_type
from venus.errors import ProtocolError
from venus.model import Column, Kind, TableSchema

#: Field numbers that protobuf reserves for itself.
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
        made = _cache[at] = cls.make(schema)
        return made

    @classmethod
    def make(cls, schema: TableSchema) -> Layout:
        """Build the layout of this version without the cache."""
        check_columns(schema)
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
        return f"{self.schema.qualified_name} version {self.schema.version}"


_cache: dict[tuple[int, int], Layout] = {}


def check_columns(schema: TableSchema) -> None:
    """Raise ProtocolError unless rows of this schema can be identified and encoded."""
    place = f"{schema.qualified_name} version {schema.version}"
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


Tags = tuple[bytes, ...]

#: Longest value whose length is one byte.
_SHORT_MAX = 127
#: The limit of protobuf, for a value and for a message.
_LENGTH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of n rows and m columns in row order.

    Cell i is data[bounds[i]:bounds[i + 1]]; its first byte is free. The content of a cell that is not `present` has no
    meaning.
    """

    data: Bytes
    bounds: Ints
    present: Bools  # n x m

    @property
    def lengths(self) -> Ints:
        """The lengths of the values, n x m."""
        return (np.diff(self.bounds) - 1).reshape(self.present.shape)

    @property
    def starts(self) -> Ints:
        """The positions of the free bytes."""
        return self.bounds[:-1]


def bounds_of(sizes: Ints) -> Ints:
    """Return where pieces of these sizes begin and the last one ends."""
    bounds = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes.reshape(-1), out=bounds[1:])
    return bounds


def write_rows(cells: Cells, tags: Tags, key_count: int, *, first: int = 0) -> tuple[PackedBytes, PackedBytes]:
    """Return record ids and rows; the leading `first` columns of the cells are not included.

    Overwrites the free bytes of the cells.
    """
    if len(cells.data) > _LENGTH_MAX:
        raise ProtocolError(f"{len(cells.data)} bytes of values are more than a message may hold")
    lengths = cells.lengths
    pieces, last_octets = Pieces(), lengths.astype(np.uint8)
    heads, sizes = _choose_heads(pieces, last_octets, lengths, tags, first)
    cells.data[cells.starts] = last_octets.reshape(-1)
    values = pieces.add(cells.data, cells.bounds) + np.arange(lengths.size).reshape(lengths.shape)
    present = cells.present[:, first:]
    choice = np.empty((*present.shape, 2), dtype=np.int64)
    choice[:, :, 0], choice[:, :, 1] = heads, values[:, first:]
    if not present.all():
        choice[~present] = len(tags)  # the empty piece, twice
        sizes[~present] = 0
    gatherer = pieces.gatherer()
    return tuple(  # type: ignore[return-value]
        PackedBytes(gatherer.gather(choice[:, part]), np.einsum("ij->i", sizes[:, part]).astype(np.uint32))
        for part in (slice(key_count), slice(key_count, None))
    )


def _choose_heads(pieces: Pieces, last_octets: Bytes, lengths: Ints, tags: Tags, first: int) -> tuple[Ints, Ints]:
    """Return the piece before each cell, and the sizes of the fields.

    That piece is the column's tag; before a value longer than 127 bytes it is the tag and all octets of the length
    but the last, which is put into `last_octets`.
    """
    pieces.add(b"".join(tags), _tag_bounds(tags))
    lengths = lengths[:, first:]
    heads = np.broadcast_to(np.arange(len(tags)), lengths.shape)
    sizes = lengths + np.array([len(t) + 1 for t in tags])
    if lengths.max(initial=0) <= _SHORT_MAX:
        return heads, sizes
    heads = heads.copy()
    row, column = np.nonzero(lengths > _SHORT_MAX)
    octets, used, last = _long_heads(lengths[row, column], column, tags)
    head_sizes = used.sum(axis=1)
    head = pieces.add(octets[used], bounds_of(head_sizes))
    heads[row, column] = head + np.arange(len(row))
    sizes[row, column] = lengths[row, column] + head_sizes + 1
    last_octets[row, column + first] = last
    return heads, sizes


@lru_cache(maxsize=1024)
def _tag_bounds(tags: Tags) -> Ints:
    """Return the bounds of the tags and of an empty piece after them."""
    return bounds_of(np.array([*map(len, tags), 0]))


def _long_heads(lengths: Ints, column: Ints, tags: Tags) -> tuple[Bytes, Bools, Bytes]:
    """Return for each length the octets of tag and length, which of them count, and the length's last octet."""
    widest = max(map(len, tags))
    octets = np.zeros((len(lengths), widest + 4), dtype=np.uint8)
    used = np.zeros(octets.shape, dtype=np.bool_)
    padded = np.frombuffer(b"".join(t.ljust(widest, b"\0") for t in tags), dtype=np.uint8).reshape(-1, widest)
    octets[:, :widest] = padded[column]
    used[:, :widest] = np.arange(widest) < np.array([len(t) for t in tags])[column, np.newaxis]
    rest = lengths.copy()
    for k in range(4):
        used[:, widest + k] = more = rest > _SHORT_MAX
        octets[:, widest + k] = rest & 127 | 128
        rest[more] >>= 7
    return octets, used, rest.astype(np.uint8)


@dataclass(frozen=True, slots=True)
class LocatedCells:
    """Where the cells of n messages with m fields are: cell [i, j] is data[cuts[i, j, 0]:cuts[i, j, 1]].

    A field that is not `present` has an empty cell, without even a free byte.
    """

    data: bytes
    cuts: Ints  # n x m x 2
    present: Bools  # n x m

    def add_to(self, pieces: Pieces) -> Ints:
        """Add the bytes to `pieces`; return the piece number of each cell, n x m."""
        bounds = np.empty(self.cuts.size + 2, dtype=self.cuts.dtype)
        bounds[0] = 0
        bounds[1:-1] = self.cuts.reshape(-1)
        bounds[-1] = len(self.data)
        first = pieces.add(self.data, bounds) + 1
        return np.arange(first, first + self.cuts.size, 2, dtype=self.cuts.dtype).reshape(self.present.shape)


def locate_cells(messages: PackedBytes, tags: Tags, place: str, *, head: int = 0) -> LocatedCells:
    """Locate the fields of every message; each message begins with a head of `head` bytes.

    Raises ProtocolError, naming the row, for bytes that are no field of this version or for a field cut short.
    """
    rows, columns = len(messages), len(tags)
    ends: Ints = np.cumsum(messages.sizes, dtype=np.int64)
    if (size := int(ends[-1]) if rows else 0) != len(messages.data):
        raise ProtocolError(f"{place}: the sizes of {rows} rows add up to {size} bytes, not {len(messages.data)}")
    if not rows:
        return LocatedCells(b"", np.zeros((0, columns, 2), dtype=np.int64), np.zeros((0, columns), dtype=np.bool_))
    ends = ends.astype(position_type(size, rows * columns), copy=False)
    octets = np.frombuffer(messages.data or b"\0", dtype=np.uint8)  # rows with only a key have no bytes
    cuts = np.empty((rows, columns, 2), dtype=ends.dtype)
    present = np.empty((rows, columns), dtype=np.bool_)
    at: Ints = ends - messages.sizes.astype(ends.dtype) + ends.dtype.type(head)
    if (short := np.flatnonzero(at > ends)).size:
        raise ProtocolError(f"{place}: row {int(short[0]) + 1} is shorter than its head of {head} bytes")
    for column, tag in enumerate(tags):
        here = _has_tag(octets, at, ends, tag)
        present[:, column] = here
        if here.all():
            free, after = _read_lengths(octets, at + len(tag), ends, place, None)
        else:
            free, after = at, at.copy()
            if (found := np.flatnonzero(here)).size:
                free = at.copy()
                free[found], after[found] = _read_lengths(octets, at[found] + len(tag), ends[found], place, found)
        cuts[:, column, 0] = free
        cuts[:, column, 1] = at = after
    if (wrong := np.flatnonzero(at != ends)).size:
        raise ProtocolError(f"{place}: row {int(wrong[0]) + 1} has bytes that are not a field of this schema version")
    return LocatedCells(messages.data, cuts, present)


def _has_tag(octets: Bytes, at: Ints, ends: Ints, tag: bytes) -> Bools:
    """Return for each position whether a field with this tag begins there."""
    # Clipped, because a row that ends early may be the last one.
    here: Bools = octets.take(at, mode="clip") == tag[0]
    for k in range(1, len(tag)):
        here &= octets.take(at + k, mode="clip") == tag[k]
    here &= at < ends
    return here


def _read_lengths(octets: Bytes, at: Ints, ends: Ints, place: str, rows: Ints | None) -> tuple[Ints, Ints]:
    """Read lengths; returns the position of their last octet, which is the cell's free byte, and the value's end."""
    octet = octets.take(at, mode="clip")
    after: Ints
    if octet.max() <= _SHORT_MAX:
        after = at + octet
        after += 1
    else:
        at, after = _read_long(octets, octet, at)
    if (wrong := after > ends).any():
        which = int(np.flatnonzero(wrong)[0])
        row = which if rows is None else int(rows[which])
        raise ProtocolError(f"{place}: row {row + 1} ends within a value")
    return at, after.astype(at.dtype, copy=False)


def _read_long(octets: Bytes, octet: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read lengths of more than one byte; return the position of their last octet, and the length."""
    at = at.copy()
    length = (octet & 127).astype(np.int64)
    more = np.flatnonzero(octet > _SHORT_MAX)
    for k in range(1, 5):
        at[more] += 1
        octet = octets.take(at[more], mode="clip")
        length[more] |= (octet & 127).astype(np.int64) << (7 * k)
        more = more[octet > _SHORT_MAX]
        if not more.size:
            break
    length[more] = _LENGTH_MAX + 1
    return at, at + length + 1


#: More values than this are converted faster as a batch.
FEW_VALUES_MAX = 128
#: Longer COPY text is converted as a batch too.
FEW_BYTES_MAX = 16 << 10
_NULL = b"\\N"
_FLAGS = {b"t": True, b"f": False}
_VARINTS = [varint(size) for size in range(128)]


def few_rows_from_copy(data: bytes, layout: Layout, *, flagged: bool) -> tuple[PackedBytes, PackedBytes, Bools] | None:
    """Convert a few COPY lines as `copy_text.from_copy` does, but value by value; None if anything is unusual."""
    fields = len(layout.tags) + flagged
    if True in layout.binary:
        return None  # hex begins with a backslash, which is escaped
    if (
        len(data) > FEW_BYTES_MAX
        or data[-1:] != b"\n"
        or data.count(b"\n") * fields > FEW_VALUES_MAX
        or not _is_utf8(data)
    ):
        return None
    nulls = 0
    parts: tuple[list[bytes], list[bytes], list[bool]] = ([], [], [])
    for line in data[:-1].split(b"\n"):
        values = line.split(b"\t")
        if len(values) != fields:
            return None
        is_deleted = _FLAGS.get(values.pop(0)) if flagged else False
        here = values.count(_NULL)
        beside_key = values[layout.key_count :]
        if is_deleted is None or _NULL in values[: layout.key_count] or (is_deleted and here != len(beside_key)):
            return None
        nulls += here
        parts[0].append(_message(layout.tags[: layout.key_count], values))
        parts[1].append(_message(layout.tags[layout.key_count :], beside_key))
        parts[2].append(is_deleted)
    if data.count(b"\\") != nulls:
        return None  # there are escapes
    return PackedBytes.of(parts[0]), PackedBytes.of(parts[1]), np.array(parts[2], dtype=np.bool_)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _message(tags: tuple[bytes, ...], values: list[bytes]) -> bytes:
    """Return a protobuf message with these values; NULLs are left out."""
    parts: list[bytes] = []
    for tag, value in zip(tags, values, strict=False):
        if value != _NULL:
            size = len(value)
            parts += (tag, _VARINTS[size] if size < 128 else varint(size), value)
    return b"".join(parts)


def few_rows_to_columns(
    messages: PackedBytes, layout: Layout, first: int, stop: int
) -> list[list[str | bytes | None]] | None:
    """Read a few messages that consist of the columns `first` to `stop` - 1; None if anything is unusual."""
    count = len(messages)
    if not 0 < count * (stop - first) <= FEW_VALUES_MAX:
        return None
    columns: list[list[str | bytes | None]] = [[] for _ in range(first, stop)]
    fields = list(zip(columns, layout.tags[first:stop], layout.binary[first:stop], strict=True))
    at, data = 0, messages.data
    for size in messages.sizes.tolist():
        end = at + size
        if end > len(data):
            return None
        for column, tag, binary in fields:
            if not data.startswith(tag, at, end):
                column.append(None)
                continue
            at += len(tag)
            if at >= end or data[at] > 127:
                return None  # a length of several bytes, or none
            begin = at + 1
            at = begin + data[begin - 1]
            value = data[begin:at]
            try:
                column.append(value if binary else value.decode())
            except UnicodeDecodeError:
                return None
        if at != end:  # a value was cut short
            return None
    return columns if at == len(data) else None
