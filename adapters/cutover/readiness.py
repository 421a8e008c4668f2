"""State of everything between the source and one target, and the obstacles to a cut-over in it.

`read_readiness` reads the state; `find_blocks` and `find_pending` evaluate it and are pure. The cut-over waits until
pending obstacles disappear; it reports every other obstacle in one line, with the cause and the command that fixes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from venus.adapters.dialects.contract import Source, UncapturedTable
from venus.adapters.targets.cutover_contract import CutoverObstacle, CutoverTarget
from venus.adapters.targets.views import TargetTable, TargetView
from venus.model import count_phrase
from venus.network.topology import PULLS_AS
from venus.rpc.admin import AdminClient
from venus.rpc.conditions import MATCHES, NOT_CAPTURED, RESYNCING
from venus.rpc.reports import decode
from venus.text.alarm_rules import SWITCH, classify_sentence
from venus.wire import broker_pb2

#: A transaction at the source that is open for longer than this is reported.
_OPEN_S = 2
#: States of a table that recovers without an operator.
_CATCHING_UP = ("CATCHUP", RESYNCING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTableState:
    """State of a captured table at the source."""

    name: str
    state: str
    reason: str
    fill_done: bool
    log_rows: int
    blocked_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """State of all parts, read in the order of a row's path, so that no change is missed between two reads."""

    target: str
    source: tuple[SourceTableState, ...]
    producer: str
    halves: int
    next_offset: int
    committed: dict[int, int]  # by table: the changes that the broker has committed since the beginning
    applied: bool  # whether an under adapter is connected for this target
    at_target: TargetView
    alarms: tuple[str, ...] = field(default=())
    #: Tables removed from capture, each with the reason.
    released: dict[str, str] = field(default_factory=dict)
    #: Removed tables that were dropped at the source.
    gone: frozenset[str] = frozenset()
    #: Tables that the patterns choose but that are not captured; certificate.py chooses those that may be left out.
    uncaptured: tuple[UncapturedTable, ...] = ()
    #: Tables that were dropped at the target.
    missing: frozenset[str] = frozenset()

    @property
    def counters(self) -> dict[str, int]:
        """How many changes of each table the target's offset has passed."""
        return counters_of(self.at_target.tables)


def counters_of(tables: Iterable[TargetTable]) -> dict[str, int]:
    """Return how many changes of each table the target's offset has passed; constant while the table is at rest."""
    return {t.name: t.rows_applied + t.quarantined + t.skipped + t.held for t in tables}


def read_readiness(
    source: Source,
    admin: AdminClient,
    business: str,
    target: CutoverTarget,
    include: Seq[str] = (),
    exclude: Seq[str] = (),
) -> Readiness:
    """Read source, broker and target in turn; the patterns are those of the configuration."""
    backlog = source.capture.read_backlog()
    tables = tuple(
        SourceTableState(
            name=t.schema.qualified_name,
            state=t.state,
            reason=t.reason,
            fill_done=t.fill.done,
            log_rows=backlog.get(t.schema.table_id, (0, 0))[0],
            blocked_s=backlog.get(t.schema.table_id, (0, 0))[1],
        )
        for t in source.registry.read_registered_tables()
        if not t.schema.is_heartbeat
    )
    status = admin.whole_status(business)
    own = next((b for b in status.businesses if b.business == business), None)
    view = target.read_view()
    out = {t.schema.qualified_name: t.reason for t in source.registry.read_released_tables()}
    return Readiness(
        target=view.name,
        source=tables,
        released=out,
        uncaptured=tuple(source.dictionary.find_uncaptured_tables(include, exclude)),
        gone=frozenset(out).difference(source.dictionary.read_table_names()) if out else frozenset(),
        missing=frozenset(t.name for t in view.tables).difference(
            t.schema.qualified_name for t in target.read_tables()
        ),
        producer=own.producer if own else "",
        halves=len(own.halves) if own else 0,
        next_offset=own.next_offset if own else 0,
        committed={t.table_id: t.committed_changes for t in own.tables} if own else {},
        applied=any(c.connected for c in own.consumers if c.group == view.group) if own else False,
        at_target=view,
        alarms=(*status.alarms, *(relevant_alarms(view.group, own) if own else ())),
    )


