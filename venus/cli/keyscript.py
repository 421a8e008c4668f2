"""`venus check --key-script`: the statements that give every table a key that has none, as a file for a DBA. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from venus.model import Finding, counted


def key_script(findings: Sequence[Finding], *, transactional: bool) -> str:
    """Return the script: one transaction a table, where the database has DDL in transactions."""
    offered = [f for f in findings if f.script]
    tables = counted(len(offered), "table")
    parts = [f"-- keys for {tables}, by `venus check --key-script`; each is locked and rewritten in turn"]
    for finding in offered:
        statements = "".join(f"{statement};\n" for statement in finding.script)
        parts.append(
            f"-- {_line(finding.where)}\n" + (f"BEGIN;\n{statements}COMMIT;" if transactional else statements.rstrip())
        )
    others = [f for f in findings if f.blocks and not f.script]
    if others:
        told = (f"--   {_line(f.where)}: {_line(f.message)}; {_line(f.remedy)}" for f in others)
        parts.append("\n".join(["-- what else blocks, and nothing here fixes:", *told]))
    return "\n\n".join(parts) + "\n"


def _line(text: str) -> str:
    """Return a remark as one line: a table's name may hold a line break, and a remark ends there."""
    return " ".join(text.splitlines())
