"""The log table and the triggers of one captured table, as statements. Pure.

Ordinary tables have statement triggers with transition tables: one set-based INSERT of keys for each statement
(three times cheaper than row triggers). Partitioned tables and members of an inheritance tree have row
triggers, because a statement trigger fires for the table named in the statement, not for the one that holds the row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.postgresql import sql as names
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresKeyColumn, PostgresTable
from venus.adapters.dialects.postgresql.dictionary.types import accepted_types
from venus.adapters.dialects.postgresql.sql import literal, log_key_columns, qualify, quote, statement

#: pg_trigger.tgenabled: fires in ordinary sessions; fires in replica sessions too.
ORDINARY, ALWAYS = "O", "A"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTrigger:
    """A trigger as VENUS creates it."""

    name: str
    table_oid: int
    table_sql: str
    #: In the form of pg_get_triggerdef(), apart from quotes.
    sql: str

    def is_same_as(self, definition: str) -> bool:
        """Return whether the server's definition is the same. The server quotes names only where it must."""
        return definition.replace('"', "") == self.sql.replace('"', "")

    def enable_sql(self, state: str) -> str:
        """Return the statement that gives the trigger this state."""
        word = "ENABLE ALWAYS" if state == ALWAYS else "ENABLE"
        return f"ALTER TABLE {self.table_sql} {word} TRIGGER {self.name}"


_INDEX = re.compile(r"(?<=pg_get_indexdef\()\d+")
#: The part of a function's code that makes the messages to one client differ.
_MESSAGE = " || statement_timestamp()"
#: The code that tests the index, with the test of the key inside.
_INDEX_FIRST = re.compile(r"IF pg_get_indexdef\([^;]* THEN\s+(IF NOT EXISTS .*?END IF;)\s+END IF;", re.DOTALL)
#: The code for a key of another type, which older versions treated as unreadable.
_RETYPED = re.compile(r"\s*IF \(NOT EXISTS .*? IF TG_OP <> 'DELETE' .*?RETURN NULL;\s+END IF;", re.DOTALL)
#: The code that tests the log's size.
_LIMITED = re.compile(r"\s*IF pg_relation_size\(.*?RETURN NULL;\s+END IF;", re.DOTALL)
#: The types that a key's column may have. A function that finds another type logs X.
_TYPES = re.compile(r"atttypid (?:= '(?:[^']|'')*'::regtype|IN \([^()]*\))")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerFunction:
    """A trigger function as VENUS creates it."""

    name: str
    sql: str

    @property
    def body(self) -> str:
        """The text in pg_proc.prosrc."""
        return self.sql.split("$venus$")[1]

    def is_equivalent_to(self, body: str, other_pipelines: Collection[str] = ()) -> bool:
        """Return whether a function with another body has missed nothing.

        A function has missed nothing if only the index was recreated, if the key or the limit of the log has changed,
        or if an older version looked up the key less often. Functions of release 0.1.0 skipped what any pipeline of
        VENUS applied.
        """
        before = body if other_pipelines else body.replace("'venus.apply'", "'venus.follows'")
        return body != self.body and _normalise_body(before) == _normalise_body(self.body)


def _normalise_body(body: str) -> str:
    """Return the code of a trigger function without the parts in which functions that log the same may differ."""
    body = _LIMITED.sub("", _COMMENT.sub("", body))
    asked = _INDEX_FIRST.sub(r"\1", _RETYPED.sub("", body).replace(_MESSAGE, ""))
    return _TYPES.sub("", _INDEX.sub("", asked))


def log_table_sql(table: PostgresTable, table_id: int) -> str:
    """Return the statement that creates the log table."""
    columns = ", ".join(
        f"{k} {c.log_type}" + (f" COLLATE {c.collation}" if c.collation else "")
        for k, c in zip(log_key_columns(len(table.key)), table.key, strict=True)
    )
    return statement("triggers", "log_table", log=names.log_table_name(table_id), columns=columns)


def widen_sql(log: str, column: str, to: str) -> str:
    """Return the statement that widens a log's column."""
    return statement("triggers", "wider_column", log=log, column=column, type=to)


def build_functions(table: PostgresTable, table_id: int, log_bytes_max: int = 0) -> Iterator[TriggerFunction]:
    """Return the functions that the triggers call; they write no more to a log of `log_bytes_max`, 0 = no limit."""
    new, old = ("NEW", "OLD") if table.per_row else ("n", "o")
    keys = log_key_columns(len(table.key))
    parts = {
        "function": names.function_name(table_id),
        "log": names.log_table_name(table_id),
        "keys": ", ".join(keys),
        "new_key": _key_columns(table.key, new),
        "old_key": _key_columns(table.key, old),
        "same_key": _identity_condition(table, new, old),
        "gone_key": ", ".join(f"x.{k}" for k in keys),
        "old_image": _key_image(table, old),
        "new_image": _key_image(table, new),
        "key_changed": " OR ".join(_key_change_condition(k) for k in table.key),
        "index_differs": _index_condition(table),
        "truncating": f"venus.t{table_id:05}",
        "checked": f"venus.c{table_id:05}",
        "mark_dirty": statement("triggers", "mark_dirty", marked=f"venus.d{table_id:05}", table_id=str(table_id)),
    }
    full = {"bytes": str(log_bytes_max), "marked": f"venus.d{table_id:05}", "table_id": str(table_id)}
    parts["full"] = f"\n{statement('triggers', 'full', log=parts['log'], **full)};" if log_bytes_max else ""
    parts["retyped"] = _retyped_code(table, parts) if table.per_row else ""
    block = "row_function" if table.per_row else "statement_function"
    yield TriggerFunction(name=names.function_name(table_id), sql=statement("triggers", block, **parts))
    if table.kind == "p":
        key = _key_columns(table.key, "x").replace("%", "%%")
        executed = literal(statement("triggers", "keys_of_partition", key=key, **parts))
        name = names.partition_function_name(table_id)
        sql = statement("triggers", "partition_function", partition_function=name, keys_of_partition=executed, **parts)
        yield TriggerFunction(name=name, sql=sql)