def relevant_alarms(group: str, own: broker_pb2.BusinessStatus) -> list[str]:
    """Return the alarms of a business, without those of other targets and sets, which a cut-over does not affect.

    The result also omits alarms about uncaptured tables, which have just been read from the source and which the
    operator may leave out, and alarms about an unfinished switch, which the command completes.
    """
    prefix = f"{own.business}/"
    others = [c.group for c in own.consumers if c.group != group]
    marks = [
        f"set {name.removeprefix(PULLS_AS)}:" if name.startswith(PULLS_AS) else f"target {name.removeprefix(prefix)}:"
        for name in others
    ] + [f"held tables of {name}," for name in others]
    known = decode(own.source.report).tables if own.HasField("source") else ()
    marks += [f"source: {table.name} {MATCHES} " for table in known if table.state == NOT_CAPTURED]
    alarms = [alarm for alarm in own.alarms if classify_sentence(alarm)[0].name != SWITCH]
    return [alarm for alarm in alarms if not any(mark in alarm for mark in marks)]


def find_blocks(readiness: Readiness) -> list[CutoverObstacle]:
    """Return the obstacles that need an operator, without alarms, which the broker may repeat for a moment. Pure."""
    at, view = f"--target {readiness.target}", readiness.at_target
    if not view.loaded:
        return [CutoverObstacle(what=f"target {readiness.target} has not been loaded", remedy=f"venus migrate {at}")]
    found = [b for t in readiness.source if (b := _source_obstacle(t))]
    captured, there = {t.name for t in readiness.source}, {t.name for t in view.tables} - readiness.missing
    found += [
        CutoverObstacle(
            what=f"{name} is captured and not at the target", remedy=f"start `venus sync`, or venus migrate {at}"
        )
        for name in sorted(captured - there)
    ]
    found += [_released_obstacle(readiness, name) for name in readiness.released if name in there]
    if view.paused:
        found.append(CutoverObstacle(what=f"target {readiness.target} is paused", remedy=f"venus resume {at}"))
    found += [b for t in view.tables if (b := _table_obstacle(t, at))]
    found += [
        CutoverObstacle(
            what=f"{t.name} gets a part of its rows: {t.rows_shown}",
            remedy=f"take it out of [targets.{readiness.target}.where]",
        )
        for t in view.tables
        if t.predicate or t.predicate_before
    ]
    if view.open_quarantine:
        verb = "waits" if view.open_quarantine == 1 else "wait"
        what = f"{count_phrase(view.open_quarantine, 'refused change')} {verb} in quarantine"
        remedy = f"venus quarantine list {at}, then venus quarantine retry, or skip --reason"
        found.append(CutoverObstacle(what=what, remedy=remedy))
    if view.unaccounted_rows:
        what = f"{count_phrase(view.unaccounted_rows, 'change')} unaccounted for"
        found.append(CutoverObstacle(what=what, remedy=f"venus resync --all {at}"))
    return found


def _released_obstacle(readiness: Readiness, name: str) -> CutoverObstacle:
    """Return the obstacle of a table that is no longer captured: its content at the target cannot be proved."""
    dropped = "drop it at the target, if it is not needed there"
    if name in readiness.gone:
        return CutoverObstacle(what=f"{name} was dropped at the source and is still at the target", remedy=dropped)
    remedy = f"venus install-triggers takes it up again; or {dropped}"
    return CutoverObstacle(what=f"{name} is not captured any more ({readiness.released[name]})", remedy=remedy)


