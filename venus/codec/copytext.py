r"""PostgreSQL's COPY text to row bytes and back, for whole batches at once (VENUS 3.2).

On the way up the source renders rows as COPY text, on the way down the target takes them as COPY text; in between
they are protobuf. Both conversions find where the values are and move them in one go; nothing is made per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from venus.codec import escaping, few
from venus.codec.layout import Layout
from venus.codec.packed import Packed
from venus.codec.pieces import Bools, Pieces
from venus.codec.rowbytes import Cells, Found, read, write
from venus.errors import ProtocolError

_TAB, _NEWLINE, _TRUE, _NEW = b"\t\ntn"


def from_copy(data: bytes, layout: Layout, *, flagged: bool) -> tuple[Packed, Packed, Bools]:
    """Return record ids, rows and deletion flags of COPY lines: [t or f, if `flagged`] and the columns in wire order.

    Raises ProtocolError, naming the line, for text that does not fit the layout, a key that is NULL, or a deleted row
    that has values.
    """
    record_ids, rows, is_deleted, _ = _converted(data, layout, b"tf" if flagged else b"")
    return record_ids, rows, is_deleted


def from_copy_noted(data: bytes, layout: Layout) -> tuple[Packed, Packed, Bools, Bools]:
    """Return what `from_copy` returns of lines that begin with t, f or n, and which of them began with n: new rows."""
    return _converted(data, layout, b"tfn")


def _converted(data: bytes, layout: Layout, letters: bytes) -> tuple[Packed, Packed, Bools, Bools]:
    """Convert lines, each of which begins with one of `letters` if there are any."""
    if (made := few.from_copy(data, layout, flagged=bool(letters))) is not None:
        return *made, np.zeros(len(made[2]), dtype=np.bool_)
    first = int(bool(letters))
    _check_utf8(data, layout.place)
    cells = escaping.unescape(_cells(data, first + len(layout.columns), layout.place), layout.place)
    is_deleted = is_new = np.zeros(len(cells.present), dtype=np.bool_)
    if letters:
        flags = _flags(cells, letters, layout.place)
        is_deleted, is_new = flags == _TRUE, flags == _NEW
    cells = escaping.from_hex(cells, np.array((False,) * first + layout.binary), layout.place)
    check_nulls(cells.present[:, first:], is_deleted, layout)
    record_ids, rows = write(cells, layout.tags, layout.key_count, first=first)
    return record_ids, rows, is_deleted, is_new


def _check_utf8(data: bytes, place: str) -> None:
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


def _cells(data: bytes, fields: int, place: str) -> Cells:
    """Cut the lines at their delimiters; each becomes the free byte of the cell behind it, the last one is dropped."""
    text = np.empty(len(data) + 1, dtype=np.uint8)
    text[0] = _NEWLINE
    text[1:] = np.frombuffer(data, dtype=np.uint8)
    bounds = np.flatnonzero(text - np.uint8(_TAB) < 2)  # tab and newline are neighbours
    if text[-1] != _NEWLINE:
        raise ProtocolError(f"{place}: the COPY text ends within line {data.count(10) + 1}")
    _check_fields(text[bounds[1:]] == _NEWLINE, fields, place)
    return Cells(text[:-1], bounds, np.ones(((len(bounds) - 1) // fields, fields), dtype=np.bool_))


def _check_fields(is_newline: Bools, fields: int, place: str) -> None:
    newlines = np.flatnonzero(is_newline)
    wrong = np.flatnonzero(newlines != np.arange(1, len(newlines) + 1) * fields - 1)
    if wrong.size:
        line = int(wrong[0])
        have = int(newlines[line] - (newlines[line - 1] if line else -1))
        raise ProtocolError(f"{place}: line {line + 1} of the COPY text has {have} fields, not {fields}")


def _flags(cells: Cells, letters: bytes, place: str) -> npt.NDArray[np.uint8]:
    flags = cells.data[np.minimum(cells.starts[:: cells.present.shape[1]] + 1, len(cells.data) - 1)]
    fine = np.isin(flags, np.frombuffer(letters, dtype=np.uint8)) & (cells.lengths[:, 0] == 1)
    if not fine.all():
        allowed = " or ".join(letters[:2].decode())
        raise ProtocolError(f"{place}: line {int(np.flatnonzero(~fine)[0]) + 1} does not begin with {allowed}")
    return flags


def check_nulls(present: Bools, is_deleted: Bools, layout: Layout) -> None:
    """Raise ProtocolError for a NULL in the key, or for values beside the key of a deleted row."""
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


def to_copy(record_ids: Packed, rows: Packed, layout: Layout) -> bytes:
    """Return COPY lines with the columns in wire order. Raises ProtocolError for bytes that are no rows of it."""
    found = read_keys(record_ids, layout), read_others(rows, len(record_ids), layout)
    return _lines(found, layout)


def messages_to_copy(messages: Packed, layout: Layout, *, head: int) -> bytes:
    """Return COPY lines of whole rows, each a head of so many bytes, its record_id and its other columns."""
    return _lines((read_stored(messages, layout, head=head),), layout)


def keys_to_copy(record_ids: Packed, layout: Layout) -> bytes:
    """Return COPY lines with the key columns alone."""
    return _lines((read_keys(record_ids, layout),), layout)


def read_keys(record_ids: Packed, layout: Layout) -> Found:
    """Return where the key's values are; none may be missing."""
    found = read(record_ids, layout.tags[: layout.key_count], f"record ids of {layout.place}")
    check_nulls(found.present, np.zeros(len(record_ids), dtype=np.bool_), layout)
    return found