def idle_function(table_id: int) -> TriggerFunction:
    """Return the function that captures nothing, so that the application's statements succeed."""
    name = names.function_name(table_id)
    return TriggerFunction(name=name, sql=statement("triggers", "idle_function", function=name))


def revoke_sql(function: str) -> str:
    """Return the statement that prevents other roles from using the function on their own tables."""
    return statement("triggers", "revoke", function=function)


def build_triggers(table: PostgresTable, table_id: int) -> Iterator[PostgresTrigger]:
    """Return the triggers of a table and of its partitions."""
    on, call = table.name_sql, names.function_name(table_id)

    def build_own(event: str, text: str) -> PostgresTrigger:
        return _build_trigger(names.trigger_name(event, table_id), table.oid, on, text, call)

    if table.per_row:
        yield build_own("r", "AFTER INSERT OR DELETE OR UPDATE ON {on} FOR EACH ROW")
        yield build_own("b", "BEFORE TRUNCATE ON {on} FOR EACH STATEMENT")
    else:
        yield build_own("i", "AFTER INSERT ON {on} REFERENCING NEW TABLE AS n FOR EACH STATEMENT")
        yield build_own("u", "AFTER UPDATE ON {on} REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT")
        yield build_own("d", "AFTER DELETE ON {on} REFERENCING OLD TABLE AS o FOR EACH STATEMENT")
    yield build_own("t", "AFTER TRUNCATE ON {on} FOR EACH STATEMENT")
    for leaf in table.leaves:
        text = "BEFORE TRUNCATE ON {on} FOR EACH STATEMENT"
        name = names.trigger_name("p", table_id)
        yield _build_trigger(
            name, leaf.oid, qualify(leaf.namespace, leaf.name), text, names.partition_function_name(table_id)
        )


def _build_trigger(name: str, oid: int, on: str, text: str, function: str) -> PostgresTrigger:
    # not str.format, because a table's name may contain braces
    sql = f"CREATE TRIGGER {name} {text.replace('{on}', on)} EXECUTE FUNCTION {function}()"
    return PostgresTrigger(name=name, table_oid=oid, table_sql=on, sql=sql)


def _key_columns(key: tuple[PostgresKeyColumn, ...], of: str) -> str:
    """Return the key columns of the row `of` as a list in SQL."""
    return ", ".join(f"{of}.{quote(k.name)}" for k in key)


def _identity_condition(table: PostgresTable, new: str, old: str) -> str:
    """Return a comparison of keys by identity, because equal keys may differ in their text (1.0 and 1.00, a and A)."""
    if not table.has_identity_key:
        # *= compares bytes, so that the application's output settings do not matter
        return (
            f"ROW({_key_columns(table.key, new)})::record OPERATOR(pg_catalog.*=) "
            f"ROW({_key_columns(table.key, old)})::record"
        )
    return " AND ".join(f"{new}.{quote(k.name)} OPERATOR({k.equals}) {old}.{quote(k.name)}" for k in table.key)


def _key_image(table: PostgresTable, of: str) -> str:
    """Return SQL for the key, together with its text if equal keys may have different texts."""
    columns = [f"{of}.{quote(k.name)}" for k in table.key]
    return ", ".join(columns if table.has_identity_key else [*columns, *(f"concat({c})" for c in columns)])


def _index_condition(table: PostgresTable) -> str:
    """Return SQL that is true if the key's index no longer consists of the columns that the function knows."""
    if table.namespace == names.OWN_SCHEMA:
        return "false"  # only VENUS alters its own tables
    return " OR ".join(f"{k.index_name_sql} IS DISTINCT FROM {literal(k.index_name)}" for k in table.key)


def _key_change_condition(key: PostgresKeyColumn) -> str:
    """Return SQL that is true if a key column was renamed, dropped or given a type that the log does not accept."""
    return (
        "NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = TG_RELID"
        f" AND attname = {literal(key.name)} AND {_type_condition(accepted_types(key.spelled))})"
    )


def _retyped_code(table: PostgresTable, parts: Mapping[str, str]) -> str:
    """Return the code of a row trigger for a key that became wider; empty if no key column can."""
    if not any(_can_become_wider(k) for k in table.key):
        return ""
    other = " OR ".join(
        f"NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = TG_RELID AND attname = {literal(k.name)}"
        f" AND {_type_condition([k.spelled])})"
        for k in table.key
    )
    old, new = (", ".join(_untyped_value(k, of) for k in table.key) for of in ("OLD", "NEW"))
    return (
        "\n"
        + f"      {statement('triggers', 'retyped', other_type=other, old_text=old, new_text=new, **parts).strip()};"
    )


def _can_become_wider(key: PostgresKeyColumn) -> bool:
    """Return whether the log accepts other types of this key column."""
    return len(accepted_types(key.spelled)) > 1


def _untyped_value(key: PostgresKeyColumn, of: str) -> str:
    """Return SQL for a key's value that also works after its column has become wider."""
    column = f"{of}.{quote(key.name)}"
    return f"(to_jsonb({of}) ->> {literal(key.name)})::{key.log_type}" if _can_become_wider(key) else column


def _type_condition(spelled: Seq[str]) -> str:
    """Return SQL that is true for a row of pg_attribute with one of these types."""
    types = [f"{literal(one)}::regtype" for one in spelled]
    return f"atttypid = {types[0]}" if len(types) == 1 else f"atttypid IN ({', '.join(types)})"
