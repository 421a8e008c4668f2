"""What the DDL trigger's notes mean: which statements leave the rows of a partitioned table as they are. Pure.

What is not certainly harmless counts as harmful: the table is then read again.
"""

from __future__ import annotations

import re

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
)


def keeps_rows(text: str) -> bool:
    """Whether an ALTER TABLE with this text certainly has left every row in its table, and added none."""
    found = _HEAD.fullmatch(_IGNORED.sub(" ", text.replace("\x00", "").upper()))
    if found is None or _HARMFUL.search(found[1]):
        return False
    if _ADDS.match(found[1]):
        return True
    return bool(_HARMLESS.match(found[1])) and len(text.encode()) < TEXT_BYTES
