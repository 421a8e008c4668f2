"""Changes of one table as the texts that COPY takes: made before the connection is needed (performance.md 6)."""

from __future__ import annotations

from dataclasses import dataclass

from venus.adapters.under.fold import Rows
from venus.codec.copytext import keys_to_copy, to_copy
from venus.codec.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Changes with a key once each, and the lines for both staging tables: of rows that live, of keys that are gone."""

    rows: Rows
    live: int
    live_lines: bytes
    gone: int
    gone_lines: bytes

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is brought in at once: new rows that are tried without staging, and what is staged."""

    new: Rows | None
    new_lines: bytes
    staged: Staged


def staged(rows: Rows, layout: Layout) -> Staged:
    """Return the form for staging tables of changes with a key once each."""
    live, gone = rows.where(~rows.is_deleted), rows.where(rows.is_deleted)
    return Staged(
        rows=rows,
        live=len(live),
        live_lines=to_copy(live.record_ids, live.rows, layout),
        gone=len(gone),
        gone_lines=keys_to_copy(gone.record_ids, layout),
    )


def formed(rows: Rows, layout: Layout, *, directly: bool) -> Form:
    """Return the form of changes; `directly` = what is new is not staged."""
    if not directly or rows.is_new is None or not rows.is_new.any():
        return Form(new=None, new_lines=b"", staged=staged(rows, layout))
    new = rows.where(rows.is_new)
    lines = to_copy(new.record_ids, new.rows, layout)
    return Form(new=new, new_lines=lines, staged=staged(rows.where(~rows.is_new), layout))
