"""The log table and the triggers of one captured table, as statements. Pure.

A trigger logs a key under a new number. A later snapshot shows whether the row exists, and its values. A key that is
logged twice, or whose row did not change, therefore does no harm and costs little.

InnoDB runs ON DELETE and ON UPDATE actions below the level of triggers, so the child's triggers do not fire. The
trigger that logs the children's keys is therefore on the table where the cascade begins. A path is the chain of
foreign keys from the table where a cascade begins to a captured table. A path may pass through tables that are not
captured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.mysql.dictionary.tables import MysqlReference, MysqlTable
from venus.adapters.dialects.mysql.dictionary.types import can_widen, log_type, narrow_log_type
from venus.adapters.dialects.mysql.sql import literal, log_key_columns, log_table_name, quote, statement, trigger_name

_ACTS = ("CASCADE", "SET NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadePath:
    """A cascade from a DELETE or UPDATE of `root` along `references` to the rows of `child`."""

    event: str  # DELETE, UPDATE
    references: tuple[MysqlReference, ...]

    @property
    def root(self) -> str:
        """The table where the cascade begins."""
        return self.references[0].parent

    @property
    def child(self) -> str:
        """The table whose rows change."""
        return self.references[-1].child

    @property
    def mark(self) -> str:
        """Eight hexadecimal digits that identify the path in names."""
        text = "\n".join([self.event, *(f"{r.child} {r.name}" for r in self.references)])
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircularCascade:
    """A cascade that returns to a table of its own path; triggers cannot follow it, because its depth is unknown."""

    reference: MysqlReference
    tables: tuple[str, ...]


def find_paths(references: Seq[MysqlReference]) -> Iterator[CascadePath | CircularCascade]:
    """Yield every cascade along these foreign keys, and every circular one once."""
    yielded: set[str] = set()
    for root in dict.fromkeys(r.parent for r in references):
        for event in ("DELETE", "UPDATE"):
            for found in _follow_references(event, event, root, None, (), references):
                if isinstance(found, CircularCascade):
                    if found.reference.name in yielded:
                        continue
                    yielded.add(found.reference.name)
                yield found


def _follow_references(
    root_event: str,
    event: str,
    table: str,
    changed: tuple[str, ...] | None,  # None: any column
    before: tuple[MysqlReference, ...],
    references: Seq[MysqlReference],
) -> Iterator[CascadePath | CircularCascade]:
    """Yield the cascades that continue the path `before` when `event` changes rows of `table`."""
    for reference in references:
        action = reference.on_delete if event == "DELETE" else reference.on_update
        touched = event == "DELETE" or changed is None or set(changed) & set(reference.referred)
        if reference.parent != table or action not in _ACTS or not touched:
            continue
        if reference in before:
            yield CircularCascade(reference=reference, tables=tuple(r.child for r in before))
            continue
        path = (*before, reference)
        yield CascadePath(event=root_event, references=path)
        deleted = event == "DELETE" and action == "CASCADE"
        deeper = ("DELETE", None) if deleted else ("UPDATE", reference.columns)
        yield from _follow_references(root_event, deeper[0], reference.child, deeper[1], path, references)


def find_reaching(
    references: Seq[MysqlReference], captured: Collection[str]
) -> tuple[list[CascadePath], list[CircularCascade]]:
    """Return the cascades that reach captured tables, and the circular cascades that pass through one."""
    found = list(find_paths(references))
    return (
        [f for f in found if isinstance(f, CascadePath) and f.child in captured],
        [f for f in found if isinstance(f, CircularCascade) and {f.reference.child, *f.tables} & set(captured)],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlTrigger:
    """A trigger as VENUS creates it."""

    name: str
    table: str  # the table that has the trigger
    timing: str
    event: str
    body: str
    database: str

    @property
    def sql(self) -> str:
        """The statement that creates this trigger."""
        return statement(
            "triggers",
            "create",
            trigger=f"{quote(self.database)}.{self.name}",
            timing=self.timing,
            event=self.event,
            table=f"{quote(self.database)}.{quote(self.table)}",
            body=self.body,
        )

    @property
    def definition(self) -> tuple[str, str, str, str]:
        """The entry that the dictionary has for this trigger unless it was altered."""
        return (self.body, self.table, self.timing, self.event)

    @property
    def quiet(self) -> MysqlTrigger:
        """The same trigger for a database that may become a target: it does not log changes that VENUS applies."""
        return replace(self, body=statement("triggers", "unless_applied", body=self.body))

    def is_equal_to(self, there: tuple[str, str, str, str] | None) -> bool:
        """Return whether the trigger of a dictionary entry logs the application's changes as this one does."""
        return there in (self.definition, self.quiet.definition)


def key_description(table: MysqlTable) -> str:
    """Return the key columns of a log table with their types, as its comment records them."""
    keys = log_key_columns(len(table.key))
    return ", ".join(f"{k} {log_type(table.declared[name])}" for k, name in zip(keys, table.key, strict=True))


def narrow_key_description(table: MysqlTable) -> str:
    """Return the key's description as older versions wrote it: their log columns were only as wide as the key's."""
    keys = log_key_columns(len(table.key))
    return ", ".join(f"{k} {narrow_log_type(table.declared[name])}" for k, name in zip(keys, table.key, strict=True))


