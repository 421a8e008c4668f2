"""What capture has seen of triggers and columns: tells what was done between two looks, or while nobody looked.

No trigger fires for rows that are written while it is off, and none for what ALTER TABLE computes. Both leave other
versions of rows in the system catalogs, which stay when everything looks as before (capture.md 4).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.statements import statement

#: The mark that is about a table's values; every other one has the name of a trigger.
VALUES = "values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What has happened to one table since the last look."""

    #: Triggers that were off for a while, or altered, with the partition where that is one's.
    off: tuple[str, ...] = ()
    #: Whether ALTER TABLE has recomputed values of rows.
    rewritten: bool = False
    #: (relation, name, mark) to be stored.
    fresh: tuple[tuple[int, str, str], ...] = ()


@dataclass(slots=True)
class Seen:
    """What was seen, and what is there now, by relation."""

    before: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    now: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, connection: Connection, tables: Iterable[Table]) -> Seen:
        """Look at these tables and their partitions."""
        seen = cls()
        for relation, name, mark in connection.rows(statement("triggers", "seen")):
            seen.before[relation][name] = mark
        seen.look(connection, [oid for table in tables for oid in _relations(table)])
        return seen

    def look(self, connection: Connection, relations: Seq[int]) -> None:
        """Look at these relations as they are now; again, where capture itself has altered a trigger since."""
        for relation, name, mark in connection.rows(statement("triggers", "seen_now"), {"relations": list(relations)}):
            self.now[relation][name] = mark

    def of(self, table: Table) -> Told:
        """Return what has happened to a table."""
        off, fresh, rewritten = [], [], False
        places = _relations(table)
        for relation, place in places.items():
            before, now = self.before.get(relation, {}), self.now.get(relation, {})
            fresh += [(relation, name, mark) for name, mark in now.items() if before.get(name) != mark]
            off += [f"{name}{place}" for name, mark in now.items() if name != VALUES and _off(before.get(name), mark)]
            rewritten |= _rewritten(before.get(VALUES), now.get(VALUES))
        return Told(off=tuple(off), rewritten=rewritten, fresh=tuple(fresh))

    def has_values_of(self, table: Table) -> bool:
        """Say whether the values of a table and of all its partitions were looked at before."""
        return all(VALUES in self.before.get(relation, {}) for relation in _relations(table))

    def forget_others(self, connection: Connection) -> None:
        """Forget tables and partitions that are not captured any more: one that comes back has missed changes."""
        if others := [relation for relation in self.before if relation not in self.now]:
            connection.run(statement("triggers", "seen_others"), {"relations": others})


def store(connection: Connection, fresh: Seq[tuple[int, str, str]]) -> None:
    """Keep marks, in the caller's transaction."""
    if fresh:
        relations, named, marks = (list(column) for column in zip(*fresh, strict=True))
        connection.run(statement("triggers", "saw"), {"relations": relations, "names": named, "marks": marks})


def all_read_again(connection: Connection, table_id: int) -> None:
    """Take the triggers as they are now: what they have missed before is read with the whole table."""
    if connection.row(statement("triggers", "seen_exists"))[0]:
        connection.run(statement("triggers", "seen_again", number=f"{table_id:05}"))


def _relations(table: Table) -> dict[int, str]:
    """Return what has rows or triggers of a table, each with its place for people."""
    return {table.oid: ""} | {leaf.oid: f" on {leaf.namespace}.{leaf.name}" for leaf in table.leaves}


def _off(before: str | None, now: str) -> bool:
    """Say whether a trigger is another version of itself. With another function it came with a restored database."""
    if before is None or before == now:
        return False
    return before.split(" ")[0] == now.split(" ")[0]


def _rewritten(before: str | None, now: str | None) -> bool:
    """Say whether values were recomputed: a column was altered and the rows are in another file, or an expression was.

    VACUUM FULL and CLUSTER alter no column, SET STATISTICS makes no other file.
    """
    if before is None or now is None or before == now:
        return False
    old, new = json.loads(before), json.loads(now)
    altered = _differ(old, new, "columns") and old["file"] != new["file"]
    return altered or _differ(old, new, "expressions")


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], what: str) -> bool:
    """Compare what is in both: columns that came or went are a version of their own."""
    return any(new[what].get(number, value) != value for number, value in old[what].items())