def read_others(rows: Packed, expected: int, layout: Layout) -> Found:
    """Return where the values of the other columns are, one row for each record id."""
    if len(rows) != expected:
        raise ProtocolError(f"{layout.place}: {expected} record ids and {len(rows)} rows")
    return read(rows, layout.tags[layout.key_count :], f"rows of {layout.place}")


def read_stored(messages: Packed, layout: Layout, *, head: int) -> Found:
    """Return where the values of whole rows are, each a head of so many bytes, its record_id and its other columns."""
    found = read(messages, layout.tags, f"rows of {layout.place}", head=head)
    check_nulls(found.present, np.zeros(len(messages), dtype=np.bool_), layout)
    return found


def _lines(found: tuple[Found, ...], layout: Layout) -> bytes:
    cells = _gathered(found)
    if not cells.present.size:
        return b""
    columns = cells.present.shape[1]
    binary = np.array(layout.binary[:columns])
    _delimit(cells)
    if binary.any() or not cells.present.all() or escaping.count_special(cells.data) > cells.present.size:
        cells.data[cells.starts] = 0
        cells = escaping.escape(escaping.to_hex(cells, binary))
        _delimit(cells)
        null = cells.starts[~cells.present.reshape(-1)]
        cells.data[null + 1] = escaping.BACKSLASH
        cells.data[null + 2] = escaping.LETTER_N
    # Each line has its newline in front: it belongs to the one before.
    text = b"".join((cells.data[1:].data, b"\n"))
    _check_utf8(text, layout.place)
    return text


def _delimit(cells: Cells) -> None:
    cells.data[cells.starts] = _TAB
    cells.data[cells.starts[:: cells.present.shape[1]]] = _NEWLINE


def _gathered(found: tuple[Found, ...]) -> Cells:
    r"""Put the cells of keys and other columns into lines; where a value is missing, there is room for `\N`."""
    pieces = Pieces()
    choice = _side_by_side([f.add_to(pieces) for f in found])
    present = _side_by_side([f.present for f in found])
    if not present.all():
        choice[~present] = pieces.add(bytes(3), np.array([0, 3], dtype=choice.dtype))
    return Cells(*pieces.gatherer().gather_array(choice), present)


def _side_by_side(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
