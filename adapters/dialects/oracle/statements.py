"""The SQL of this dialect, kept in .sql files that a DBA can read: named blocks, headed `-- name --`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_PART = re.compile(r"\{(\w+)\}")
_HEAD = re.compile(r"^-- (\w+) --$", re.MULTILINE)


@cache
def _blocks(file: str) -> dict[str, str]:
    parts = _HEAD.split((files(__package__) / f"{file}.sql").read_text(encoding="utf-8"))
    return {name: _bare(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _bare(body: str) -> str:
    """Drop the remarks: they are for the reader, and would be stored with every trigger."""
    lines = (line for line in body.splitlines() if line.strip() and not line.startswith("--"))
    text = "\n".join(lines)
    # a PL/SQL block ends with its semicolon, a statement without
    return text if text.endswith("END;") else text.removesuffix(";")


def statement(file: str, block: str, /, **parts: str) -> str:
    """Return a block with its {parts} filled in; what goes in is SQL already."""
    return _PART.sub(lambda found: parts[found[1]], _blocks(file)[block])
