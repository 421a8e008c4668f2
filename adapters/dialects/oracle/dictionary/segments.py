"""Detection of changes that fire no trigger, by segment numbers and by times of alteration.

TRUNCATE (also of a partition or a cluster), EXCHANGE PARTITION and DROP PARTITION renumber or remove a segment, for
every user and even if the DDL trigger does not see them. ALTER TABLE ... MOVE looks the same. A new partition is
harmless, because it has no rows.

VENUS also compares the time at which each of its triggers was last altered. A trigger that was disabled and enabled
again between two comparisons looks right, but has missed the changes in between. Oracle also sets a trigger's time
when it compiles the trigger: an INVALID one before it fires, all triggers after an upgrade. No change is missed while
a trigger is compiled.

The definition of a table is compared too, because no trigger fires for a column that is dropped and added again, or
for two columns that exchange their names, and the table's segment stays. The order of the columns and the time of the
last specification reveal such a change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.oracle.dictionary.tables import OracleTable
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.sql import statement

TABLE = "VENUS_SEGMENT"
#: The entry of the table itself, in place of a partition's name.
WHOLE = "-"
#: The prefix of a trigger's name; the name of a partition contains a blank only if it was quoted.
TRIGGER = "TRIGGER "
#: The entry of the table's definition, in place of a trigger's name. Older versions treat other names as partitions.
DEFINITION = f"{TRIGGER}-"
#: The entry of the server's release at the last comparison.
RELEASE = f"{TRIGGER}+"
#: The end of the mark of a trigger that Oracle compiles before it fires next.
INVALID = " INVALID"

Marks = Mapping[str, str]
NOTHING: Marks = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The present and stored marks of tables: segment numbers, and times of changes to triggers and definitions."""

    now: Mapping[tuple[str, str], Marks]
    stored: Mapping[int, Marks]
    #: The release of the server.
    release: str = ""

    def missed_rows_reason(self, table_id: int, place: tuple[str, str]) -> str:
        """Return why rows of a table may have been missed; empty if none were."""
        return describe_replaced_segments(self.stored.get(table_id, NOTHING), self.now.get(place, NOTHING))

    def altered_triggers(self, table_id: int, place: tuple[str, str]) -> str:
        """Return a text that names the triggers altered since the last comparison; empty if none was."""
        before = self.stored.get(table_id, NOTHING)
        if before.get(RELEASE, self.release) != self.release:
            return ""  # an upgrade of the server has compiled all triggers
        return describe_altered_triggers(before, self.now.get(place, NOTHING))


def describe_replaced_segments(before: Marks, now: Marks) -> str:
    """Return a text that names the replaced or removed segments of a table; empty without stored marks."""
    changed = sorted(n for n, mark in before.items() if not n.startswith(TRIGGER) and now.get(n) != mark)
    if not changed:
        return ""
    what = "the table's segment" if changed[0] == WHOLE else f"partition {changed[0]}"
    more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    how = "was replaced" if changed[0] in now else "is gone"
    return (
        f"{what}{more} {how}: TRUNCATE, EXCHANGE or DROP PARTITION without a record (or MOVE, which looks alike):"
        " rows may have vanished or appeared without a trigger, read the table again"
    )


def describe_altered_triggers(before: Marks, now: Marks) -> str:
    """Return a text that names the altered triggers of a table; schema_changes.py detects missing triggers."""
    known = {n: m for n, m in before.items() if n.startswith(TRIGGER) and n not in (DEFINITION, RELEASE)}
    changed = sorted(
        n for n, m in known.items() if not m.endswith(INVALID) and now.get(n, m).removesuffix(INVALID) != m
    )
    if not changed:
        return ""
    names = ", ".join(name.removeprefix(TRIGGER) for name in changed)
    return (
        f"{names} altered: disabled and enabled again, or compiled (which looks alike): changes may have been missed"
        " in between, read the table again"
    )


def has_new_partition(before: Marks, now: Marks) -> bool:
    """Whether a partition was added since the marks `before` were stored."""
    return any(not name.startswith(TRIGGER) and name not in before for name in now)


def read_segments(session: OracleSession, release: str) -> Segments:
    """Read the present marks from the dictionary, and the stored ones."""
    now: dict[tuple[str, str], dict[str, str]] = {}
    for owner, table, part, number in session.fetch_rows(statement("segments", "now")):
        now.setdefault((str(owner), str(table)), {})[str(part or WHOLE)] = str(number)
    stored: dict[int, dict[str, str]] = {}
    for table_id, part, mark in session.fetch_rows(statement("segments", "stored")):
        stored.setdefault(int(table_id), {})[str(part)] = str(mark)
    return Segments(now=now, stored=stored, release=release)


def store_marks(session: OracleSession, table_id: int, marks: Marks) -> None:
    """Store the marks of a table, in place of earlier ones."""
    forget_marks(session, table_id)
    rows: Seq[tuple[int, str, str]] = [(table_id, part, mark) for part, mark in marks.items()]
    if rows:
        session.run_many(statement("segments", "store"), rows)


def forget_marks(session: OracleSession, table_id: int) -> None:
    """Delete all stored marks of a table."""
    session.run(statement("segments", "forget"), {"table_id": table_id})


def forget_segment_marks(session: OracleSession, table_id: int) -> None:
    """Delete the stored segments of a table, after a TRUNCATE that the cut carries. The marks of triggers stay."""
    session.run(statement("segments", "forget_emptied"), {"table_id": table_id})


def definition_mark(table: OracleTable, specified: str) -> str:
    """Return the mark of a definition: the time of its specification, and a digest of the columns in their order.

    An added column follows all others, regardless of its name.
    """
    lines = []
    for name, reading in table.readings.items():
        d = reading.declared
        lines.append(f"{name} {d.data_type} {d.length} {d.precision} {d.scale} {d.in_bytes}")
    return f"{specified} {hashlib.blake2b(chr(10).join(lines).encode(), digest_size=8).hexdigest()}"


def has_altered_values(before: str, now: str, *, explained: bool) -> bool:
    """Whether values may have changed between two marks of a definition: other columns, or an unexplained time."""
    if not before or before == now:
        return False
    return _columns_digest(before) != _columns_digest(now) or not explained


def _columns_digest(mark: str) -> str:
    return mark.rpartition(" ")[2]