def widen_log_sql(table: MysqlTable, table_id: int) -> str:
    """Return the statement that widens the log of an older version."""
    keys = zip(log_key_columns(len(table.key)), table.key, strict=True)
    columns = ", ".join(f"MODIFY {k} {log_type(table.declared[name])} NULL" for k, name in keys)
    log = _log_name(table.database, table_id)
    return statement("triggers", "wider_log", log=log, columns=columns, comment=literal(key_description(table)))


def can_widen_log(there: str, table: MysqlTable) -> bool:
    """Return whether a log with this description can be converted to the required columns with its rows."""
    existing, required = there.split(", "), key_description(table).split(", ")
    if len(existing) != len(required):
        return False
    pairs = ((a.partition(" "), b.partition(" ")) for a, b in zip(existing, required, strict=True))
    return all(a[0] == b[0] and can_widen(a[2], b[2]) for a, b in pairs)


def log_table_sql(table: MysqlTable, table_id: int) -> str:
    """Return the statement that creates the log table."""
    keys = log_key_columns(len(table.key))
    columns = [f"{k} {log_type(table.declared[name])} NULL" for k, name in zip(keys, table.key, strict=True)]
    return statement(
        "triggers",
        "log_table",
        log=_log_name(table.database, table_id),
        columns=", ".join(columns),
        comment=literal(key_description(table)),
    )


def _log_name(database: str, table_id: int) -> str:
    return f"{quote(database)}.{log_table_name(table_id)}"


def _identity_condition(columns: Iterable[str], binary: Iterable[bool]) -> str:
    """Return the condition that OLD and NEW are identical: a collation may equate 'a' and 'A', which are two keys."""
    pairs = []
    for name, as_bytes in zip(columns, binary, strict=True):
        old, new = f"OLD.{quote(name)}", f"NEW.{quote(name)}"
        pairs.append(f"CAST({old} AS BINARY) <=> CAST({new} AS BINARY)" if as_bytes else f"{old} <=> {new}")
    return " AND ".join(pairs)


def build_triggers(table: MysqlTable, table_id: int, paths: Seq[CascadePath]) -> list[MysqlTrigger]:
    """Return the triggers of a captured table: three on itself, and those of the cascades that reach it."""
    keys = ", ".join(log_key_columns(len(table.key)))
    parts = {
        "log": _log_name(table.database, table_id),
        "keys": keys,
        "old": ", ".join(f"OLD.{quote(k)}" for k in table.key),
        "new": ", ".join(f"NEW.{quote(k)}" for k in table.key),
        "same": _identity_condition(table.key, (table.declared[k].is_text for k in table.key)),
    }
    own = [
        MysqlTrigger(
            name=trigger_name(letter, table_id),
            table=table.name,
            timing="AFTER",
            event=event.upper(),
            body=statement("triggers", event, **parts),
            database=table.database,
        )
        for letter, event in (("i", "insert"), ("u", "update"), ("d", "delete"))
    ]
    return own + [t for path in paths for t in _cascade_triggers(table, table_id, path)]


def _cascade_triggers(table: MysqlTable, table_id: int, path: CascadePath) -> list[MysqlTrigger]:
    """Return the triggers of one path.

    The trigger for a DELETE logs the children's keys before the deletion. An UPDATE may change the children's keys, so
    they are logged before the update, and again after InnoDB has run the action of the foreign key.
    """
    cases = {"DELETE": [("x", "BEFORE", "OLD")], "UPDATE": [("y", "BEFORE", "OLD"), ("z", "AFTER", "NEW")]}
    return [
        MysqlTrigger(
            name=trigger_name(letter, table_id, path.mark),
            table=path.root,
            timing=timing,
            event=path.event,
            body=_cascade_body(table, table_id, path, side),
            database=table.database,
        )
        for letter, timing, side in cases[path.event]
    ]


def _cascade_body(table: MysqlTable, table_id: int, path: CascadePath, side: str) -> str:
    """Return the body of a trigger that logs the keys that a cascade from the row `side` (OLD or NEW) reaches."""
    first = path.references[0]
    chain = [f"{quote(table.database)}.{quote(first.child)} AS c1"]
    for i, reference in enumerate(path.references[1:], 1):
        on = " AND ".join(
            f"c{i + 1}.{quote(c)} = c{i}.{quote(r)}" for c, r in zip(reference.columns, reference.referred, strict=True)
        )
        chain.append(f"JOIN {quote(table.database)}.{quote(reference.child)} AS c{i + 1} ON {on}")
    begins = [f"c1.{quote(c)} = {side}.{quote(r)}" for c, r in zip(first.columns, first.referred, strict=True)]
    variables = [f"v{i}" for i in range(1, len(table.key) + 1)]
    declared = [f"DECLARE {v} {log_type(table.declared[k])};" for v, k in zip(variables, table.key, strict=True)]
    return statement(
        "triggers",
        "cascade",
        log=_log_name(table.database, table_id),
        keys=", ".join(log_key_columns(len(table.key))),
        variables=" ".join(declared),
        values=", ".join(variables),
        child_key=", ".join(f"c{len(path.references)}.{quote(k)}" for k in table.key),
        path=" ".join(chain),
        begins=" AND ".join(begins),
        happens="TRUE"
        if path.event == "DELETE"
        else f"NOT ({_identity_condition(first.referred, [True] * len(first.referred))})",
    )
