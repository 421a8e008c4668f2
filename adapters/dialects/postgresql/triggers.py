"""The log table and the triggers of one captured table, as statements. Pure.

Ordinary tables have statement triggers with transition tables: one set-based INSERT of keys for each statement
(capture.md 5: three times cheaper than row triggers). Partitioned tables and members of an inheritance tree have row
triggers, because a statement trigger fires for the table named in the statement, not for the one that holds the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.postgresql import names
from venus.adapters.dialects.postgresql.dictionary import KeyColumn, Table
from venus.adapters.dialects.postgresql.names import literal, log_keys, qualified, quoted
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.postgresql.types import taken_types


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger as VENUS creates it."""

    name: str
    table_oid: int
    table_sql: str
    #: In the form of pg_get_triggerdef(), apart from quotes.
    sql: str

    def same_as(self, definition: str) -> bool:
        """Return whether the server's definition is the same. The server quotes names only where it must."""
        return definition.replace('"', "") == self.sql.replace('"', "")


_INDEX = re.compile(r"(?<=pg_get_indexdef\()\d+")
#: Distinguishes the messages of a client.
_MESSAGE = " || statement_timestamp()"
#: The test of the index, around the test of the key.
_INDEX_FIRST = re.compile(r"IF pg_get_indexdef\([^;]* THEN\s+(IF NOT EXISTS .*?END IF;)\s+END IF;", re.DOTALL)
#: The code for a key of another type, which older versions treated as unreadable.
_RETYPED = re.compile(r"\s*IF \(NOT EXISTS .*? IF TG_OP <> 'DELETE' .*?RETURN NULL;\s+END IF;", re.DOTALL)
#: The types that a key's column may have. A function that finds another type logs X.
_TYPES = re.compile(r"atttypid (?:= '(?:[^']|'')*'::regtype|IN \([^()]*\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A trigger function as VENUS creates it."""

    name: str
    sql: str

    @property
    def body(self) -> str:
        """The text in pg_proc.prosrc."""
        return self.sql.split("$venus$")[1]

    def captures_like(self, body: str) -> bool:
        """Return whether a function with another body has missed nothing.

        That is so if only the index was recreated, if the key has another type, or if an older version looked up the
        key less often.
        """
        return body != self.body and _lasting(body) == _lasting(self.body)


def _lasting(body: str) -> str:
    asked = _INDEX_FIRST.sub(r"\1", _RETYPED.sub("", body).replace(_MESSAGE, ""))
    return _TYPES.sub("", _INDEX.sub("", asked))


def log_table(table: Table, table_id: int) -> str:
    """Return the statement that creates the log table."""
    columns = ", ".join(
        f"{k} {c.log_type}" + (f" COLLATE {c.collation}" if c.collation else "")
        for k, c in zip(log_keys(len(table.key)), table.key, strict=True)
    )
    return statement("triggers", "log_table", log=names.log_table(table_id), columns=columns)


def widen(log: str, column: str, to: str) -> str:
    """Return the statement that widens a log's column."""
    return statement("triggers", "wider_column", log=log, column=column, type=to)


def functions(table: Table, table_id: int) -> Iterator[Function]:
    """Return the functions that the triggers call."""
    new, old = ("NEW", "OLD") if table.per_row else ("n", "o")
    keys = log_keys(len(table.key))
    parts = {
        "function": names.function(table_id),
        "log": names.log_table(table_id),
        "keys": ", ".join(keys),
        "new_key": _columns(table.key, new),
        "old_key": _columns(table.key, old),
        "same_key": _same(table, new, old),
        "gone_key": ", ".join(f"x.{k}" for k in keys),
        "old_image": _image(table, old),
        "new_image": _image(table, new),
        "key_changed": " OR ".join(_changed(k) for k in table.key),
        "index_differs": _index_differs(table),
        "truncating": f"venus.t{table_id:05}",
        "checked": f"venus.c{table_id:05}",
        "mark_dirty": statement("triggers", "mark_dirty", marked=f"venus.d{table_id:05}", table_id=str(table_id)),
    }
    parts["retyped"] = _retyped(table, parts) if table.per_row else ""
    block = "row_function" if table.per_row else "statement_function"
    yield Function(name=names.function(table_id), sql=statement("triggers", block, **parts))
    if table.kind == "p":
        key = _columns(table.key, "x").replace("%", "%%")
        executed = literal(statement("triggers", "keys_of_partition", key=key, **parts))
        name = names.partition_function(table_id)
        sql = statement("triggers", "partition_function", partition_function=name, keys_of_partition=executed, **parts)
        yield Function(name=name, sql=sql)


def idle_function(table_id: int) -> Function:
    """Return the function that captures nothing, so that the application's statements succeed."""
    name = names.function(table_id)
    return Function(name=name, sql=statement("triggers", "idle_function", function=name))


def revoke(function: str) -> str:
    """Return the statement that prevents other roles from using the function on their own tables."""
    return statement("triggers", "revoke", function=function)


def triggers(table: Table, table_id: int) -> Iterator[Trigger]:
    """Return the triggers of a table and of its partitions."""
    on, call = table.name_sql, names.function(table_id)

    def of(event: str, text: str) -> Trigger:
        return _trigger(names.trigger(event, table_id), table.oid, on, text, call)

    if table.per_row:
        yield of("r", "AFTER INSERT OR DELETE OR UPDATE ON {on} FOR EACH ROW")
        yield of("b", "BEFORE TRUNCATE ON {on} FOR EACH STATEMENT")
    else:
        yield of("i", "AFTER INSERT ON {on} REFERENCING NEW TABLE AS n FOR EACH STATEMENT")
        yield of("u", "AFTER UPDATE ON {on} REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT")
        yield of("d", "AFTER DELETE ON {on} REFERENCING OLD TABLE AS o FOR EACH STATEMENT")
    yield of("t", "AFTER TRUNCATE ON {on} FOR EACH STATEMENT")
    for leaf in table.leaves:
        text = "BEFORE TRUNCATE ON {on} FOR EACH STATEMENT"
        name = names.trigger("p", table_id)
        yield _trigger(name, leaf.oid, qualified(leaf.namespace, leaf.name), text, names.partition_function(table_id))


def _trigger(name: str, oid: int, on: str, text: str, function: str) -> Trigger:
    # not str.format, because a table's name may contain braces
    sql = f"CREATE TRIGGER {name} {text.replace('{on}', on)} EXECUTE FUNCTION {function}()"
    return Trigger(name=name, table_oid=oid, table_sql=on, sql=sql)


def _columns(key: tuple[KeyColumn, ...], of: str) -> str:
    return ", ".join(f"{of}.{quoted(k.name)}" for k in key)


def _same(table: Table, new: str, old: str) -> str:
    """Return a comparison of keys by identity, because equal keys may differ in their text (1.0 and 1.00, a and A)."""
    if not table.identity_key:
        # *= compares bytes, so that the application's output settings do not matter
        return (
            f"ROW({_columns(table.key, new)})::record OPERATOR(pg_catalog.*=) ROW({_columns(table.key, old)})::record"
        )
    return " AND ".join(f"{new}.{quoted(k.name)} OPERATOR({k.equals}) {old}.{quoted(k.name)}" for k in table.key)


def _image(table: Table, of: str) -> str:
    """Return the key, with its text if equal keys may differ in it."""
    columns = [f"{of}.{quoted(k.name)}" for k in table.key]
    return ", ".join(columns if table.identity_key else [*columns, *(f"concat({c})" for c in columns)])


def _index_differs(table: Table) -> str:
    if table.namespace == names.OWN_SCHEMA:
        return "false"  # only VENUS alters its own tables
    return " OR ".join(f"{k.index_name_sql} IS DISTINCT FROM {literal(k.index_name)}" for k in table.key)


def _changed(key: KeyColumn) -> str:
    return (
        "NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = TG_RELID"
        f" AND attname = {literal(key.name)} AND {_has_type(taken_types(key.spelled))})"
    )


def _retyped(table: Table, parts: Mapping[str, str]) -> str:
    """Return the code of a row trigger for a key that became wider, empty if no column can."""
    if not any(_is_of_family(k) for k in table.key):
        return ""
    other = " OR ".join(
        f"NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = TG_RELID AND attname = {literal(k.name)}"
        f" AND {_has_type([k.spelled])})"
        for k in table.key
    )
    old, new = (", ".join(_untyped(k, of) for k in table.key) for of in ("OLD", "NEW"))
    return (
        "\n"
        + f"      {statement('triggers', 'retyped', other_type=other, old_text=old, new_text=new, **parts).strip()};"
    )


def _is_of_family(key: KeyColumn) -> bool:
    return len(taken_types(key.spelled)) > 1


def _untyped(key: KeyColumn, of: str) -> str:
    column = f"{of}.{quoted(key.name)}"
    return f"(to_jsonb({of}) ->> {literal(key.name)})::{key.log_type}" if _is_of_family(key) else column


def _has_type(spelled: Seq[str]) -> str:
    types = [f"{literal(one)}::regtype" for one in spelled]
    return f"atttypid = {types[0]}" if len(types) == 1 else f"atttypid IN ({', '.join(types)})"
