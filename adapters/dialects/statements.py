"""SQL in separate files that a DBA can read: named blocks, headed `-- name --`. Every dialect has its own loader.

The parts of a block are SQL that the caller has quoted; a missing part raises KeyError.
"""

from __future__ import annotations

import re
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

_PART = re.compile(r"\{(\w+)\}")
_HEAD = re.compile(r"^-- (\w+) --$", re.MULTILINE)
#: The end of a PL/SQL block. Its semicolon belongs to the block; that of a statement does not.
BLOCK_END = "END;"


class Statements:
    """The .sql files of one package."""

    def __init__(self, package: str, *, block_end: str = "") -> None:
        """`block_end`: the end of a text that keeps its last semicolon."""
        self._package = package
        self._block_end = block_end
        self._read: dict[str, dict[str, str]] = {}

    def __call__(self, file: str, block: str, /, **parts: str) -> str:
        """Return a block with its {parts} filled in, in one pass."""
        return _PART.sub(lambda found: parts[found[1]], self.blocks(file)[block])

    @cached_property
    def _folder(self) -> Traversable:
        return files(self._package)

    def blocks(self, file: str) -> dict[str, str]:
        """Return every block of a file by its name, without the comments."""
        if file not in self._read:
            parts = _HEAD.split((self._folder / f"{file}.sql").read_text(encoding="utf-8"))
            named = zip(parts[1::2], parts[2::2], strict=True)
            self._read[file] = {name: self._strip_comments(body) for name, body in named}
        return self._read[file]

    def _strip_comments(self, body: str) -> str:
        """Drop the comments, which the database would otherwise receive and store with every statement."""
        lines = (line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--"))
        text = "\n".join(lines)
        return text if self._block_end and text.endswith(self._block_end) else text.removesuffix(";")
