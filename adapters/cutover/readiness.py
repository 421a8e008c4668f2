"""Where everything stands between the source and one target, and what of it forbids a cut-over (features 4, 41).

Looking is one thing (`look`), judging another: `blocks` and `pending` are pure. What passes by itself is waited for,
everything else is a line that says what is wrong and which command mends it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.adapters.dialects.contract import Source
from venus.adapters.targets.postgresql.database import (
    ACTIVE,
    CATCHUP,
    HALTED,
    LOADING,
    PAUSED,
    RESYNC,
    Position,
    PostgresTarget,
)
from venus.adapters.targets.postgresql.database import TableState as TargetTable
from venus.adapters.targets.postgresql.session import Session
from venus.rpc.admin import Admin

#: A transaction at the source that is open for longer than this is told of.
_OPEN_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Something that forbids the cut-over."""

    what: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A captured table at the source."""

    name: str
    state: str
    reason: str
    fill_done: bool
    log_rows: int
    blocked_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Everything at one moment, asked in the order of a row's path, so that nothing hides between two answers."""

    target: str
    source: tuple[SourceTable, ...]
    producer: str
    halves: int
    next_offset: int
    committed: dict[int, int]  # table -> changes that the broker has committed, ever
    applied: bool  # whether an under adapter is connected for this target
    position: Position | None
    tables: tuple[TargetTable, ...]
    open_quarantine: int
    unaccounted: int
    resyncing: tuple[str, ...] = ()
    alarms: tuple[str, ...] = field(default=())

    @property
    def counters(self) -> dict[str, int]:
        """How many changes of each table have passed the target's offset: it stands still if the table does."""
        return {t.source_name: t.rows_applied + t.rows_quarantined + t.rows_skipped + t.rows_held for t in self.tables}


def look(source: Source, admin: Admin, target: PostgresTarget, session: Session) -> Readiness:
    """Ask source, broker and target, one after the other."""
    backlog = source.backlog()
    tables = tuple(
        SourceTable(
            name=t.schema.qualified, state=t.state, reason=t.reason, fill_done=t.fill.done,
            log_rows=backlog.get(t.schema.table_id, (0, 0))[0], blocked_s=backlog.get(t.schema.table_id, (0, 0))[1],
        )
        for t in source.registered()
        if not t.schema.is_heartbeat
    )  # fmt: skip
    status = admin.status(target.business)
    own = next((b for b in status.businesses if b.business == target.business), None)
    installed = target.installed(session)
    states = tuple(target.tables(session)) if installed else ()
    sweeps = target.own_rows(session, "sweeps") if installed else []
    resyncing = {table_id for table_id, purpose, _ in sweeps if purpose == RESYNC}
    return Readiness(
        target=target.name,
        source=tables,
        producer=own.producer if own else "",
        halves=len(own.halves) if own else 0,
        next_offset=own.next_offset if own else 0,
        committed={t.table_id: t.committed_changes for t in own.tables} if own else {},
        applied=any(c.connected for c in own.consumers if c.group == target.group) if own else False,
        position=target.position(session) if installed else None,
        tables=states,
        open_quarantine=int(target.own_rows(session, "count_open")[0][0]) if installed else 0,
        unaccounted=(target.unaccounted(session) or 0) if installed else 0,
        resyncing=tuple(t.source_name for t in states if t.table_id in resyncing),
        alarms=(*status.alarms, *(own.alarms if own else ())),
    )


