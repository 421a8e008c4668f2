"""LOBs: a small one is fetched with its row, a large one is read through its locator in pieces.

A query selects each LOB column three times: its content if that is small, its length, its locator. So a small value
costs no extra round trip. VENUS reads a large value piece by piece, or refuses it by its length before it reads a
byte. Lengths and offsets are those of python-oracledb: bytes of a BLOB, UCS-2 code points of a CLOB. In these units, a
character beyond U+FFFF counts as two and must not be split (python-oracledb's documentation, "LOB Objects").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from venus.errors import SourceError

#: The greatest length of a LOB that is fetched with its row.
INLINE_UNITS = 256 << 10
#: The approximate size of the pieces of a larger LOB.
PIECE_UNITS = 1 << 20
#: The prefix of a column that is fetched as a locator; the number of the LOB column follows.
LOCATOR = "VENUS_LOB_"
#: The expression selected for a LOB column among the other columns.
INLINE = f"CASE WHEN DBMS_LOB.GETLENGTH({{c}}) <= {INLINE_UNITS} THEN {{c}} END"


class NotUnicodeError(SourceError):
    """A CLOB that cannot be read as text."""


class Lob(Protocol):
    """The interface of a locator in both drivers."""

    def read(self, offset: int, amount: int) -> str | bytes: ...

    def getchunksize(self) -> int: ...


def lob_columns(column: str, number: int) -> str:
    """Return the additional expressions for a LOB column, which follow all other columns."""
    return f", DBMS_LOB.GETLENGTH({column}) AS VENUS_LENGTH_{number}, {column} AS {LOCATOR}{number}"


def read_lob(lob: Lob, length: int) -> Any:
    """Read a LOB of this length, which is not 0. Raises SourceError if the LOB is shorter."""
    pieces = list(_read_pieces(lob, length))
    return b"".join(pieces) if isinstance(pieces[0], bytes) else "".join(pieces)


def _read_pieces(lob: Lob, length: int) -> Iterator[Any]:
    chunk = max(1, lob.getchunksize())
    at_once = max(chunk, PIECE_UNITS // chunk * chunk)  # the documentation recommends a multiple
    done = 0
    while done < length:
        piece = _read_piece(lob, done, min(at_once, length - done), length)
        if not (size := lob_length(piece)):
            raise SourceError(f"a LOB of length {length} ended at {done}")
        done += size
        yield piece


def _read_piece(lob: Lob, done: int, amount: int, length: int) -> str | bytes:
    """Read `amount` units, or one less if the piece would end in the middle of a character."""
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
    """Whether the text ends with the first half of a character, or with a driver's replacement for it."""
    return text.endswith("\ufffd") or "\ud800" <= text[-1:] <= "\udbff"


def lob_length(piece: str | bytes) -> int:
    """Return the length of a piece as LOBs count it."""
    return len(piece) if isinstance(piece, bytes) else len(piece.encode("utf-16-le", "surrogatepass")) // 2
