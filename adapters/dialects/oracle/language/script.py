"""The installation or the removal as a script for SQL*Plus and SQLcl, with the statements that the program runs. Pure.

The script adds only what makes it safe to run by hand: it runs only as one user, stops at the first error, writes a log
file, and commits as the program does.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.install_script import NOTHING, purpose_comment
from venus.adapters.dialects.oracle.names import literal
from venus.adapters.dialects.oracle.sql import statement

#: Settings of SQL*Plus: names may contain an ampersand, blank lines end no statement, the first error ends the script.
_BEFORE = (
    "SET DEFINE OFF",
    "SET SQLBLANKLINES ON",
    "WHENEVER OSERROR EXIT FAILURE ROLLBACK",
    "WHENEVER SQLERROR EXIT FAILURE ROLLBACK",
)
_AFTER = ("COMMIT;", "SPOOL OFF", "EXIT")


def build_script(steps: Seq[InstallStep], *, removal: bool, user: str, version: str) -> str:
    """Return the script. Raises Refused for a name that has a control character."""
    open_steps = [step for step in steps if not step.exists and step.by_hand]
    if not open_steps:
        return NOTHING
    what = "removal" if removal else "installation"
    done = sum(step.exists for step in steps)
    lines = [
        f"-- VENUS, {what}: {len(open_steps)} statements for Oracle {version}; {done} are done already.",
        f"-- Run it with SQL*Plus or SQLcl as user {user}, or through a proxy user: sqlplus dba[{user}]@NAME @FILE",
        "-- It stops at the first error. To continue, print it again: what is done is left out.",
    ]
    if not removal:
        lines.append("-- Afterwards: venus install-triggers --adopt")
    if any(not (step.table + step.sql).isascii() for step in open_steps):
        lines.append("-- This file is UTF-8: set NLS_LANG=.AL32UTF8 before SQL*Plus starts.")
    lines += [*_BEFORE, f"SPOOL venus-{'uninstall' if removal else 'install'}.log", ""]
    lines += [_terminate(text) for text in (statement("session", "patience"), _user_guard(user))]
    return "\n".join([*lines, *map(_paragraph, open_steps), *_AFTER]) + "\n"


def _user_guard(user: str) -> str:
    """Return the block that fails for any other user: all names in the script belong to this user."""
    return statement("session", "guard", user=literal(user), message=literal(f"VENUS: run this script as user {user}"))


def _paragraph(step: InstallStep) -> str:
    commits = "" if step.sql.startswith(("CREATE", "ALTER", "DROP")) else "COMMIT;\n"
    return f"{purpose_comment(step)}{_terminate(step.sql)}{commits}"


def _terminate(sql: str) -> str:
    return f"{sql}\n/\n" if sql.endswith("END;") else f"{sql};\n"
