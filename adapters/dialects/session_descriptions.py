"""The description of another session at a database, without the values of its statement. Pure."""

from __future__ import annotations

import re

#: The longest part of a statement that is shown.
_QUERY_CHARS = 80
#: Texts and numbers, which may be confidential values of a row.
_VALUES = re.compile(r"\$(\w*)\$.*?\$\1\$|'(?:[^'\\]|''|\\.)*(?:'|$)|(?<![\w\"`])\d[\d.]*", re.DOTALL)


def describe_session(number: int | str, *facts: str, query: str = "") -> str:
    """Describe a session by its number and further facts."""
    shown = mask_values(query)
    return f"session {number} ({', '.join(filter(None, facts))}{f': {shown}' if shown else ''})"


def mask_values(query: str) -> str:
    """Return the beginning of a statement, with its values masked."""
    text = " ".join(_VALUES.sub("?", query).split())
    return text if len(text) <= _QUERY_CHARS else f"{text[:_QUERY_CHARS]}..."
