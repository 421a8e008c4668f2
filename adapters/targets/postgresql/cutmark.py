"""Whether a target was cut over: then it is the application's own, and VENUS must not write there (VENUS 3.4).

The mark and `paused` are set in one transaction with the applied offset held, so no change is half on either side.
"""

from __future__ import annotations

import json

from venus.adapters.targets.cutting import Mark
from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import Refused

#: The other state is CUT: marked, and foreign keys and the like are being put in force.
_DONE = "DONE"


def sql(name: str, **names: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", name, own=OWN_SCHEMA, **names)


def read(target: PostgresTarget, session: Session) -> Mark | None:
    """Return the mark of this target, None if it was not cut over."""
    found = session.row(sql("installed"))
    row = session.row(sql("mark"), {"group": target.group}) if found and found[0] else None
    if row is None:
        return None
    state, sequence, offset, certificate, marked_at, done_at = row
    return Mark(
        done=state == _DONE, sequence=sequence, offset=offset, certificate=json.loads(certificate), marked_at=marked_at,
        done_at=done_at,
    )  # fmt: skip


def moment(mark: Mark | None) -> str:
    """Return when a target was cut over, as people read it; empty = it was not."""
    return f"{mark.marked_at:%Y-%m-%d %H:%M:%S} UTC" if mark is not None else ""


def refuse_if_cut_over(target: PostgresTarget, session: Session) -> None:
    """Raise Refused if the application writes here: what VENUS would do could undo its work."""
    mark = read(target, session)
    if mark is not None:
        raise Refused(
            f"target {target.name} was cut over at {moment(mark)}: it is the application's own",
            hint=f"`venus cutover --target {target.name} --undo` takes that back, as long as nobody has written there",
        )
