"""A table's rows by COPY, in bounded memory, and rows of elsewhere as PostgreSQL would write them."""

from __future__ import annotations

from dataclasses import replace

from venus.adapters.targets.cutting import TakeRows
from venus.adapters.targets.postgresql.cutmark import sql
from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.rows.rowcopy import copy_rows
from venus.adapters.targets.postgresql.session import Session
from venus.codec.changes import TableChanges
from venus.codec.copytext import from_copy
from venus.codec.layout import Layout
from venus.model import TableSchema

_CHUNK_BYTES = 4 << 20
_SPELLER = "venus_speller"


class PostgresSpeller:
    """Writes rows as the target stores them: by a table of the same types that has no constraint."""

    def __init__(self, session: Session, placed: Placed) -> None:
        self._session = session
        self._placed = placed

    def __enter__(self) -> PostgresSpeller:
        placed = self._placed
        self._session.run(sql("create_speller", speller=_SPELLER, columns=placed.wire_columns, table=placed.sql))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.rollback()
        self._session.run(sql("drop_speller", speller=_SPELLER))

    def spelled(self, section: TableChanges, schema: TableSchema) -> TableChanges:
        """Return rows of `schema`'s version as the target writes them, in the newest version."""
        placed = self._placed
        copy_rows(self._session, _SPELLER, placed, section, schema)
        text = self._session.copy_out(sql("copy_rows", columns=placed.wire_columns, table=_SPELLER))
        self._session.run(sql("empty_speller", speller=_SPELLER))
        ids, rows, gone = from_copy(text, Layout.of(placed.schema), flagged=False)
        return replace(section, record_ids=ids, rows=rows, is_deleted=gone, schema_version=placed.schema.version)


class _Lines:
    """What COPY is written into: whole lines are given out whenever enough have come together."""

    def __init__(self, layout: Layout, take: TakeRows) -> None:
        self._layout = layout
        self._take = take
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size >= _CHUNK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        text = b"".join(self._parts)
        end = text.rfind(b"\n") + 1
        if end:
            ids, rows, _ = from_copy(text[:end], self._layout, flagged=False)
            self._take(ids, rows)
        self._parts, self._size = [text[end:]], len(text) - end


def read_rows(session: Session, placed: Placed, take: TakeRows) -> None:
    """Give out every row of a table, in the caller's transaction."""
    lines = _Lines(Layout.of(placed.schema), take)
    session.copy_to(sql("copy_rows", columns=placed.wire_columns, table=placed.rows_sql), lines)
    lines.flush()
