"""The log table and the triggers of one captured table, as statements. Pure.

A key has changed if its values are not identical, even if they compare as equal: under NOCASE a equals A, and without a
declared type 1 equals 1.0, but the target has two rows in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.adapters.dialects.registry_rules import LogLimits, full_log_reason
from venus.adapters.dialects.sqlite.connection import literal, quote
from venus.adapters.dialects.sqlite.dictionary.structure import find_names
from venus.adapters.dialects.sqlite.dictionary.tables import (
    SqliteTable,
    UniqueIndex,
    identity_condition,
    log_key_columns,
    log_table_name,
)
from venus.adapters.dialects.sqlite.sql import statement


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOwnObject:
    """A table or trigger of VENUS, with its CREATE statement as sqlite_master stores it."""

    kind: str  # table or trigger
    name: str
    sql: str


def build_capture_objects(found: SqliteTable, table_id: int) -> list[SqliteOwnObject]:
    """Return the log table and the triggers of a table, in the order of creation."""
    log = log_table_name(table_id)
    made = [SqliteOwnObject(kind="table", name=log, sql=_render_block("log_table", found, log))]
    for block, letter in (("insert", "i"), ("key_change", "k"), ("update", "u"), ("delete", "d")):
        made.append(_build_trigger(block, f"venus_{letter}_{table_id:05}", found, log))
    for number, (collision, moved) in enumerate(_collision_conditions(found), 1):
        parts = {"collision": collision, "moved": moved}
        made.append(_build_trigger("insert_victims", f"venus_iv{number}_{table_id:05}", found, log, **parts))
        made.append(_build_trigger("update_victims", f"venus_uv{number}_{table_id:05}", found, log, **parts))
    return made


def valve_name(table_id: int) -> str:
    """Return the name of the trigger on a log that limits it."""
    return f"venus_f_{table_id:05}"


def build_valve(table_id: int, limits: LogLimits) -> str:
    """Return the trigger that limits a log; empty without a limit."""
    if not limits.rows_max:
        return ""
    parts = {"trigger": quote(valve_name(table_id)), "log": quote(log_table_name(table_id)), "table_id": str(table_id)}
    return statement("install", "valve", rows=str(limits.rows_max), reason=literal(full_log_reason(limits)), **parts)


def _build_trigger(block: str, name: str, found: SqliteTable, log: str, **parts: str) -> SqliteOwnObject:
    return SqliteOwnObject(
        kind="trigger", name=name, sql=_render_block(block, found, log, trigger=quote(name), **parts)
    )


def _render_block(block: str, found: SqliteTable, log: str, **parts: str) -> str:
    """Return a named block of SQL with the names and keys of this table inserted."""

    def key_of(row: str) -> str:
        return ", ".join(f"{row}.{quote(k.name)}" for k in found.key)

    return statement(
        "install",
        block,
        table=quote(found.schema.name),
        log=quote(log),
        log_columns=log_key_columns(len(found.key)),
        new_key=key_of("NEW"),
        old_key=key_of("OLD"),
        victim_key=key_of("x"),
        same_key=" AND ".join(identity_condition(f"OLD.{quote(k.name)}", f"NEW.{quote(k.name)}", k) for k in found.key),
        **parts,
    )


def _collision_conditions(found: SqliteTable) -> list[tuple[str, str]]:
    """Return two conditions for each way to collide: that REPLACE removes row x, and that this UPDATE may cause it."""
    ways = []
    for index in found.unique:
        if index.is_key and all(k.exact for k in found.key):
            continue  # the removed row has the new row's own key, which is logged anyway
        ways.append(_index_collision(index, found))
    if found.rowid:
        ways.append((f"x.{found.rowid} = NEW.{found.rowid}", f"OLD.{found.rowid} <> NEW.{found.rowid}"))
    return ways


def _index_collision(index: UniqueIndex, found: SqliteTable) -> tuple[str, str]:
    """Return two conditions: that row x collides with row NEW in this index, and that this UPDATE may cause it."""
    if index.columns and not index.where:
        equal = [
            f"x.{quote(c)} COLLATE {term.rpartition(' COLLATE ')[2]} = NEW.{quote(c)}"
            for c, term in zip(index.columns, index.terms, strict=True)
        ]
        moved = [f"NOT (OLD.{quote(c)} IS NEW.{quote(c)} COLLATE BINARY)" for c in index.columns]
        return " AND ".join(equal), " OR ".join(moved)
    # Expressions name columns without a row. For existing rows they refer to x; for the new row, to its values, which
    # the subquery offers under the same names.
    used = find_names(*index.terms, index.where)
    columns = [c.name for c in found.schema.columns if c.name.lower() in used]
    values = ", ".join(f"NEW.{quote(name)} AS {quote(name)}" for name in columns)
    conditions = [f"{term} = (SELECT {term} FROM (SELECT {values}))" for term in index.terms]
    if index.where:
        conditions.append(f"({index.where})")
        conditions.append(f"(SELECT {index.where} FROM (SELECT {values}))")
    return " AND ".join(conditions), "1"
