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

from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import PostgresTable
from venus.adapters.dialects.postgresql.statements import statement

#: Name of the mark for a table's values. Every other mark has the name of a trigger.
VALUES = "values"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkChanges:
    """Changes to one table since the last comparison."""

    #: Triggers that were off for a while or altered, with their partition if they have one.
    altered_triggers: tuple[str, ...] = ()
    #: Whether ALTER TABLE has recomputed values of rows.
    has_rewritten_values: bool = False
    #: (relation, name, mark) to be stored.
    new_marks: tuple[tuple[int, str, str], ...] = ()


@dataclass(slots=True)
class TriggerMarks:
    """The stored marks and the present ones, by relation."""

    before: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    now: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, connection: PostgresConnection, tables: Iterable[PostgresTable]) -> TriggerMarks:
        """Read the marks of these tables and their partitions."""
        seen = cls()
        for relation, name, mark in connection.rows(statement("triggers", "seen")):
            seen.before[relation][name] = mark
        seen.read_present(connection, [oid for table in tables for oid in _relations(table)])
        return seen

    def read_present(self, connection: PostgresConnection, relations: Seq[int]) -> None:
        """Read the present marks of relations. Repeat this after capture itself has altered a trigger."""
        for relation, name, mark in connection.rows(statement("triggers", "seen_now"), {"relations": list(relations)}):
            self.now[relation][name] = mark

    def find_changes(self, table: PostgresTable) -> MarkChanges:
        """Return the changes to a table."""
        off, fresh, rewritten = [], [], False
        places = _relations(table)
        for relation, place in places.items():
            before, now = self.before.get(relation, {}), self.now.get(relation, {})
            fresh += [(relation, name, mark) for name, mark in now.items() if before.get(name) != mark]
            off += [
                f"{name}{place}"
                for name, mark in now.items()
                if name != VALUES and _is_other_version(before.get(name), mark)
            ]
            rewritten |= _is_rewritten(before.get(VALUES), now.get(VALUES))
        return MarkChanges(altered_triggers=tuple(off), has_rewritten_values=rewritten, new_marks=tuple(fresh))

    def has_stored_values(self, table: PostgresTable) -> bool:
        """Return whether marks for the values of a table and of all its partitions were stored before."""
        return all(VALUES in self.before.get(relation, {}) for relation in _relations(table))

    def delete_others(self, connection: PostgresConnection) -> None:
        """Delete the marks of relations that are no longer captured: a returning one has missed changes."""
        if others := [relation for relation in self.before if relation not in self.now]:
            connection.run(statement("triggers", "seen_others"), {"relations": others})


def store_marks(connection: PostgresConnection, fresh: Seq[tuple[int, str, str]]) -> None:
    """Store marks in the caller's transaction."""
    if fresh:
        relations, named, marks = (list(column) for column in zip(*fresh, strict=True))
        connection.run(statement("triggers", "saw"), {"relations": relations, "names": named, "marks": marks})


def store_present_marks(connection: PostgresConnection, table_id: int) -> None:
    """Store the present marks of a table's triggers: its new fill reads everything that they have missed."""
    if connection.row(statement("triggers", "seen_exists"))[0]:
        connection.run(statement("triggers", "seen_again", number=f"{table_id:05}"))


def _relations(table: PostgresTable) -> dict[int, str]:
    """Return the relations of a table by oid, each with its place for messages."""
    return {table.oid: ""} | {leaf.oid: f" on {leaf.namespace}.{leaf.name}" for leaf in table.leaves}


def _is_other_version(before: str | None, now: str) -> bool:
    """Return whether a trigger has another row version. With another function it comes from a restored database."""
    if before is None or before == now:
        return False
    return before.split(" ")[0] == now.split(" ")[0]


def _is_rewritten(before: str | None, now: str | None) -> bool:
    """Return whether values were recomputed.

    That is so if a column was altered and the rows are in another file, or if an expression was altered. VACUUM FULL
    and CLUSTER alter no column, and SET STATISTICS creates no other file.
    """
    if before is None or now is None or before == now:
        return False
    old, new = json.loads(before), json.loads(now)
    altered = _has_differences(old, new, "columns") and old["file"] != new["file"]
    return altered or _has_differences(old, new, "expressions")


def _has_differences(old: Mapping[str, Any], new: Mapping[str, Any], what: str) -> bool:
    """Return whether an entry in both differs. Added and dropped columns make a new version anyway."""
    return any(new[what].get(number, value) != value for number, value in old[what].items())