def blocks(readiness: Readiness) -> list[Block]:
    """Return what does not pass by itself. Pure."""
    at = f"--target {readiness.target}"
    if readiness.position is None:
        return [Block(what=f"target {readiness.target} has not been loaded", remedy=f"venus migrate {at}")]
    found = [b for t in readiness.source if (b := _source_block(t))]
    captured, there = {t.name for t in readiness.source}, {t.source_name for t in readiness.tables}
    found += [
        Block(what=f"{name} is captured and not at the target", remedy=f"start `venus sync`, or venus migrate {at}")
        for name in sorted(captured - there)
    ]
    found += [Block(what=f"broker: {alarm}", remedy="venus status") for alarm in readiness.alarms]
    if readiness.position.paused:
        found.append(Block(what=f"target {readiness.target} is paused", remedy=f"venus resume {at}"))
    found += [b for t in readiness.tables if (b := _table_block(t, at))]
    if readiness.open_quarantine:
        what = f"{readiness.open_quarantine:,} refused changes wait in quarantine"
        remedy = f"venus quarantine list {at}, then venus quarantine retry, or skip --reason"
        found.append(Block(what=what, remedy=remedy))
    if readiness.unaccounted:
        what = f"{readiness.unaccounted:,} changes are unaccounted for"
        found.append(Block(what=what, remedy=f"venus resync --all {at}"))
    return found + _missing_processes(readiness)


def _source_block(table: SourceTable) -> Block | None:
    why = f" ({table.reason})" if table.reason else ""
    if table.state == "RESYNC":
        return Block(what=f"{table.name} has missed changes at the source{why}", remedy=f"venus resync {table.name}")
    if table.state != "ACTIVE":
        return Block(what=f"{table.name} is {table.state} at the source{why}", remedy=f"venus resume {table.name}")
    return None


def _table_block(table: TargetTable, at: str) -> Block | None:
    why = f" ({table.reason})" if table.reason else ""
    remedies = {
        HALTED: f"venus quarantine list {at} shows the row; fix it, then venus quarantine retry",
        PAUSED: f"venus resume {table.source_name} {at}",
        LOADING: f"venus migrate {at} goes on with the load",
    }
    if table.state not in remedies:
        return None
    return Block(what=f"{table.source_name} is {table.state} at the target{why}", remedy=remedies[table.state])


def _missing_processes(readiness: Readiness) -> list[Block]:
    """Return what nobody is there to drain."""
    found = []
    if not readiness.producer and (readiness.halves or any(t.log_rows or not t.fill_done for t in readiness.source)):
        found.append(Block(what="changes wait at the source and nobody captures them", remedy="start `venus sync`"))
    behind = readiness.position is not None and readiness.position.offset < readiness.next_offset
    if not readiness.applied and behind:
        what = "changes wait at the broker and nobody applies them"
        found.append(Block(what=what, remedy=f"start `venus sync --apply-only --target {readiness.target}`"))
    return found


def pending(readiness: Readiness) -> list[Block]:
    """Return what passes by itself, if it is given time and the source is at rest. Pure."""
    found = []
    for t in readiness.source:
        if not t.fill_done:
            found.append(Block(what=f"{t.name} is being read for the first time, or again"))
        elif t.log_rows:
            found.append(Block(what=f"{t.name}: {t.log_rows:,} changes wait at the source"))
        elif t.blocked_s > _OPEN_S:
            found.append(Block(what=f"{t.name}: a transaction is open at the source for {t.blocked_s} s"))
    if readiness.halves:
        what = f"{readiness.halves} batches are undecided at the broker"
        found.append(Block(what=what, remedy="venus half list, if that stays"))
    position = readiness.position
    if position is not None and position.offset < readiness.next_offset:
        found.append(Block(what=f"the target is {readiness.next_offset - position.offset:,} changes behind the broker"))
    found += [
        Block(what=f"{t.source_name} catches up at the target")
        for t in readiness.tables
        if t.state == CATCHUP or (t.source_name in readiness.resyncing and t.state == ACTIVE)
    ]
    return found


def moved(before: dict[str, int], after: dict[str, int]) -> list[Block]:
    """Return the tables that changed between two looks: the application still writes. Pure."""
    return [
        Block(what=f"{name}: {after[name] - before.get(name, 0):,} changes arrived meanwhile")
        for name in after
        if after[name] != before.get(name, 0)
    ]
