"""Reads a script as SQL*Plus does, according to its manual ("SQL*Plus User's Guide and Reference").

A statement ends with a semicolon at the end of a line, a PL/SQL block with a slash alone on a line; each of SQL*Plus's
own commands is one line. Input that SQL*Plus would refuse is an AssertionError: a line that is too long, an undeclared
bind variable, a substitution variable, a hyphen that continues a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Lowest limit of all versions: SP2-0027 in 11.2 and 12.1.
LINE_CHARS_MAX = 2499
_OWN = re.compile(r"(?:SET|WHENEVER|SPOOL|PROMPT|EXIT|SHOW)\b", re.IGNORECASE)
_BLOCK = re.compile(
    r"(?:DECLARE|BEGIN|CREATE (?:OR REPLACE )?(?:NONEDITIONABLE )?(?:TRIGGER|PACKAGE|PROCEDURE|FUNCTION))\b",
    re.IGNORECASE,
)
_LITERAL = re.compile(r"q'\[.*?\]'|'(?:[^']|'')*'|\"[^\"]*\"", re.DOTALL)
_BIND = re.compile(r"(?<![:\w]):(?!NEW\b|OLD\b|=)\w+", re.IGNORECASE)


@dataclass(slots=True)
class Script:
    """A script as SQL*Plus would execute it."""

    commands: list[str] = field(default_factory=list)  # SQL*Plus's own commands
    statements: list[str] = field(default_factory=list)  # statements for the server


def read(text: str) -> Script:
    """Read a script."""
    found, lines = Script(), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number}: {line[:80]}"
        assert len(line) <= LINE_CHARS_MAX, where
        assert line.isprintable(), where
        if not lines and (not line.strip() or line.lstrip().startswith("--")):
            continue
        if not lines and _OWN.match(line) and not line.startswith("SET TRANSACTION"):
            found.commands.append(line.rstrip(";"))
            continue
        assert line.strip() or "SET SQLBLANKLINES ON" in found.commands, f"a blank line ends a statement: {where}"
        assert not line.rstrip().endswith("-"), f"a hyphen continues the line: {where}"
        lines.append(line)
        _end(found, lines, where)
    assert not lines, f"the last statement has no end: {lines[0]}"
    return found


def _end(found: Script, lines: list[str], where: str) -> None:
    """Add a statement to the script if this line ends it."""
    is_block = bool(_BLOCK.match(lines[0]))
    if is_block and lines[-1].strip() == "/":
        statement = "\n".join(lines[:-1])
    elif not is_block and lines[-1].rstrip().endswith(";"):
        statement = "\n".join(lines).rstrip().removesuffix(";")
    else:
        return
    assert "SET DEFINE OFF" in found.commands or "&" not in statement, f"a substitution variable: {where}"
    assert not _BIND.search(_LITERAL.sub("''", statement)), f"a bind variable: {statement}"
    found.statements.append(statement)
    lines.clear()
