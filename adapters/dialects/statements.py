"""SQL as text: the named blocks of .sql files, the script of an installation, and statements of other sessions.

A DBA can read the .sql files. A block begins with a line `-- name --`, and every dialect has its own loader. Callers
fill the {placeholders} of a block with quoted SQL; a missing one raises KeyError. This module builds the `--dry-run`
script for databases whose clients need only semicolons. A statement of another session is shown without its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from venus.adapters.dialects.contract import InstallStep
from venus.errors import Refused
from venus.model import Finding

#: The longest part of a statement that is shown.
_QUERY_CHARS = 80
#: Texts and numbers in a statement, which may be confidential values of a row.
_VALUES = re.compile(r"\$(\w*)\$.*?\$\1\$|'(?:[^'\\]|''|\\.)*(?:'|$)|(?<![\w\"`])\d[\d.]*", re.DOTALL)


def describe_session(number: int | str, *facts: str, query: str = "") -> str:
    """Describe a session by its number and further facts."""
    shown = mask_values(query)
    return f"session {number} ({', '.join(filter(None, facts))}{f': {shown}' if shown else ''})"


def mask_values(query: str) -> str:
    """Return the beginning of a statement, with its values masked."""
    text = " ".join(_VALUES.sub("?", query).split())
    return text if len(text) <= _QUERY_CHARS else f"{text[:_QUERY_CHARS]}..."


NOTHING = "-- nothing to do\n"


def refuse_blocked(findings: Iterable[Finding]) -> None:
    """Raise Refused if any finding blocks an installation; the error names all such findings."""
    blocking = [f for f in findings if f.blocks]
    if blocking:
        lines = "; ".join(f"{f.where} {f.message}" for f in blocking)
        hint = "; ".join(dict.fromkeys(f.remedy for f in blocking if f.remedy))
        raise Refused(f"cannot install: {lines}", hint=hint)


def plain_script(steps: Seq[InstallStep], *, removal: bool) -> str:
    """Return the steps as an SQL script: each statement after its purpose; for existing objects, only the purpose."""
    open_steps = [step for step in steps if not step.exists]
    if not open_steps:
        return NOTHING
    head = f"-- VENUS, {'removal' if removal else 'installation'}: {len(open_steps)} of {len(steps)} statements\n"
    return head + "\n".join(_paragraphs(steps))


def _paragraphs(steps: Seq[InstallStep]) -> Iterator[str]:
    """Yield for each step a comment with its purpose, and its statement unless the object exists."""
    for step in steps:
        yield purpose_comment(step) + ("" if step.exists else f"{step.sql.rstrip().rstrip(';')};\n")


def purpose_comment(step: InstallStep) -> str:
    """Return the SQL comment that states the purpose of a step. Raises Refused for a name that would end the line."""
    if not (step.table + step.what).isprintable():
        shown = "".join(c if c.isprintable() else "?" for c in step.table)
        raise Refused(
            f"{shown}: its name has a control character", hint="no script can contain it: let VENUS install itself"
        )
    table = f"{step.table}: " if step.table else ""
    return f"-- {table}{step.what}{' (exists, unchanged)' if step.exists else ''}\n"


_PART = re.compile(r"\{(\w+)\}")
_HEAD = re.compile(r"^-- (\w+) --$", re.MULTILINE)
#: The end of a PL/SQL block, whose semicolon is part of the block; a statement's semicolon is not part of it.
BLOCK_END = "END;"


#: How many texts of a block are recorded, the newest ones: some blocks have another text in each cut.
_RECORDED_MAX = 64
#: Rendered statements in order, by file and block. Each inner dictionary is an ordered set of texts.
RecordedStatements = dict[tuple[str, str], dict[str, None]]


class Statements:
    """Loader of the .sql files of one package; a call renders one of their named blocks."""

    def __init__(self, package: str, *, block_end: str = "") -> None:
        """`block_end`: a statement that ends with this text keeps its last semicolon."""
        self._package = package
        self._block_end = block_end
        self._read: dict[str, dict[str, str]] = {}
        self._recorded: RecordedStatements | None = None

    def __call__(self, file: str, block: str, /, **parts: str) -> str:
        """Return a block of a file as SQL, with each {placeholder} replaced by the part of that name."""
        text = _PART.sub(lambda found: parts[found[1]], self.blocks(file)[block])
        if self._recorded is not None:
            texts = self._recorded.setdefault((file, block), {})
            texts[text] = None
            if len(texts) > _RECORDED_MAX:
                del texts[next(iter(texts))]
        return text

    @contextmanager
    def record(self) -> Iterator[RecordedStatements]:
        """Record the statements that are rendered while the context is open, for `venus prove`."""
        recorded: RecordedStatements = {}
        self._recorded = recorded
        try:
            yield recorded
        finally:
            self._recorded = None

    def names(self) -> list[tuple[str, str]]:
        """Return (file, block) for every block of the package."""
        names = sorted(file.name.removesuffix(".sql") for file in self._folder.iterdir() if file.name.endswith(".sql"))
        return [(name, block) for name in names for block in self.blocks(name)]

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
