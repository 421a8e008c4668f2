"""The script that `--dry-run` prints, for databases whose clients need only semicolons. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import InstallStep
from venus.errors import Refused

NOTHING = "-- nothing to do\n"


def plain_script(steps: Seq[InstallStep], *, removal: bool) -> str:
    """Return the statements, each with its purpose; of existing objects only the purpose."""
    open_steps = [step for step in steps if not step.exists]
    if not open_steps:
        return NOTHING
    head = f"-- VENUS, {'removal' if removal else 'installation'}: {len(open_steps)} of {len(steps)} statements\n"
    return head + "\n".join(_paragraphs(steps))


def _paragraphs(steps: Seq[InstallStep]) -> Iterator[str]:
    for step in steps:
        yield purpose_comment(step) + ("" if step.exists else f"{step.sql.rstrip().rstrip(';')};\n")


def purpose_comment(step: InstallStep) -> str:
    """Return the comment in front of a statement. Raises Refused for a name that would end the line."""
    if not (step.table + step.what).isprintable():
        shown = "".join(c if c.isprintable() else "?" for c in step.table)
        raise Refused(
            f"{shown}: its name has a control character", hint="no script can contain it: let VENUS install itself"
        )
    table = f"{step.table}: " if step.table else ""
    return f"-- {table}{step.what}{' (exists, unchanged)' if step.exists else ''}\n"
