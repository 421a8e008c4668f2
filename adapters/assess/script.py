"""The way out of what is refused: a script for the database's own client, and lines for the configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from venus.model import Finding

#: What the check offers is a statement if it begins like one and ends like one.
_STATEMENT = re.compile(r"^(?:(?:GRANT|ALTER|CREATE|SET|EXEC|ANALYZE)\b[^;]*;\s*)+$", re.DOTALL)
#: It leaves something for people to fill in.
_OPEN = re.compile(r"\.\.\.")


def script(findings: Seq[Finding], *, transactional: bool) -> str:
    """Return the statements for everything that blocks; what none cures is a remark. Empty if nothing blocks."""
    blocking = [finding for finding in findings if finding.blocks]
    if not blocking:
        return ""
    head = "-- VENUS assessment: what blocks, and how to fix it. Read it before you run it."
    return "\n\n".join([head, *_paragraphs(blocking, transactional=transactional)]) + "\n"


def _paragraphs(findings: Iterable[Finding], *, transactional: bool) -> Iterator[str]:
    for finding in findings:
        said = f"-- {_line(finding.where)}: {_line(finding.message)}"
        statements = "".join(f"{statement.rstrip().rstrip(';')};\n" for statement in finding.script).rstrip()
        if statements:
            ways = f"-- or: {_line(finding.remedy)}" if _offers_more(finding) else ""
            body = f"BEGIN;\n{statements}\nCOMMIT;" if transactional else statements
            yield "\n".join(filter(None, (said, body, ways)))
        elif is_statement(finding.remedy):
            yield f"{said}\n{finding.remedy}"
        else:
            yield f"{said}\n-- fix: {_line(finding.remedy or 'exclude the table')}"


def _offers_more(finding: Finding) -> bool:
    return bool(finding.remedy) and finding.remedy not in finding.script


def is_statement(text: str) -> bool:
    """Whether a remedy can be run as it stands."""
    return bool(_STATEMENT.match(text)) and not _OPEN.search(text)


def exclusion(tables: Seq[str]) -> str:
    """Return the lines of venus.toml that leave these tables out; empty if there are none."""
    if not tables:
        return ""
    names = ",\n".join(f'    "{_quoted(name)}"' for name in tables)
    return f"[source]\nexclude = [\n{names},\n]\n"


def _quoted(name: str) -> str:
    """Return a name for a TOML string."""
    return "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in name)


def _line(text: str) -> str:
    return " ".join(text.splitlines())
