"""Few rows of a table as keyed statements with the values in them: one round trip, no staging (performance.md 6)."""

from __future__ import annotations

from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.under.fold import Rows
from venus.codec.columns import keys_to_columns, to_columns
from venus.codec.layout import Layout
from venus.codec.packed import Packed


def keyed_text(session: Session, sql: RowSql, layout: Layout, rows: Rows) -> str:
    """Return the statements: deletes first, then upserts. Raises Refusal for a value that no statement can hold."""
    parts: list[str] = []
    if rows.is_deleted.any():
        gone = rows.where(rows.is_deleted)
        parts.append(sql.text("delete_values", values=key_values(session, layout, gone.record_ids)))
    if not rows.is_deleted.all():
        live = rows.where(~rows.is_deleted)
        columns = to_columns(live.record_ids, live.rows, layout)
        values = _tuples(session, list(zip(*columns, strict=True)))
        parts.append(sql.text("upsert_values", values=values))
    return "; ".join(parts)


def key_values(session: Session, layout: Layout, record_ids: Packed, more: tuple[int, ...] = ()) -> str:
    """Return the keys as a list of row values."""
    columns = keys_to_columns(record_ids, layout)
    rows = [(*key, *more) for key in zip(*columns, strict=True)]
    return _tuples(session, rows)


def _tuples(session: Session, rows: list[tuple[object, ...]]) -> str:
    one = "(" + ", ".join(["%s"] * len(rows[0])) + ")"
    return session.literal(", ".join([one] * len(rows)), [value for row in rows for value in row])
