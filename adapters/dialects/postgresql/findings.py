"""What stands in the way of capturing a table, from what the dictionary says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from venus.adapters.dialects.columns import WAY_OUT
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.keys import Keyless, Offer, offer
from venus.model import HEIR, Finding

#: protobuf keeps 19000-19999 for itself; PostgreSQL's attribute numbers end at 1600.
_DOLLAR = "$venus$"


def of_table(table: Table, keyless: Keyless | None = None) -> Iterator[Finding]:
    """Yield everything there is to say about one table; `keyless` = how one without a key can be given one."""
    where = f"{table.namespace}.{table.name}"
    if table.kind == "f":
        yield Finding(
            where=where,
            message="is a foreign table: what changes behind it fires no trigger here",
            remedy="exclude it, and capture it where it lives",
            blocks=True,
        )
        return
    yield from _key(where, table, keyless)
    for column, why in table.unsupported:
        yield Finding(
            where=f"{where}.{column}",
            message=f"cannot be carried exactly: {why}",
            remedy=f"{WAY_OUT}, or change the column's type",
            blocks=True,
        )
    if any(_DOLLAR in k.name for k in table.key):
        yield Finding(where=where, message=f"a key column's name contains {_DOLLAR}", remedy="rename it", blocks=True)
    if table.unlogged:
        yield Finding(
            where=where,
            message="is unlogged: after a crash of the server it is empty, and no trigger says so",
            remedy="ALTER TABLE ... SET LOGGED, or resync it after a crash",
        )
    for left in table.left_out:
        if left.what == HEIR:
            yield Finding(where=where, message=f"has the heir {left.name}: it is not carried", remedy=left.reason)
    if table.row_security:
        yield Finding(
            where=where,
            message="has row security: only its owner or a role with BYPASSRLS sees all rows",
            remedy="let VENUS connect as such a role; reads that would be filtered are errors, never fewer rows",
        )


def _key(where: str, table: Table, keyless: Keyless | None) -> Iterator[Finding]:
    if table.key:
        return
    offered = offer(table, keyless) if keyless else Offer()
    if offered.statements:
        remedy = f"{'; '.join(offered.statements)} ({offered.remark}), or another PRIMARY KEY, or a unique index"
        remedy += " on NOT NULL columns; or exclude the table"
    else:
        remedy = f"exclude the table: {offered.remark}" if offered.remark else "exclude the table"
    if table.key_choices:
        remedy += "; nearest: " + "; ".join(table.key_choices)
    yield Finding(
        where=where,
        message="has no usable key: rows without one cannot be told apart",
        remedy=remedy,
        blocks=True,
        details=table.key_choices,
        script=offered.statements,
    )
