"""LOBs: small ones come with their row, a large one is read by its locator in pieces (capture.md 4).

A query asks for each LOB column three times: its content if that is small, its length, its locator. So a small value
costs no trip of its own; a large one is refused by its length before a byte of it is read, or read with one piece at
a time in the driver's hands. Lengths and offsets are python-oracledb's: bytes of a BLOB, UCS-2 code points of a CLOB,
where a character beyond U+FFFF counts two and must not be read by halves (its documentation, "LOB Objects").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from venus.errors import SourceError

#: Up to this length a LOB comes with its row.
INLINE_UNITS = 256 << 10
#: What is read at a time of a larger one, about.
PIECE_UNITS = 1 << 20
#: What a column is called that is fetched as a locator, with the number of the column that it is of behind it.
LOCATOR = "VENUS_LOB_"
#: What is read of a LOB column in its place among the others.
INLINE = f"CASE WHEN DBMS_LOB.GETLENGTH({{c}}) <= {INLINE_UNITS} THEN {{c}} END"


class NotUnicodeError(SourceError):
    """A CLOB cannot be read as text."""


class Lob(Protocol):
    """What both drivers give for a locator."""

    def read(self, offset: int, amount: int) -> str | bytes: ...

    def getchunksize(self) -> int: ...


def beside(column: str, number: int) -> str:
    """Return what else is selected for a LOB column, behind all other columns."""
    return f", DBMS_LOB.GETLENGTH({column}) AS VENUS_LENGTH_{number}, {column} AS {LOCATOR}{number}"


def whole(lob: Lob, length: int) -> Any:
    """Read a LOB of this length, not empty. Raises SourceError if it turns out to be shorter."""
    pieces = list(_pieces(lob, length))
    return b"".join(pieces) if isinstance(pieces[0], bytes) else "".join(pieces)


def _pieces(lob: Lob, length: int) -> Iterator[Any]:
    chunk = max(1, lob.getchunksize())
    at_once = max(chunk, PIECE_UNITS // chunk * chunk)  # a multiple is what the documentation advises
    done = 0
    while done < length:
        piece = _piece(lob, done, min(at_once, length - done), length)
        if not (size := units(piece)):
            raise SourceError(f"a LOB of length {length} ended at {done}")
        done += size
        yield piece


def _piece(lob: Lob, done: int, amount: int, length: int) -> str | bytes:
    """Read so much, or one unit less where that would end in the middle of a character."""
    may_split = 1 < amount < length - done
    try:
        piece = lob.read(done + 1, amount)
    except UnicodeDecodeError as error:
        if not may_split:
            raise NotUnicodeError("a CLOB has text that is not valid Unicode") from error
        return lob.read(done + 1, amount - 1)
    if may_split and isinstance(piece, str) and _ends_in_half(piece):
        return lob.read(done + 1, amount - 1)
    return piece


def _ends_in_half(text: str) -> bool:
    """Whether the last character is the first half of one, or what a driver may have put in its place."""
    return text.endswith("\ufffd") or "\ud800" <= text[-1:] <= "\udbff"


def units(piece: str | bytes) -> int:
    """Return the length of a piece as LOBs count it."""
    return len(piece) if isinstance(piece, bytes) else len(piece.encode("utf-16-le", "surrogatepass")) // 2