def _source_obstacle(table: SourceTableState) -> CutoverObstacle | None:
    """Return the obstacle of a table that is not captured completely; None if it is."""
    why = f" ({table.reason})" if table.reason else ""
    if table.state == "RESYNC":
        return CutoverObstacle(
            what=f"{table.name} has missed changes at the source{why}", remedy=f"venus resync {table.name}"
        )
    if table.state != "ACTIVE":
        return CutoverObstacle(
            what=f"{table.name} is {table.state} at the source{why}", remedy=f"venus resume {table.name}"
        )
    return None


def _table_obstacle(table: TargetTable, at: str) -> CutoverObstacle | None:
    """Return the obstacle of a table that does not follow at the target; `at`: the option that names the target."""
    why = f" ({table.reason})" if table.reason else ""
    remedies = {
        "HALTED": f"venus quarantine list {at} shows the row; fix it, then venus quarantine retry",
        "PAUSED": f"venus resume {table.name} {at}",
        "LOADING": f"venus migrate {at} continues the load",
    }
    if table.state not in remedies:
        return None
    return CutoverObstacle(what=f"{table.name} is {table.state} at the target{why}", remedy=remedies[table.state])


def find_alarms(readiness: Readiness, *, passing: bool) -> list[CutoverObstacle]:
    """Return the broker's alarms: if `passing`, those that may end by themselves (a lag), else the others. Pure."""
    return [
        CutoverObstacle(what=f"broker: {alarm}", remedy="venus status")
        for alarm in readiness.alarms
        if passing == (classify_sentence(alarm)[0].min_duration_s > 0)
    ]


def find_missing(readiness: Readiness) -> list[CutoverObstacle]:
    """Return the changes that wait for a process that is not running, or that is just reconnecting. Pure."""
    found = []
    if not readiness.producer and (readiness.halves or any(t.log_rows or not t.fill_done for t in readiness.source)):
        found.append(
            CutoverObstacle(what="changes wait at the source and no process captures them", remedy="start `venus sync`")
        )
    behind = readiness.at_target.loaded and readiness.at_target.offset < readiness.next_offset
    if not readiness.applied and behind:
        what = "changes wait at the broker and no process applies them"
        found.append(CutoverObstacle(what=what, remedy=f"start `venus sync --apply-only --target {readiness.target}`"))
    return found


def find_pending(readiness: Readiness) -> list[CutoverObstacle]:
    """Return the obstacles that only need time and a source at rest. Pure."""
    found = find_alarms(readiness, passing=True)
    for t in readiness.source:
        if not t.fill_done:
            found.append(CutoverObstacle(what=f"{t.name} is being read for the first time, or again"))
        elif t.log_rows:
            found.append(CutoverObstacle(what=f"{t.name}: {count_phrase(t.log_rows, 'change')} waiting at the source"))
        elif t.blocked_s > _OPEN_S:
            found.append(CutoverObstacle(what=f"{t.name}: a transaction is open at the source for {t.blocked_s} s"))
    if readiness.halves:
        what = f"{count_phrase(readiness.halves, 'undecided batch', 'undecided batches')} at the broker"
        found.append(CutoverObstacle(what=what, remedy="venus half list, if that does not change"))
    view = readiness.at_target
    if view.loaded and view.offset < readiness.next_offset:
        found.append(
            CutoverObstacle(
                what=f"the target is {count_phrase(readiness.next_offset - view.offset, 'change')} behind the broker"
            )
        )
    found += [
        CutoverObstacle(what=f"{t.name} catches up at the target") for t in view.tables if t.state in _CATCHING_UP
    ]
    return found


def find_movement(before: dict[str, int], after: dict[str, int]) -> list[CutoverObstacle]:
    """Return the tables that changed between two readings: the application still writes. Pure."""
    return [
        CutoverObstacle(what=f"{name}: {count_phrase(after[name] - before.get(name, 0), 'change')} arrived meanwhile")
        for name in after
        if after[name] != before.get(name, 0)
    ]
