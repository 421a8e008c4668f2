"""The SQL of the source side, kept in .sql files that a DBA can read: named blocks, headed `-- name --`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_HEAD = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")


@cache
def _blocks(file: str) -> dict[str, str]:
    text = (files(__package__) / f"{file}.sql").read_text(encoding="utf-8")
    parts = _HEAD.split(text)
    return {name: _plain(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _plain(body: str) -> str:
    """Drop the remarks: they are for the reader, and would travel with every statement."""
    lines = (line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    return "\n".join(lines).rstrip(";")


def statement(file: str, name: str, /, **parts: str) -> str:
    """Return a block with its {parts} filled in, in one pass: what goes in is quoted already."""
    return _PLACE.sub(lambda match: parts[match[1]], _blocks(file)[name])
