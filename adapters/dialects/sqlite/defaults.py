"""Column defaults that mean the same in every database; all others stay behind, the rows bring their values anyway."""

from __future__ import annotations

import re

from venus.model import Kind, LogicalType

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_TEXT = re.compile(r"'(?:[^']|'')*'")
_NUMERIC = (Kind.INT, Kind.DECIMAL, Kind.FLOAT)
_TEXTUAL = (Kind.TEXT, Kind.CHAR)
#: SQLite's clock is that of UTC; elsewhere a session has a time zone.
_NOW = {
    (Kind.TIMESTAMP, "CURRENT_TIMESTAMP"): "(CURRENT_TIMESTAMP AT TIME ZONE 'UTC')",
    (Kind.TIMESTAMPTZ, "CURRENT_TIMESTAMP"): "CURRENT_TIMESTAMP",
    (Kind.DATE, "CURRENT_DATE"): "CAST(CURRENT_TIMESTAMP AT TIME ZONE 'UTC' AS date)",
}
_TRUE_FALSE = {"0": "false", "1": "true", "FALSE": "false", "TRUE": "true"}


def portable_default(default: str | None, logical: LogicalType) -> str:
    """Return the default as standard SQL, or nothing."""
    text = (default or "").strip()
    if logical.kind in _NUMERIC:
        return text if _NUMBER.fullmatch(text) else ""
    if logical.kind in _TEXTUAL:
        return text if _TEXT.fullmatch(text) else ""
    if logical.kind is Kind.BOOL:
        return _TRUE_FALSE.get(text.upper(), "")
    return _NOW.get((logical.kind, text.upper()), "")
