r"""What a byte of a value may not look like in PostgreSQL's COPY text, and `\x` hex for binary columns.

Tab, newline and backslash within values are escaped by COPY, so a raw tab or newline is always a delimiter and `\N`
alone is always NULL. Everything here works on the cells of a whole batch.
"""

from __future__ import annotations

import binascii

import numpy as np

from venus.codec.pieces import Bools, Bytes, Ints
from venus.codec.rowbytes import Cells, bounds_of
from venus.errors import ProtocolError

BACKSLASH, LETTER_N, LETTER_X = b"\\Nx"
_LETTERS = {8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", BACKSLASH: b"\\"}

#: By byte: the letter that stands for it behind a backslash. By letter: that byte. 0 = none.
_LETTER_OF = np.zeros(256, dtype=np.uint8)
_BYTE_OF = np.zeros(256, dtype=np.uint8)
for _byte, _letter in _LETTERS.items():
    _LETTER_OF[_byte] = ord(_letter)
    _BYTE_OF[ord(_letter)] = _byte


def unescape(cells: Cells, place: str) -> Cells:
    """Return the cells with NULLs not present and every escape replaced by the byte it stands for.

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
    return cells if slashes == np.count_nonzero(nulls) else _without_escapes(cells, place)


def _without_escapes(cells: Cells, place: str) -> Cells:
    data, bounds = cells.data, cells.bounds
    lead = _leaders(data)
    # A lone backslash at the very end escapes the final newline, which is no part of the data.
    meant = _BYTE_OF[np.append(data, np.uint8(0))[lead + 1]]
    if not meant.all():
        cell = int(np.searchsorted(bounds, lead[meant == 0][0], side="right")) - 1
        line = cell // cells.present.shape[1] + 1
        raise ProtocolError(f"{place}: line {line} has an escape that COPY does not write")
    data[lead + 1] = meant
    keep = np.ones(len(data), dtype=np.bool_)
    keep[lead] = False
    return Cells(data[keep], bounds - np.searchsorted(lead, bounds), cells.present)


def _leaders(text: Bytes) -> Ints:
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
    # Two comparisons find them quicker than the table does, and mostly there are none.
    found: Bools = data - np.uint8(8) < 6
    found |= data == BACKSLASH
    return found


def escape(cells: Cells) -> Cells:
    """Return the cells as COPY text has them. Free bytes, and the data of what is not present, must be harmless."""
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
        raise _no_hex(_first_not_hex(cells, from_hexed), cells, place) from e
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
    # A cell's size is its free byte, two bytes of prefix, and two for each byte of the value.
    wrong = hexed & ((sizes < 3) | (sizes % 2 == 0))
    candidates = np.flatnonzero(hexed & ~wrong)
    at = cells.starts[candidates]
    wrong[candidates] = (cells.data[at + 1] != BACKSLASH) | (cells.data[at + 2] != LETTER_X)
    if wrong.any():
        raise _no_hex(int(np.flatnonzero(wrong)[0]), cells, place)


def _first_not_hex(cells: Cells, chosen: Bools) -> int:
    digits = np.zeros(256, dtype=np.bool_)
    digits[list(b"0123456789abcdefABCDEF")] = True
    at = np.flatnonzero(chosen & ~digits[cells.data])[0]
    return int(np.searchsorted(cells.bounds, at, side="right")) - 1


def _no_hex(cell: int, cells: Cells, place: str) -> ProtocolError:
    line = cell // cells.present.shape[1] + 1
    return ProtocolError(
        f"{place}: line {line} has a binary value that is not \\x hex", hint="set bytea_output to hex at the source"
    )
