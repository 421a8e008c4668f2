"""The cursor of a fill: the last key that was read, and the key at which the fill ends.

The end is the greatest key that the first chunk's snapshot shows. The log contains all rows that are written behind it
later, so the fill skips them. Otherwise it would never end where the application appends faster than chunks are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FillCursor:
    """A position between two keys, each as the dialect writes it in JSON: one element for each column."""

    after: list[Any]
    end: list[Any] | None = None  # None: unknown, as in a fill that an older version began

    @classmethod
    def parse(cls, cursor: bytes) -> FillCursor:
        """Parse a cursor; an older version stored the key alone."""
        found = json.loads(cursor)
        return cls(found) if isinstance(found, list) else cls(found["after"], found["end"])

    @property
    def cursor(self) -> bytes:
        """The position as the registry stores it."""
        return json.dumps({"after": self.after, "end": self.end}, ensure_ascii=False).encode()
