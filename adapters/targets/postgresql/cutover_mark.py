"""The mark of a target that was cut over: it belongs to the application, and VENUS must not write there (VENUS 3.4).

One transaction sets the mark and `paused` while it locks the applied offset, so no cut is applied in part.
"""

from __future__ import annotations

import json

from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import Refused

#: The other state is CUT: the target is marked, and its constraints are being enabled.
_DONE = "DONE"


def cutover_sql(name: str, **names: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", name, own=OWN_SCHEMA, **names)


def read_mark(target: PostgresDatabase, session: TargetSession) -> CutoverMark | None:
    """Read the mark of this target; None if it was not cut over."""
    found = session.row(cutover_sql("installed"))
    row = session.row(cutover_sql("mark"), {"group": target.group}) if found and found[0] else None
    if row is None:
        return None
    state, sequence, offset, certificate, marked_at, done_at = row
    return CutoverMark(
        done=state == _DONE, sequence=sequence, offset=offset, certificate=json.loads(certificate), marked_at=marked_at,
        done_at=done_at,
    )  # fmt: skip


def format_mark_time(mark: CutoverMark | None) -> str:
    """Return the time of a cut-over as text; empty if there was none."""
    return f"{mark.marked_at:%Y-%m-%d %H:%M:%S} UTC" if mark is not None else ""


def refuse_if_cut_over(target: PostgresDatabase, session: TargetSession) -> None:
    """Raise Refused if the target belongs to the application: VENUS could overwrite its rows."""
    mark = read_mark(target, session)
    if mark is not None:
        raise Refused(
            f"target {target.name} was cut over at {format_mark_time(mark)}: it is the application's own",
            hint=f"`venus cutover --target {target.name} --undo` takes that back, unless rows were written there since",
        )
