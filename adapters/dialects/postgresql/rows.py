"""Rows of a captured table at PostgreSQL: COPY TO STDOUT as sections of bounded size, while the server sends.

psycopg2 writes all rows of a COPY into a file. So a thread runs COPY into a pipe, and the reader takes whole lines
from the pipe as it needs them. Memory holds only the pipe, one block and its sections, however large the cut is. The
statements are in capture/cut_statements.py.
"""

from __future__ import annotations

import fcntl
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Self

import numpy as np

from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.registry_rules import UnfitRow
from venus.adapters.dialects.rows import divide_section, find_too_large, slice_section
from venus.codec.batch import TableChanges
from venus.codec.columns import keys_to_columns
from venus.codec.copy_text import from_copy, from_copy_with_new
from venus.codec.packed import Bools, PackedBytes
from venus.codec.row_bytes import Layout

_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_SPOOL_BYTES = 8 << 20
_NEWLINE = ord("\n")
_NULL = "\\N"
#: If new and other rows alternate more often than this in a block, they share a section.
_RUNS_MAX = 8


class _CopyOutput(ABC):
    """The output of a COPY as whole lines. A context manager, which leaves the connection ready for reuse."""

    @abstractmethod
    def _read(self) -> bytes:
        """Return the next data, b"" at the end."""

    @abstractmethod
    def close(self) -> None:
        """Close the output, read or not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def blocks(self, *, rows_max: int, bytes_max: int) -> Iterator[bytes]:
        """Yield whole lines: about as many as the limits allow, at least one."""
        parts: list[bytes] = []  # whole lines
        begun: list[bytes] = []  # beginning of an incomplete line
        rows = size = 0
        while data := self._read():
            ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _NEWLINE) + 1
            if not len(ends):
                begun.append(data)
                continue
            ends += sum(map(len, begun))
            data = b"".join([*begun, data])
            begun = [data[int(ends[-1]) :]]
            start = 0
            while len(ends):
                fit = int(np.searchsorted(ends, start + bytes_max - size, side="right"))
                fit = min(max(fit, 0 if rows else 1), rows_max - rows)
                if fit:
                    end = int(ends[min(fit, len(ends)) - 1])
                    parts.append(data[start:end])
                    rows, size, start, ends = rows + min(fit, len(ends)), size + end - start, end, ends[fit:]
                if len(ends):
                    yield b"".join(parts)
                    parts, rows, size = [], 0, 0
        if parts:
            yield b"".join(parts)


class SmallCopy(_CopyOutput):
    """A COPY of few rows, read at once because a thread would cost more. Large output goes to a temporary file."""

    def __init__(self, connection: PostgresConnection, text: str) -> None:
        self._spool = SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115
        try:
            connection.copy_out(text, self._spool)
        except BaseException:
            self._spool.close()
            raise
        self._spool.seek(0)

    def _read(self) -> bytes:
        return self._spool.read(_READ_BYTES)

    def close(self) -> None:
        self._spool.close()


class FewRows(_CopyOutput):
    """Rows in memory, in the format of COPY."""

    def __init__(self, rows: Sequence[Sequence[str | None]]) -> None:
        self._count = len(rows)
        self._data = copy_text(rows)

    def blocks(self, *, rows_max: int, bytes_max: int) -> Iterator[bytes]:
        """Yield all rows at once if they fit the limits, as they nearly always do."""
        if self._count > rows_max or len(self._data) > bytes_max:
            yield from super().blocks(rows_max=rows_max, bytes_max=bytes_max)
        elif self._count:
            yield self._data

    def _read(self) -> bytes:
        data, self._data = self._data, b""
        return data

    def close(self) -> None:
        pass


def copy_text(rows: Iterable[Iterable[str | None]]) -> bytes:
    """Return rows in the text format of COPY."""
    lines = ("\t".join(_NULL if v is None else _escape(v) for v in row) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def _escape(value: str) -> str:
    """Escape the characters that COPY escapes.

    Seven replacements are faster than str.translate, which works character by character after the first backslash, and
    values of bytea begin with one.
    """
    value = value.replace("\\", r"\\").replace("\b", r"\b").replace("\t", r"\t").replace("\n", r"\n")
    return value.replace("\v", r"\v").replace("\f", r"\f").replace("\r", r"\r")


class CopyStream(_CopyOutput):
    """A running COPY of any size."""

    def __init__(self, connection: PostgresConnection, text: str) -> None:
        self._connection = connection
        self._reader, self._writer = os.pipe()
        with suppress(OSError, AttributeError):  # a larger pipe saves system calls; the system may refuse
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._copy_into_pipe, args=(text,), name="venus-copy", daemon=True)
        self._thread.start()

    def _copy_into_pipe(self, text: str) -> None:
        """Run COPY in the thread, and write its output into the pipe."""
        try:
            with os.fdopen(self._writer, "wb", buffering=1 << 16) as into:
                self._connection.copy_out(text, into)
        except BaseException as error:
            self._error = error

    def close(self) -> None:
        if not self._ended:
            self._connection.cancel()
            while os.read(self._reader, _READ_BYTES):  # drain the pipe, so that the thread does not block
                pass
        self._thread.join()
        os.close(self._reader)

    def _read(self) -> bytes:
        data = os.read(self._reader, _READ_BYTES)
        if not data:
            self._ended = True
            self._thread.join()
            if self._error is not None:
                raise self._error
        return data


def read_sections(
    stream: CopyStream | SmallCopy | FewRows,
    layout: Layout,
    *,
    flagged: bool,
    inserts_only: bool,
    rows_max: int,
    bytes_max: int,
    noted: bool = False,
) -> Iterator[TableChanges]:
    """Yield the rows of a COPY as sections within the limits. A larger row travels alone. Raises UnfitRow.

    `noted`: the flags also mark new rows; adjacent new rows get sections of their own.
    """
    for block in stream.blocks(rows_max=rows_max, bytes_max=bytes_max):
        if noted:
            record_ids, rows, is_deleted, is_new = from_copy_with_new(block, layout)
        else:
            record_ids, rows, is_deleted = from_copy(block, layout, flagged=flagged)
            is_new = np.full(len(is_deleted), inserts_only)
        for changes in _split_new_rows(record_ids, rows, is_deleted, is_new, layout):
            # text and wire sizes differ
            if changes.nbytes > bytes_max and (found := find_too_large(changes.record_ids, changes.rows)):
                raise _unfit_row_error(changes, layout, *found)
            yield from divide_section(changes, bytes_max)


def _split_new_rows(
    record_ids: PackedBytes, rows: PackedBytes, is_deleted: Bools, is_new: Bools, layout: Layout
) -> Iterator[TableChanges]:
    """Yield sections of new rows and of others; if these alternate often, yield one section marked as not new."""
    starts = [0, *(np.flatnonzero(is_new[1:] != is_new[:-1]) + 1).tolist()]
    if len(starts) > _RUNS_MAX:
        starts, is_new = [0], np.zeros(len(is_new), dtype=np.bool_)
    changes = TableChanges(
        table_id=layout.schema.table_id,
        schema_version=layout.schema.version,
        record_ids=record_ids,
        rows=rows,
        is_deleted=is_deleted,
        inserts_only=bool(len(is_new)) and bool(is_new[0]),
    )
    if len(starts) == 1:
        yield changes
        return
    key_bounds, row_bounds = record_ids.bounds, rows.bounds
    for first, last in zip(starts, [*starts[1:], len(is_new)], strict=True):
        part = slice_section(changes, key_bounds, row_bounds, first, last)
        yield replace(part, inserts_only=bool(is_new[first]))


def _unfit_row_error(changes: TableChanges, layout: Layout, place: int, said: str) -> UnfitRow:
    """Return the error about a row that is too large; it names the row's key."""
    columns = keys_to_columns(PackedBytes.of([changes.record_ids.split()[place]]), layout)
    values = [v.hex() if isinstance(v, bytes) else v for (v,) in columns]
    key = ", ".join(f"{column.name}={value}" for column, value in zip(layout.columns, values, strict=False))
    return UnfitRow(f"row {key}: {said}")
