"""The statements that read one captured table. Pure.

Columns are in wire order: the key's first, then the others. Keys are compared with the operator of the key's index,
qualified by its schema, so that search_path has no influence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from venus.adapters.dialects.postgresql.dictionary.tables import PostgresKeyColumn, PostgresTable
from venus.adapters.dialects.postgresql.sql import literal, log_key_columns, log_table_name, quote, statement
from venus.adapters.dialects.rows import FillCursor
from venus.model import TableSchema

#: The poll itself measures claims up to this size; larger ones are counted.
SMALL_CLAIM_ROWS = 1000
#: Up to this many rows are read into memory at once, each at most as large as a message.
FEW_ROWS = 4
#: Limit for prepared opening statements of cuts in a session.
PREPARED_MAX = 64
#: An index lookup reads about this many pages more than a scan of the table does for the same row.
_PAGES_PER_DESCENT = 4
#: The planner settings with which a cut begins.
KEYED_PLAN = statement("cut", "keyed_plan")


def small_logs_query(table_ids: Iterable[int]) -> str:
    """Return the query that counts the rows of these logs, by kind, and stops where a log is no longer small."""
    limit = str(SMALL_CLAIM_ROWS + 1)
    logs = (statement("cut", "small_log", table_id=str(i), log=log_table_name(i), limit=limit) for i in table_ids)
    return statement("cut", "small", each=" UNION ALL ".join(logs))


def opening_query(tables: Mapping[int, int], read: Iterable[tuple[PostgresTable, TableSchema]] = ()) -> str:
    """Return the query that opens a cut: the marks, and logs and signatures of `tables`, oids by table_id.

    The query also reads and deletes the changes of tables in `read` that have only a few; all tables in `read` have
    identity keys.
    """
    oids = "'{" + ",".join(map(str, tables.values())) + "}'"
    signatures = statement("dictionary", "signatures") % {"tables": oids}
    taken, rows = [], []
    for table, schema in read:
        parts = _row_parts(table, schema) | {"number": str(schema.table_id), "limit": str(FEW_ROWS + 1)}
        taken.append(statement("cut", "few_taken", log=log_table_name(schema.table_id), **parts))
        rows.append(statement("cut", "few_rows", absent=statement("cut", "absent", key=parts["first_key"]), **parts))
    with_rows = f"WITH {', '.join(taken)}\n" if taken else ""
    return statement(
        "cut",
        "opened",
        small=small_logs_query(tables),
        signatures=signatures,
        with_rows=with_rows,
        rows="\n".join(rows),
    )


def delete_marks(done: Iterable[int], waiting: Iterable[int]) -> list[str]:
    """Return the statements that delete the dirty marks of `done` tables, and all but one of `waiting` tables."""
    done, waiting = list(done), list(waiting)
    if not done and not waiting:
        return []
    numbers = "{" + ",".join(map(str, [*done, *waiting])) + "}"
    return [
        statement("cut", "forget_marks", numbers=numbers),
        *(statement("cut", "one_mark", table_id=str(i)) for i in waiting),
    ]


def session_functions() -> str:
    """Return the statements that create the session's functions: for `wait`, and for small reads of many tables."""
    return "; ".join([statement("cut", "looker", body=statement("cut", "look")), statement("cut", "reader")])


@lru_cache(maxsize=64)
def wait_statement(waiting: frozenset[int], *, pause_s: float, looks: int, as_block: bool) -> str:
    """Return the statement that waits for a dirty mark of a table that is not among `waiting`.

    `looks`: how many times the statement checks. `as_block`: use a DO block, because this session has no function that
    waits.
    """
    numbers = "{" + ",".join(map(str, sorted(waiting))) + "}"
    parts = {"waiting": numbers, "pause_s": f"{pause_s:.6f}", "looks": str(looks)}
    if as_block:
        return statement("cut", "wait_block", body=statement("cut", "look"), **parts)
    return statement("cut", "wait", **parts)


def prepare_statements(*, looker: bool) -> list[str]:
    """Return the PREPARE statements for all that a cut executes. `looker`: the session has the function that waits."""
    as_parameter = {"tables": "$1"}
    fingerprint = statement("dictionary", "fingerprint", mark=statement("registry", "mark"))
    return [
        *([statement("cut", "prepare_wait")] if looker else []),
        statement("cut", "dirty"),
        f"PREPARE venus_rewritten (oid[]) AS {statement('cut', 'rewritten') % as_parameter}",
        # planning it takes longer than running it, and an idle source runs little else
        f"PREPARE venus_fingerprint (oid[]) AS {fingerprint % as_parameter}",
        f"PREPARE venus_signatures (oid[]) AS {statement('dictionary', 'signatures') % as_parameter}",
        statement("cut", "prepare_forget_marks"),
        statement("registry", "prepare_advance"),
        statement("registry", "prepare_add_batch"),
        statement("registry", "prepare_forget_batches"),
    ]


def planner_settings(rows: int, pages: int) -> str:
    """Return the planner settings for reading `rows` log rows of a table of this many pages."""
    bulk = rows > SMALL_CLAIM_ROWS and rows * _PAGES_PER_DESCENT >= pages
    return statement("cut", "bulk_plan") if bulk else KEYED_PLAN


