r"""PostgreSQL's COPY text to row bytes and back, for whole batches at once (VENUS 3.2).

The source renders rows as COPY text, and the target reads them as COPY text; in between they are protobuf. Both
conversions locate the values and move them in one pass. No object is made per row.

COPY escapes tab, newline and backslash within values, so a raw tab or newline is always a delimiter and `\N` alone is
always NULL. Binary columns are `\x` hex. Escapes and hex are converted for all values of a batch at once.
"""

from __future__ import annotations

import binascii
from typing import Any

import numpy as np
import numpy.typing as npt

from venus.codec.packed import Bools, Bytes, Ints, PackedBytes, Pieces
from venus.codec.row_bytes import Cells, Layout, LocatedCells, bounds_of, few_rows_from_copy, locate_cells, write_rows
from venus.errors import ProtocolError

BACKSLASH, LETTER_N, LETTER_X = b"\\Nx"
_LETTERS = {8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", BACKSLASH: b"\\"}

#: By byte: the letter that represents it after a backslash. By letter: that byte. 0 = none.
_LETTER_OF = np.zeros(256, dtype=np.uint8)
_BYTE_OF = np.zeros(256, dtype=np.uint8)
for _byte, _letter in _LETTERS.items():
    _LETTER_OF[_byte] = ord(_letter)
    _BYTE_OF[ord(_letter)] = _byte


def unescape(cells: Cells, place: str) -> Cells:
    """Return the cells with NULLs not present and every escape replaced by the byte it represents.

    Overwrites the data. Raises ProtocolError, naming the line, for an escape that COPY does not write.
    """
    slashes = int(np.count_nonzero(cells.data == BACKSLASH))
    if not slashes:
        return cells
    data, lengths = cells.data, cells.lengths
    two = np.flatnonzero(lengths.reshape(-1) == 2)
    at = cells.starts[two] + 1
    nulls = (data[at] == BACKSLASH) & (data[at + 1] == LETTER_N)
    present = np.ones(lengths.shape, dtype=np.bool_)
    present.reshape(-1)[two[nulls]] = False
    data[at[nulls]] = 0
    cells = Cells(data, cells.bounds, present)
    return cells if slashes == np.count_nonzero(nulls) else _remove_escapes(cells, place)


def _remove_escapes(cells: Cells, place: str) -> Cells:
    """Return the cells with every escape replaced by its byte."""
    data, bounds = cells.data, cells.bounds
    lead = _find_escapes(data)
    # A single backslash at the very end escapes the final newline, which is no part of the data.
    meant = _BYTE_OF[np.append(data, np.uint8(0))[lead + 1]]
    if not meant.all():
        cell = int(np.searchsorted(bounds, lead[meant == 0][0], side="right")) - 1
        line = cell // cells.present.shape[1] + 1
        raise ProtocolError(f"{place}: line {line} has an escape that COPY does not write")
    data[lead + 1] = meant
    keep = np.ones(len(data), dtype=np.bool_)
    keep[lead] = False
    return Cells(data[keep], bounds - np.searchsorted(lead, bounds), cells.present)


def _find_escapes(text: Bytes) -> Ints:
    """Return the positions of the backslashes that begin an escape: every second one of a run, from its first on."""
    at: Ints = np.flatnonzero(text == BACKSLASH)
    opens = np.diff(at, prepend=-2) != 1
    run_start = at[np.maximum.accumulate(np.where(opens, np.arange(len(at)), 0))]
    lead: Ints = at[(at - run_start) % 2 == 0]
    return lead


def count_special(data: Bytes) -> int:
    """Return how many bytes COPY text would have to escape, delimiters included."""
    return int(np.count_nonzero(_is_special(data)))


def _is_special(data: Bytes) -> Bools:
    """Return which bytes COPY text has to escape."""
    # Two comparisons are faster than the table, and mostly there are no such bytes.
    found: Bools = data - np.uint8(8) < 6
    found |= data == BACKSLASH
    return found


def escape(cells: Cells) -> Cells:
    """Return the cells with special characters escaped as in COPY text.

    The free bytes and the data of absent cells must contain no special character.
    """
    is_special = _is_special(cells.data)
    if not is_special.any():
        return cells
    special = np.flatnonzero(is_special)
    at = special + np.arange(len(special))
    out = np.empty(len(cells.data) + len(special), dtype=np.uint8)
    is_value = np.ones(len(out), dtype=np.bool_)
    is_value[at] = False
    out[is_value] = cells.data
    out[at] = BACKSLASH
    out[at + 1] = _LETTER_OF[cells.data[special]]
    return Cells(out, cells.bounds + np.searchsorted(special, cells.bounds), cells.present)


def to_hex(cells: Cells, binary: Bools) -> Cells:
    r"""Return the cells with the values of binary columns as `\x` hex; `binary` is by column."""
    hexed = (cells.present & binary).reshape(-1)
    if not hexed.any():
        return cells
    sizes = np.diff(cells.bounds)
    from_raw = np.repeat(hexed, sizes)
    from_raw[cells.starts[hexed]] = False
    sizes = np.where(hexed, 2 * sizes + 1, sizes)
    bounds = bounds_of(sizes)
    to_hexed = np.repeat(hexed, sizes)
    first = bounds[:-1][hexed]
    to_hexed[first] = to_hexed[first + 1] = to_hexed[first + 2] = False
    out = np.zeros(int(bounds[-1]), dtype=np.uint8)
    out[to_hexed] = np.frombuffer(binascii.hexlify(cells.data[from_raw].tobytes()), dtype=np.uint8)
    to_hexed[first + 1] = to_hexed[first + 2] = True
    out[first + 1] = BACKSLASH
    out[first + 2] = LETTER_X
    out[~to_hexed] = cells.data[~from_raw]
    return Cells(out, bounds, cells.present)


def from_hex(cells: Cells, binary: Bools, place: str) -> Cells:
    r"""Return the cells with the values of binary columns raw; `binary` is by column.

    Raises ProtocolError, naming the line, for anything but `\x` hex.
    """
    hexed = (cells.present & binary).reshape(-1)
    if not hexed.any():
        return cells
    sizes, first = np.diff(cells.bounds), cells.starts[hexed]
    _check_prefix(cells, hexed, sizes, place)
    from_hexed = np.repeat(hexed, sizes)
    from_hexed[first] = from_hexed[first + 1] = from_hexed[first + 2] = False
    try:
        raw = binascii.unhexlify(cells.data[from_hexed].tobytes())
    except binascii.Error as e:
        raise _not_hex_error(_find_not_hex(cells, from_hexed), cells, place) from e
    from_hexed[first + 1] = from_hexed[first + 2] = True
    sizes = np.where(hexed, sizes // 2, sizes)
    bounds = bounds_of(sizes)
    to_raw = np.repeat(hexed, sizes)
    to_raw[bounds[:-1][hexed]] = False
    out = np.empty(int(bounds[-1]), dtype=np.uint8)
    out[to_raw] = np.frombuffer(raw, dtype=np.uint8)
    out[~to_raw] = cells.data[~from_hexed]
    return Cells(out, bounds, cells.present)


def _check_prefix(cells: Cells, hexed: Bools, sizes: Ints, place: str) -> None:
    """Raise ProtocolError for a binary value that is not backslash, x and pairs of digits."""
    # A cell's size is its free byte, two bytes of prefix, and two for each byte of the value.
    wrong = hexed & ((sizes < 3) | (sizes % 2 == 0))
    candidates = np.flatnonzero(hexed & ~wrong)
    at = cells.starts[candidates]
    wrong[candidates] = (cells.data[at + 1] != BACKSLASH) | (cells.data[at + 2] != LETTER_X)
    if wrong.any():
        raise _not_hex_error(int(np.flatnonzero(wrong)[0]), cells, place)


def _find_not_hex(cells: Cells, chosen: Bools) -> int:
    """Return the first cell with a byte that is no hexadecimal digit."""
    digits = np.zeros(256, dtype=np.bool_)
    digits[list(b"0123456789abcdefABCDEF")] = True
    at = np.flatnonzero(chosen & ~digits[cells.data])[0]
    return int(np.searchsorted(cells.bounds, at, side="right")) - 1


def _not_hex_error(cell: int, cells: Cells, place: str) -> ProtocolError:
    line = cell // cells.present.shape[1] + 1
    return ProtocolError(
        f"{place}: line {line} has a binary value that is not \\x hex", hint="set bytea_output to hex at the source"
    )


_TAB, _NEWLINE, _TRUE, _NEW = b"\t\ntn"


def from_copy(data: bytes, layout: Layout, *, flagged: bool) -> tuple[PackedBytes, PackedBytes, Bools]:
    """Return record ids, rows and deletion flags of COPY lines: [t or f, if `flagged`] and the columns in wire order.

    Raises ProtocolError, naming the line, for text that does not fit the layout, a key that is NULL, or a deleted row
    that has values.
    """
    record_ids, rows, is_deleted, _ = _convert_lines(data, layout, b"tf" if flagged else b"")
    return record_ids, rows, is_deleted


def from_copy_with_new(data: bytes, layout: Layout) -> tuple[PackedBytes, PackedBytes, Bools, Bools]:
    """Convert lines that begin with t, f or n like `from_copy`; return also which begin with n: new rows."""
    return _convert_lines(data, layout, b"tfn")


def _convert_lines(data: bytes, layout: Layout, letters: bytes) -> tuple[PackedBytes, PackedBytes, Bools, Bools]:
    """Convert lines, each of which begins with one of `letters` if there are any."""
    if (made := few_rows_from_copy(data, layout, flagged=bool(letters))) is not None:
        return *made, np.zeros(len(made[2]), dtype=np.bool_)
    first = int(bool(letters))
    _check_utf8(data, layout.place)
    cells = unescape(_split_cells(data, first + len(layout.columns), layout.place), layout.place)
    is_deleted = is_new = np.zeros(len(cells.present), dtype=np.bool_)
    if letters:
        flags = _parse_flags(cells, letters, layout.place)
        is_deleted, is_new = flags == _TRUE, flags == _NEW
    cells = from_hex(cells, np.array((False,) * first + layout.binary), layout.place)
    check_nulls(cells.present[:, first:], is_deleted, layout)
    record_ids, rows = write_rows(cells, layout.tags, layout.key_count, first=first)
    return record_ids, rows, is_deleted, is_new


def _check_utf8(data: bytes, place: str) -> None:
    """Raise ProtocolError, naming the line, for text that is not UTF-8."""
    # Delimiters and escapes are ASCII, so the whole is UTF-8 if and only if every value is.
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise ProtocolError(
            f"{place}: line {line} is not UTF-8 ({e.reason})", hint="correct the row at the source, or its encoding"
        ) from e


def _split_cells(data: bytes, fields: int, place: str) -> Cells:
    """Cut the lines into cells; each delimiter becomes the free byte of the next cell, the last one is dropped."""
    text = np.empty(len(data) + 1, dtype=np.uint8)
    text[0] = _NEWLINE
    text[1:] = np.frombuffer(data, dtype=np.uint8)
    bounds = np.flatnonzero(text - np.uint8(_TAB) < 2)  # tab and newline are neighbours
    if text[-1] != _NEWLINE:
        raise ProtocolError(f"{place}: the COPY text ends within line {data.count(10) + 1}")
    _check_fields(text[bounds[1:]] == _NEWLINE, fields, place)
    return Cells(text[:-1], bounds, np.ones(((len(bounds) - 1) // fields, fields), dtype=np.bool_))


def _check_fields(is_newline: Bools, fields: int, place: str) -> None:
    """Raise ProtocolError for a line with a wrong number of fields."""
    newlines = np.flatnonzero(is_newline)
    wrong = np.flatnonzero(newlines != np.arange(1, len(newlines) + 1) * fields - 1)
    if wrong.size:
        line = int(wrong[0])
        have = int(newlines[line] - (newlines[line - 1] if line else -1))
        raise ProtocolError(f"{place}: line {line + 1} of the COPY text has {have} fields, not {fields}")


def _parse_flags(cells: Cells, letters: bytes, place: str) -> npt.NDArray[np.uint8]:
    """Return the letter at the beginning of each line. Raises ProtocolError for a letter that is not in `letters`."""
    flags = cells.data[np.minimum(cells.starts[:: cells.present.shape[1]] + 1, len(cells.data) - 1)]
    fine = np.isin(flags, np.frombuffer(letters, dtype=np.uint8)) & (cells.lengths[:, 0] == 1)
    if not fine.all():
        allowed = " or ".join(letters[:2].decode())
        raise ProtocolError(f"{place}: line {int(np.flatnonzero(~fine)[0]) + 1} does not begin with {allowed}")
    return flags


def check_nulls(present: Bools, is_deleted: Bools, layout: Layout) -> None:
    """Raise ProtocolError for a NULL in the key, or for a deleted row with values outside its key."""
    keys = present[:, : layout.key_count]
    if not keys.all():
        row, column = (int(i[0]) for i in np.nonzero(~keys))
        raise ProtocolError(
            f"{layout.place}: key column {layout.columns[column].name} is NULL in row {row + 1}",
            hint="VENUS needs a key without NULLs to identify rows",
        )
    if is_deleted.any():
        wrong = np.flatnonzero(is_deleted & present[:, layout.key_count :].any(axis=1))
        if wrong.size:
            raise ProtocolError(f"{layout.place}: row {int(wrong[0]) + 1} is deleted and has values")


def to_copy(record_ids: PackedBytes, rows: PackedBytes, layout: Layout) -> bytes:
    """Return COPY lines with the columns in wire order. Raises ProtocolError for bytes that do not fit `layout`."""
    found = read_keys(record_ids, layout), read_others(rows, len(record_ids), layout)
    return _join_lines(found, layout)


def messages_to_copy(messages: PackedBytes, layout: Layout, *, head: int) -> bytes:
    """Return COPY lines of whole rows, each a head of `head` bytes, its record_id and its other columns."""
    return _join_lines((read_whole_rows(messages, layout, head=head),), layout)


def keys_to_copy(record_ids: PackedBytes, layout: Layout) -> bytes:
    """Return COPY lines with the key columns alone."""
    return _join_lines((read_keys(record_ids, layout),), layout)


def read_keys(record_ids: PackedBytes, layout: Layout) -> LocatedCells:
    """Locate the values of the key; none may be missing."""
    found = locate_cells(record_ids, layout.tags[: layout.key_count], f"record ids of {layout.place}")
    check_nulls(found.present, np.zeros(len(record_ids), dtype=np.bool_), layout)
    return found


def read_others(rows: PackedBytes, expected: int, layout: Layout) -> LocatedCells:
    """Locate the values of the columns outside the key. Raises ProtocolError unless there are `expected` rows."""
    if len(rows) != expected:
        raise ProtocolError(f"{layout.place}: {expected} record ids and {len(rows)} rows")
    return locate_cells(rows, layout.tags[layout.key_count :], f"rows of {layout.place}")


def read_whole_rows(messages: PackedBytes, layout: Layout, *, head: int) -> LocatedCells:
    """Locate the values of whole rows, each a head of `head` bytes, its record_id and its other columns."""
    found = locate_cells(messages, layout.tags, f"rows of {layout.place}", head=head)
    check_nulls(found.present, np.zeros(len(messages), dtype=np.bool_), layout)
    return found


def _join_lines(found: tuple[LocatedCells, ...], layout: Layout) -> bytes:
    """Return the located values as COPY lines."""
    cells = _gather_cells(found)
    if not cells.present.size:
        return b""
    columns = cells.present.shape[1]
    binary = np.array(layout.binary[:columns])
    _delimit(cells)
    if binary.any() or not cells.present.all() or count_special(cells.data) > cells.present.size:
        cells.data[cells.starts] = 0
        cells = escape(to_hex(cells, binary))
        _delimit(cells)
        null = cells.starts[~cells.present.reshape(-1)]
        cells.data[null + 1] = BACKSLASH
        cells.data[null + 2] = LETTER_N
    # Each line has a newline in front, which belongs to the line before.
    text = b"".join((cells.data[1:].data, b"\n"))
    _check_utf8(text, layout.place)
    return text


def _delimit(cells: Cells) -> None:
    """Write the delimiter before each value: a newline before the first of a row, else a tab."""
    cells.data[cells.starts] = _TAB
    cells.data[cells.starts[:: cells.present.shape[1]]] = _NEWLINE


def _gather_cells(found: tuple[LocatedCells, ...]) -> Cells:
    r"""Put the cells of keys and other columns into lines; where a value is missing, there is room for `\N`."""
    pieces = Pieces()
    choice = _join_columns([f.add_to(pieces) for f in found])
    present = _join_columns([f.present for f in found])
    if not present.all():
        choice[~present] = pieces.add(bytes(3), np.array([0, 3], dtype=choice.dtype))
    return Cells(*pieces.gatherer().gather_array(choice), present)


def _join_columns(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join arrays side by side: the columns of the key and the others."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
