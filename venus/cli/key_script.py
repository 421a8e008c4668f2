"""`venus check --key-script`: the statements that add missing keys to tables, as a file for a DBA. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from venus.model import Finding, count_phrase


def build_key_script(findings: Sequence[Finding], *, transactional: bool) -> str:
    """Build the script: one transaction for each table, if the database has transactional DDL."""
    offered = [f for f in findings if f.script]
    tables = count_phrase(len(offered), "table")
    parts = [f"-- keys for {tables}, by `venus check --key-script`; each is locked and rewritten in turn"]
    for finding in offered:
        statements = "".join(f"{statement};\n" for statement in finding.script)
        parts.append(
            f"-- {_to_one_line(finding.where)}\n"
            + (f"BEGIN;\n{statements}COMMIT;" if transactional else statements.rstrip())
        )
    others = [f for f in findings if f.blocks and not f.script]
    if others:
        remarks = (f"--   {_to_one_line(f.where)}: {_to_one_line(f.message)}; {_to_one_line(f.remedy)}" for f in others)
        parts.append("\n".join(["-- what else blocks, and nothing here fixes:", *remarks]))
    return "\n\n".join(parts) + "\n"


def _to_one_line(text: str) -> str:
    """Return a remark as one line: a line break in the name of a table would end the comment."""
    return " ".join(text.splitlines())
