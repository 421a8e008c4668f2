"""Somebody else's session at a database, as a sentence says it: who, since when, at what; no values. Pure."""

from __future__ import annotations

import re

#: How much of a statement is shown.
_QUERY_CHARS = 80
#: Texts and numbers: a row's values are nobody's business here.
_VALUES = re.compile(r"\$(\w*)\$.*?\$\1\$|'(?:[^'\\]|''|\\.)*(?:'|$)|(?<![\w\"`])\d[\d.]*", re.DOTALL)


def session_text(number: int | str, *facts: str, query: str = "") -> str:
    """Name a session by its number and what else is known of it."""
    shown = without_values(query)
    return f"session {number} ({', '.join(filter(None, facts))}{f': {shown}' if shown else ''})"


def without_values(query: str) -> str:
    """Return the beginning of a statement, its values left out."""
    text = " ".join(_VALUES.sub("?", query).split())
    return text if len(text) <= _QUERY_CHARS else f"{text[:_QUERY_CHARS]}..."