def changes_query(
    table: PostgresTable, schema: TableSchema, *, inserts_only: bool, taken: bool, noted: bool = False
) -> str:
    """Return the query for a table's changes. With `taken`, the query also deletes the log rows.

    A row begins with a flag: whether it was deleted, or with `noted`, t (deleted), n (new) or f (neither).
    """
    parts, log = _row_parts(table, schema), log_table_name(schema.table_id)
    parts |= {
        "logged": statement("cut", "log_taken" if taken else "log_read", log=log, keys=parts["keys"]),
        "absent": statement("cut", "noted" if noted else "absent", key=parts["first_key"]),
        "nulls": ", NULL" * (len(schema.columns) - len(schema.key)),
    }
    if table.has_identity_key:
        # if there were only inserts, no key occurs twice
        grouping = "" if inserts_only else f" GROUP BY {parts['keys']}"
        is_new = ", bool_and(op = 'I') AS is_new" if noted else ""
        groups = f"SELECT {parts['keys']}{is_new} FROM d WHERE op NOT IN ('T', 'X', 'F'){grouping}"
        return statement("cut", "changes", groups=groups, **parts)
    keys = log_key_columns(len(table.key))
    texts = ", ".join(f"concat({k})" for k in keys)
    groups = f"SELECT DISTINCT ON ({texts}) {parts['keys']} FROM d WHERE op NOT IN ('T', 'X', 'F') ORDER BY {texts}"
    same_text = " AND ".join(f"concat(t.{quote(c.name)}) = concat(g.{k})" for k, c in zip(keys, table.key, strict=True))
    table_keys = ", ".join(f"t.{quote(c.name)}" for c in table.key)
    return statement("cut", "changes_by_text", groups=groups, same_text=same_text, table_keys=table_keys, **parts)


def _row_parts(table: PostgresTable, schema: TableSchema) -> dict[str, str]:
    """Return the parts of a query that joins the keys `g` with the table `t`."""
    keys = log_key_columns(len(table.key))
    others = (quote(c.name) for c in schema.wire_columns[len(schema.key) :])
    return {
        "keys": ", ".join(keys),
        "first_key": quote(table.key[0].name),
        "table": table.from_sql,
        "key_values": ", ".join(f"g.{k}" for k in keys),
        "others": "".join(f", t.{c}" for c in others),
        "joined": _join_condition(table),
    }


def copy_query(query: str) -> str:
    """Return the COPY statement that sends a query's rows."""
    return statement("cut", "copied", query=query)


def delete_log(schema: TableSchema) -> str:
    """Return the statement that deletes the log rows that were read."""
    return statement("cut", "forget_log", log=log_table_name(schema.table_id))


def fill_query(table: PostgresTable, schema: TableSchema, cursor: bytes, limit: int) -> str:
    """Return the COPY that reads the next rows in key order."""
    return statement(
        "cut",
        "fill",
        columns=", ".join(f"t.{quote(c.name)}" for c in schema.wire_columns),
        table=table.from_sql,
        after=f"WHERE {_range_condition(table, FillCursor.parse(cursor))}" if cursor else "",
        order=_order_terms(table, "<"),
        limit=str(limit),
    )


def last_key_query(table: PostgresTable) -> str:
    """Return the query for the greatest key, as text."""
    keys = ", ".join(f"concat(t.{quote(k.name)})" for k in table.key)
    return statement("cut", "last_key", keys=keys, table=table.from_sql, order=_order_terms(table, ">"))


def _order_terms(table: PostgresTable, operator: str) -> str:
    """Return the terms of ORDER BY: `<` sorts by the key's index, `>` in the opposite direction."""
    return ", ".join(f"t.{quote(k.name)} USING OPERATOR({_operator_schema(k)}.{operator})" for k in table.key)


def _operator_schema(key: PostgresKeyColumn) -> str:
    return key.equals.rpartition(".")[0]


def _range_condition(table: PostgresTable, place: FillCursor) -> str:
    """Return the condition for the rows after a cursor, up to the end of the fill."""
    after = _key_comparison(table, place.after, ">")
    return after if place.end is None else f"{after} AND {_key_comparison(table, place.end, '<=')}"


def _key_comparison(table: PostgresTable, key: list[str], operator: str) -> str:
    """Return a comparison of the key as a row, in the order of its index."""
    values = [f"{literal(v)}::{k.log_type}" for v, k in zip(key, table.key, strict=True)]
    columns = [f"t.{quote(k.name)}" for k in table.key]
    schemas = {_operator_schema(k) for k in table.key}
    if len(schemas) == 1:
        compares = f"OPERATOR({schemas.pop()}.{operator})"
        return (
            f"ROW({', '.join(columns)}) {compares} ROW({', '.join(values)})"
            if len(columns) > 1
            else (f"{columns[0]} {compares} {values[0]}")
        )
    alternatives = []
    for i, column in enumerate(table.key):
        equal = [f"{columns[j]} OPERATOR({table.key[j].equals}) {values[j]}" for j in range(i)]
        # only the last column may also be equal
        compares = f"OPERATOR({_operator_schema(column)}.{operator if i == len(table.key) - 1 else operator[0]})"
        alternatives.append(" AND ".join([*equal, f"{columns[i]} {compares} {values[i]}"]))
    return "(" + " OR ".join(f"({a})" for a in alternatives) + ")"


def _join_condition(table: PostgresTable) -> str:
    """Return the condition that row `t` has the logged key `g`, with the operators of the key's index."""
    return " AND ".join(
        f"t.{quote(c.name)} OPERATOR({c.equals}) g.{k}"
        for k, c in zip(log_key_columns(len(table.key)), table.key, strict=True)
    )
