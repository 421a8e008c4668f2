"""States of the tables at a relational target, and the target's position (VENUS 3.4)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from venus.adapters.targets.cutover_contract import CutoverMark
from venus.model import Offset
from venus.network import row_filters
from venus.network.row_filters import RowsIdentity

# States of a table at a target.
ACTIVE = "ACTIVE"  # follows the stream
PAUSED = "PAUSED"  # an operator has paused it
HALTED = "HALTED"  # the target refused a row
LOADING = "LOADING"  # the full load is not complete
CATCHUP = "CATCHUP"  # reads again from held_from, then joins the stream

# Purposes of recording changed keys.
SWEEP = "sweep"
RESYNC = "resync"
#: Not a recording: the number of changes unaccounted for when a resync of all tables was requested (table 0).
ACCOUNT = "account"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPosition:
    """The target's progress; every change with a smaller offset is applied, parked, skipped or held."""

    offset: Offset
    epoch: int
    last_sequence: int
    control: int
    paused: bool
    captured_at: datetime | None = None
    committed_at: datetime | None = None
    applied_at: datetime | None = None
    heartbeat_at: datetime | None = None
    note: str = ""
    #: The outcome of the last `venus verify`, as text (venus/rpc/conditions.py).
    compared: str | None = None
    #: Rows identity of the broker set that was read; None = unknown.
    rows: RowsIdentity | None = None
    #: The first load has not ended: the tables are LOADING, and follow the first read of the source.
    loading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """State of one table. `held_from` is the first offset that is not applied to it; None if it follows."""

    table_id: int
    schema_version: int
    namespace: str
    name: str
    source_name: str
    state: str
    held_from: Offset | None
    reason: str
    rows_applied: int
    rows_quarantined: int
    rows_skipped: int
    rows_held: int
    counted_from: Offset
    created: bool
    #: Selects the rows that it gets; empty = every row.
    predicate: str = ""
    #: The previous predicate, until the rows agree with `predicate`.
    predicate_before: str | None = None
    #: Rows added and removed by the last change of the predicate.
    rows_brought: int = 0
    rows_removed: int = 0


def rows_to_text(rows: RowsIdentity | None) -> str | None:
    """Return a rows identity as the text that is stored with the position."""
    return json.dumps(row_filters.encode_identity(rows)) if rows is not None else None


def rows_from_text(text: str | None) -> RowsIdentity | None:
    """Return the rows identity of a stored text."""
    return row_filters.decode_identity(json.loads(text)) if text is not None else None


def format_mark_time(mark: CutoverMark | None) -> str:
    """Return the time of a cut-over as text; empty if there was none."""
    return f"{mark.marked_at:%Y-%m-%d %H:%M:%S} UTC" if mark is not None else ""
