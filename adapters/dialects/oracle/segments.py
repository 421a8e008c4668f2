"""Whether rows of a captured table may have come or gone without any trigger: by the numbers of its segments.

TRUNCATE, of a partition or a cluster too, EXCHANGE PARTITION and DROP PARTITION give a segment another number or take
it away, whoever does it and whether or not the DDL trigger sees it. ALTER TABLE ... MOVE does so too: it looks alike. A
partition that is added brings no rows.

VENUS's triggers are looked at in the same way, by the time at which each was last altered: one that was disabled and
enabled again between two looks is as it should be, and has missed what was written meanwhile. So is the definition of
the table itself (seen.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.tables import Table

TABLE = "VENUS_SEGMENT"
#: In place of a partition's name: the table itself.
WHOLE = "-"
#: What the name of a trigger stands behind; no partition's name has a blank unless somebody quoted it.
TRIGGER = "TRIGGER "
#: In place of a trigger's name: the table's definition. Older versions would take anything else for a partition.
DEFINITION = f"{TRIGGER}-"

Marks = Mapping[str, str]
NOTHING: Marks = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The numbers as they are, by (owner, table), and as they were when they were looked at last, by table_id."""

    now: Mapping[tuple[str, str], Marks]
    stored: Mapping[int, Marks]

    def reason(self, table_id: int, place: tuple[str, str]) -> str:
        """Say why rows of a table may have been missed; empty if none were."""
        return replaced(self.stored.get(table_id, NOTHING), self.now.get(place, NOTHING))

    def altered(self, table_id: int, place: tuple[str, str]) -> str:
        """Say which triggers of a table were altered since the last look; empty if none was."""
        return altered(self.stored.get(table_id, NOTHING), self.now.get(place, NOTHING))


def replaced(before: Marks, now: Marks) -> str:
    """Compare the segments of one table; nothing is said of one that was never looked at."""
    changed = sorted(n for n, mark in before.items() if not n.startswith(TRIGGER) and now.get(n) != mark)
    if not changed:
        return ""
    what = "the table's segment" if changed[0] == WHOLE else f"partition {changed[0]}"
    more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    how = "is another one now" if changed[0] in now else "is gone"
    return (
        f"{what}{more} {how}: TRUNCATE, EXCHANGE or DROP PARTITION that nobody noted (or MOVE, which looks alike):"
        " rows may be gone or new that no trigger has noted, read the table again"
    )


def altered(before: Marks, now: Marks) -> str:
    """Compare the triggers of one table; one that is gone is noticed by the triggers themselves (refresh.py)."""
    known = {n: mark for n, mark in before.items() if n.startswith(TRIGGER) and n != DEFINITION}
    changed = sorted(n for n, mark in known.items() if now.get(n, mark) != mark)
    if not changed:
        return ""
    names = ", ".join(name.removeprefix(TRIGGER) for name in changed)
    return (
        f"{names} altered: disabled and enabled again, or compiled (which looks alike): changes may have been missed"
        " in between, read the table again"
    )


def extended(before: Marks, now: Marks) -> bool:
    """Say whether a partition was added."""
    return any(not name.startswith(TRIGGER) and name not in before for name in now)


def read(session: Session) -> Segments:
    """Look at the dictionary and at what was stored."""
    now: dict[tuple[str, str], dict[str, str]] = {}
    for owner, table, part, number in session.rows(statement("segments", "now")):
        now.setdefault((str(owner), str(table)), {})[str(part or WHOLE)] = str(number)
    stored: dict[int, dict[str, str]] = {}
    for table_id, part, mark in session.rows(statement("segments", "stored")):
        stored.setdefault(int(table_id), {})[str(part)] = str(mark)
    return Segments(now=now, stored=stored)


def store(session: Session, table_id: int, marks: Marks) -> None:
    """Remember the segments of a table."""
    forget(session, table_id)
    rows: Seq[tuple[int, str, str]] = [(table_id, part, mark) for part, mark in marks.items()]
    if rows:
        session.many(statement("segments", "store"), rows)


def forget(session: Session, table_id: int) -> None:
    """Look at a table again, its segments and its triggers."""
    session.run(statement("segments", "forget"), {"table_id": table_id})


def forget_emptied(session: Session, table_id: int) -> None:
    """Look at the segments of a table again: what has happened to them is known. Its triggers are not meant."""
    session.run(statement("segments", "forget_emptied"), {"table_id": table_id})


def definition_mark(table: Table, specified: str) -> str:
    """Return what to keep of a definition: when it was specified, and a digest of the columns in their order.

    A column that was added stands behind all others, whatever its name is.
    """
    lines = []
    for name, reading in table.readings.items():
        d = reading.declared
        lines.append(f"{name} {d.data_type} {d.length} {d.precision} {d.scale} {d.in_bytes}")
    return f"{specified} {hashlib.blake2b(chr(10).join(lines).encode(), digest_size=8).hexdigest()}"


def has_altered_values(before: str, now: str, *, explained: bool) -> bool:
    """Say whether values may be others: columns are declared in another way, or nothing else explains the new time."""
    if not before or before == now:
        return False
    return _columns_digest(before) != _columns_digest(now) or not explained


def _columns_digest(mark: str) -> str:
    return mark.rpartition(" ")[2]
