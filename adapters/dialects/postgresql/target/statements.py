"""The SQL of the target side, kept in .sql files that a DBA can read: named blocks, headed `-- name --`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_HEAD = re.compile(r"^-- (\w+) --$", re.MULTILINE)


@cache
def _blocks(file: str) -> dict[str, str]:
    text = (files(__package__) / f"{file}.sql").read_text(encoding="utf-8")
    parts = _HEAD.split(text)
    return {name: _plain(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _plain(body: str) -> str:
    """Drop the remarks: they are for the reader, and would travel with every statement."""
    lines = (line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    return "\n".join(lines).rstrip(";")


def statement(file: str, name: str, **names: str) -> str:
    """Return a block with its {names} filled in; what goes in is quoted already."""
    text = _blocks(file)[name]
    for key, value in names.items():
        text = text.replace("{" + key + "}", value)
    return text
