"""How far a fill has come, as its cursor keeps it: behind which key, and with which key it ends.

The end is the greatest key that the first chunk's snapshot shows. Whatever is written behind it later is in the log, so
no fill needs to read it; one that did would never end where the application appends faster than chunks are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """Keys as the dialect writes them in JSON, one element a column."""

    after: list[Any]
    end: list[Any] | None = None  # None: not known, as in a fill that an older version began

    @classmethod
    def read(cls, cursor: bytes) -> Place:
        """Read a cursor; an older version's is the key alone."""
        found = json.loads(cursor)
        return cls(found) if isinstance(found, list) else cls(found["after"], found["end"])

    @property
    def cursor(self) -> bytes:
        """Return it as the registry stores it."""
        return json.dumps({"after": self.after, "end": self.end}, ensure_ascii=False).encode()
