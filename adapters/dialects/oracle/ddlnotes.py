"""What the DDL trigger's notes mean: which statements leave rows, values and triggers as they are. Pure.

What is not certainly harmless counts as harmful: the table is then read again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Owner and name of a table.
Place = tuple[str, str]

#: More of a statement is not noted (own.sql): what stands behind it is not known.
TEXT_BYTES = 1500

_IGNORED = re.compile(r"/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'", re.DOTALL)
_HEAD = re.compile(
    r'\s*ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:"[^"]+"|[\w$#]+)(?:\s*\.\s*(?:"[^"]+"|[\w$#]+))?\s*(.*)', re.DOTALL
)
#: Rows go or come without a trigger. INCLUDING ROWS: what a maintenance operation does not include is deleted.
_HARMFUL = re.compile(r"\b(?:DROP|TRUNCATE|EXCHANGE)\s+(?:SUB)?PARTITIONS?\b|\bINCLUDING\s+ROWS\b")
#: Whatever stands behind it, no row is touched by it.
_ADDS = re.compile(r"ADD\b")
_HARMLESS = re.compile(
    r"MODIFY\b|RENAME\b|MOVE\b|SPLIT\b|MERGE\b|COALESCE\b|SET\b|ENABLE\b|DISABLE\b|SHRINK\b|ALLOCATE\b|DEALLOCATE\b"
    r"|(?:NO)?(?:PARALLEL|LOGGING|CACHE|COMPRESS|MONITORING)\b|ROW\b|INITRANS\b|PCTFREE\b|PCTUSED\b|STORAGE\b|READ\b"
    r"|DROP\s*(?:\(|(?:COLUMN|CONSTRAINT|PRIMARY|UNIQUE|UNUSED|SUPPLEMENTAL)\b)"
    r"|(?:NO\s+)?(?:INMEMORY|FLASHBACK\s+ARCHIVE)\b|RESULT_CACHE\b"
)
#: Rows go into other segments, or segments get other names.
_REPLACES = re.compile(
    r"MOVE\b|SPLIT\b|MERGE\b|COALESCE\b|(?:ADD|RENAME)\s+(?:SUB)?PARTITION\b|MODIFY\b.*\b(?:SUB)?PARTITION\b", re.DOTALL
)
#: A column that is dropped can come back with other values under its name. No other clause can stand beside these.
_DROPS_VALUES = re.compile(r"DROP\s*(?:\(|COLUMN\b)|SET\s+UNUSED\b")
_SILENCES = re.compile(r"\bDISABLE\s+ALL\s+TRIGGERS\b")


def keeps_rows(text: str) -> bool:
    """Whether an ALTER TABLE with this text certainly has left every row in its table, and added none."""
    clauses = _clauses(text)
    if _HARMFUL.search(clauses):
        return False
    if _ADDS.match(clauses):
        return True
    return bool(_HARMLESS.match(clauses)) and len(text.encode()) < TEXT_BYTES


def keeps_values(text: str) -> bool:
    """Whether an ALTER TABLE with this text certainly has left the values of columns that are declared as before."""
    return keeps_rows(text) and not _DROPS_VALUES.match(_clauses(text))


def replaces_segments(text: str) -> bool:
    """Whether an ALTER TABLE with this text gives the same rows other segments."""
    return keeps_rows(text) and bool(_REPLACES.match(_clauses(text)))


def silences(text: str) -> bool:
    """Whether an ALTER TABLE with this text has switched the triggers off."""
    return bool(_SILENCES.search(_clauses(text)))


def _clauses(text: str) -> str:
    """Return what stands behind the table's name, without comments and literals; empty if it is no ALTER TABLE."""
    found = _HEAD.fullmatch(_IGNORED.sub(" ", text.replace("\x00", "").upper()))
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Notes:
    """What was noted, by table."""

    altered: Mapping[Place, list[str]]  # by statements with these texts
    truncated: frozenset[Place]

    @classmethod
    def of(cls, noted: Iterable[tuple[Any, ...]]) -> Notes:
        """Read the rows of the notes."""
        altered: dict[Place, list[str]] = defaultdict(list)
        truncated = set()
        for _, event, owner, name, text in noted:
            if event == "ALTER":
                altered[owner, name].append(text or "")
            elif event == "TRUNCATE":
                truncated.add((owner, name))
        return cls(altered, frozenset(truncated))

    def explain_segments(self, place: Place) -> bool:
        """Whether a table has other segments because of what was noted, which is followed."""
        return place in self.truncated or any(map(replaces_segments, self.altered.get(place, ())))

    def explain_definition(self, place: Place) -> bool:
        """Whether a table has another definition because of what was noted, which has changed no value."""
        return bool(self.altered.get(place)) and not self.lose_values(place)

    def lose_rows(self, place: Place) -> bool:
        """Whether rows of a partitioned table may have come or gone."""
        return not all(map(keeps_rows, self.altered.get(place, ())))

    def lose_values(self, place: Place) -> bool:
        """Whether values of a table may be others."""
        return not all(map(keeps_values, self.altered.get(place, ())))

    def silenced(self, place: Place) -> bool:
        """Whether a table's triggers were off."""
        return any(map(silences, self.altered.get(place, ())))
