"""The meaning of the DDL that the DDL trigger recorded: which statements keep rows, values and triggers. Pure.

A statement that is not certainly harmless counts as harmful: VENUS then reads the table again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Owner and name of a table.
TableName = tuple[str, str]

#: The trigger records no more of a statement (own.sql); the text behind it is unknown.
TEXT_BYTES = 1500

_IGNORED = re.compile(r"/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'", re.DOTALL)
_HEAD = re.compile(
    r'\s*ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:"[^"]+"|[\w$#]+)(?:\s*\.\s*(?:"[^"]+"|[\w$#]+))?\s*(.*)', re.DOTALL
)
#: Rows vanish or appear without a trigger. INCLUDING ROWS deletes the rows that a maintenance operation excludes.
_HARMFUL = re.compile(r"\b(?:DROP|TRUNCATE|EXCHANGE)\s+(?:SUB)?PARTITIONS?\b|\bINCLUDING\s+ROWS\b")
#: This clause touches no row, regardless of the text behind it.
_ADDS = re.compile(r"ADD\b")
_HARMLESS = re.compile(
    r"MODIFY\b|RENAME\b|MOVE\b|SPLIT\b|MERGE\b|COALESCE\b|SET\b|ENABLE\b|DISABLE\b|SHRINK\b|ALLOCATE\b|DEALLOCATE\b"
    r"|(?:NO)?(?:PARALLEL|LOGGING|CACHE|COMPRESS|MONITORING)\b|ROW\b|INITRANS\b|PCTFREE\b|PCTUSED\b|STORAGE\b|READ\b"
    r"|DROP\s*(?:\(|(?:COLUMN|CONSTRAINT|PRIMARY|UNIQUE|UNUSED|SUPPLEMENTAL)\b)"
    r"|(?:NO\s+)?(?:INMEMORY|FLASHBACK\s+ARCHIVE)\b|RESULT_CACHE\b"
)
#: Rows move to other segments, or segments get other names.
_REPLACES = re.compile(
    r"MOVE\b|SPLIT\b|MERGE\b|COALESCE\b|(?:ADD|RENAME)\s+(?:SUB)?PARTITION\b|MODIFY\b.*\b(?:SUB)?PARTITION\b", re.DOTALL
)
#: A dropped column can be added again with other values. These clauses cannot be combined with others.
_DROPS_VALUES = re.compile(r"DROP\s*(?:\(|COLUMN\b)|SET\s+UNUSED\b")
_SILENCES = re.compile(r"\bDISABLE\s+ALL\s+TRIGGERS\b")


def keeps_rows(text: str) -> bool:
    """Whether an ALTER TABLE with this text certainly kept every row in its table and added none."""
    clauses = _clauses(text)
    if _HARMFUL.search(clauses):
        return False
    if _ADDS.match(clauses):
        return True
    return bool(_HARMLESS.match(clauses)) and len(text.encode()) < TEXT_BYTES


def keeps_values(text: str) -> bool:
    """Whether an ALTER TABLE with this text certainly kept the values of columns with an unchanged declaration."""
    return keeps_rows(text) and not _DROPS_VALUES.match(_clauses(text))


def replaces_segments(text: str) -> bool:
    """Whether an ALTER TABLE with this text moves the same rows to other segments."""
    return keeps_rows(text) and bool(_REPLACES.match(_clauses(text)))


def disables_triggers(text: str) -> bool:
    """Whether an ALTER TABLE with this text has disabled the triggers."""
    return bool(_SILENCES.search(_clauses(text)))


def _clauses(text: str) -> str:
    """Return the text behind the table's name, without comments and literals; empty if it is no ALTER TABLE."""
    found = _HEAD.fullmatch(_IGNORED.sub(" ", text.replace("\x00", "").upper()))
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class DdlRecords:
    """The recorded DDL, by table."""

    altered: Mapping[TableName, list[str]]  # by statements with these texts
    truncated: frozenset[TableName]

    @classmethod
    def from_rows(cls, noted: Iterable[tuple[Any, ...]]) -> DdlRecords:
        """Parse the rows of VENUS_DDL."""
        altered: dict[TableName, list[str]] = defaultdict(list)
        truncated = set()
        for _, event, owner, name, text in noted:
            if event == "ALTER":
                altered[owner, name].append(text or "")
            elif event == "TRUNCATE":
                truncated.add((owner, name))
        return cls(altered, frozenset(truncated))

    def explains_segments(self, place: TableName) -> bool:
        """Whether recorded statements explain the new segments of a table; VENUS handles those statements."""
        return place in self.truncated or any(map(replaces_segments, self.altered.get(place, ())))

    def explains_definition(self, place: TableName) -> bool:
        """Whether recorded statements that change no value explain the new definition of a table."""
        return bool(self.altered.get(place)) and not self.may_change_values(place)

    def may_lose_rows(self, place: TableName) -> bool:
        """Whether rows of a partitioned table may have appeared or vanished."""
        return not all(map(keeps_rows, self.altered.get(place, ())))

    def may_change_values(self, place: TableName) -> bool:
        """Whether values of a table may have changed."""
        return not all(map(keeps_values, self.altered.get(place, ())))

    def has_disabling_statement(self, place: TableName) -> bool:
        """Whether a table's triggers were disabled."""
        return any(map(disables_triggers, self.altered.get(place, ())))
