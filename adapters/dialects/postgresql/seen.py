"""Detection of changes to triggers and columns between two comparisons, or while capture did not run.

No trigger fires for rows that are written while it is off, and none for values that ALTER TABLE computes. Both leave
other row versions in the system catalogs, even if the definitions are restored afterwards (capture.md 4). Capture
stores these versions as marks.
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

#: Name of the mark for a table's values. Every other mark has the name of a trigger.
VALUES = "values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Changes to one table since the last comparison."""

    #: Triggers that were off for a while or altered, with their partition if they have one.
    off: tuple[str, ...] = ()
    #: Whether ALTER TABLE has recomputed values of rows.
    rewritten: bool = False
    #: (relation, name, mark) to be stored.
    fresh: tuple[tuple[int, str, str], ...] = ()


@dataclass(slots=True)
class Seen:
    """The stored marks and the present ones, by relation."""

    before: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    now: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, connection: Connection, tables: Iterable[Table]) -> Seen:
        """Read the marks of these tables and their partitions."""
        seen = cls()
        for relation, name, mark in connection.rows(statement("triggers", "seen")):
            seen.before[relation][name] = mark
        seen.look(connection, [oid for table in tables for oid in _relations(table)])
        return seen

    def look(self, connection: Connection, relations: Seq[int]) -> None:
        """Read the present marks of relations. Repeat this after capture itself has altered a trigger."""
        for relation, name, mark in connection.rows(statement("triggers", "seen_now"), {"relations": list(relations)}):
            self.now[relation][name] = mark

    def of(self, table: Table) -> Told:
        """Return the changes to a table."""
        off, fresh, rewritten = [], [], False
        places = _relations(table)
        for relation, place in places.items():
            before, now = self.before.get(relation, {}), self.now.get(relation, {})
            fresh += [(relation, name, mark) for name, mark in now.items() if before.get(name) != mark]
            off += [f"{name}{place}" for name, mark in now.items() if name != VALUES and _off(before.get(name), mark)]
            rewritten |= _rewritten(before.get(VALUES), now.get(VALUES))
        return Told(off=tuple(off), rewritten=rewritten, fresh=tuple(fresh))

    def has_values_of(self, table: Table) -> bool:
        """Return whether marks for the values of a table and of all its partitions were stored before."""
        return all(VALUES in self.before.get(relation, {}) for relation in _relations(table))

    def forget_others(self, connection: Connection) -> None:
        """Delete the marks of relations that are no longer captured: a returning one has missed changes."""
        if others := [relation for relation in self.before if relation not in self.now]:
            connection.run(statement("triggers", "seen_others"), {"relations": others})


def store(connection: Connection, fresh: Seq[tuple[int, str, str]]) -> None:
    """Store marks in the caller's transaction."""
    if fresh:
        relations, named, marks = (list(column) for column in zip(*fresh, strict=True))
        connection.run(statement("triggers", "saw"), {"relations": relations, "names": named, "marks": marks})


def all_read_again(connection: Connection, table_id: int) -> None:
    """Store the present marks of a table's triggers: its new fill reads everything that they have missed."""
    if connection.row(statement("triggers", "seen_exists"))[0]:
        connection.run(statement("triggers", "seen_again", number=f"{table_id:05}"))


def _relations(table: Table) -> dict[int, str]:
    """Return the relations of a table by oid, each with its place for messages."""
    return {table.oid: ""} | {leaf.oid: f" on {leaf.namespace}.{leaf.name}" for leaf in table.leaves}


def _off(before: str | None, now: str) -> bool:
    """Return whether a trigger has another row version. With another function it comes from a restored database."""
    if before is None or before == now:
        return False
    return before.split(" ")[0] == now.split(" ")[0]


def _rewritten(before: str | None, now: str | None) -> bool:
    """Return whether values were recomputed.

    That is so if a column was altered and the rows are in another file, or if an expression was altered. VACUUM FULL
    and CLUSTER alter no column, and SET STATISTICS creates no other file.
    """
    if before is None or now is None or before == now:
        return False
    old, new = json.loads(before), json.loads(now)
    altered = _differ(old, new, "columns") and old["file"] != new["file"]
    return altered or _differ(old, new, "expressions")


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], what: str) -> bool:
    """Return whether an entry in both differs. Added and dropped columns make a new version anyway."""
    return any(new[what].get(number, value) != value for number, value in old[what].items())
