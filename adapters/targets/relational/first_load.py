"""A first load that overlaps the first read of the source (VENUS 3.3, 3.4).

The rows that the broker already has are loaded as in any other load. The tables then follow the queue. The queue
delivers the rest of the first read in key ranges, each at its own offset and in order with the changes between the
ranges. So every transaction leaves the target at one exact cut, and an interrupted load continues after the last
committed range. Indexes, checks and foreign keys are created after the last row, when each table has as many rows as
the broker's full data at the same cut. Until the load has ended, the target counts as never loaded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from venus.adapters.targets.contract import FillEnd, LoadProgress, LoadReport
from venus.adapters.targets.relational.apply_loop import ApplyReport
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.database import RelationalDatabase, wait_for_lock
from venus.adapters.targets.relational.load_plan import DONE, UnequalRowCount
from venus.adapters.targets.relational.own_tables import TablePlace
from venus.adapters.targets.relational.session import RelationalSession, transaction
from venus.adapters.targets.relational.states import ACTIVE, TableState
from venus.codec.stored_rows import RowTotals
from venus.errors import TargetError, Unavailable, VenusError
from venus.model import count_phrase
from venus.rpc.admin import AdminClient
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: How long the full data may lag behind the position of the target.
SNAPSHOT_S = 120.0
LOOK_S = 0.25

Report = Callable[[LoadProgress], None]


def committed_end(target: RelationalDatabase) -> FillEnd:
    """Return a function that returns a fixed end of the load: the end of all that the broker has committed."""
    with AdminClient(target.broker) as admin:
        found = [b for b in admin.status(target.business).businesses if b.business == target.business]
    offset = found[0].next_offset if found else 0
    return lambda: offset


def complete_first_load(target: RelationalDatabase, end: FillEnd, report: Report, began: float) -> LoadReport:
    """Follow the first read of the source up to its end, then finish the load.

    `end` returns the offset after the first read, or None during that read; `end` may raise an error to end the load
    early.
    """
    with closing(target.connect("load")) as session:
        before = target.read_own_rows(session, "loading_rows")[0][0]
    _follow(target, end, report, before)
    with (
        SnapshotClient(target.broker) as snapshots,
        _stop_at_snapshot(target, snapshots, end, report, before) as totals,
        closing(target.connect("load")) as session,
    ):
        wait_for_lock(target, session, threading.Event())
        return _finish(target, session, totals, report, began)


@contextmanager
def _stop_at_snapshot(
    target: RelationalDatabase, snapshots: SnapshotClient, end: FillEnd, report: Report, before: int
) -> Iterator[dict[int, RowTotals]]:
    """Follow up to the cut of a snapshot; yield its tables' totals while the target is at that cut."""
    give_up_at = time.monotonic() + SNAPSHOT_S
    while True:
        with closing(target.connect("load")) as session:
            filters = _find_filters(target, session)
        snapshot = snapshots.open(target.business, holder=target.group, where=filters)
        try:
            _follow(target, _end_at(snapshot.offset, end), report, before)
            with closing(target.connect("load")) as session:
                position = target.read_position(session)
            if position is not None and position.offset == snapshot.offset:
                yield snapshots.totals(snapshot.snapshot_id)
                return
        finally:
            with suppress(VenusError):
                snapshots.close(snapshot.snapshot_id)
        if time.monotonic() >= give_up_at:
            raise Unavailable("the broker's full data is behind its queue", hint="run `venus migrate` again later")
        time.sleep(LOOK_S)


def _end_at(offset: int, end: FillEnd) -> FillEnd:
    """Return a variant of `end` that names `offset` once the fill has ended, and raises the same errors."""
    return lambda: offset if end() is not None else None


def _find_filters(target: RelationalDatabase, session: RelationalSession) -> list[broker_pb2.RowFilter]:
    """Return the row filters of the tables of which the target gets only some rows."""
    return [
        broker_pb2.RowFilter(table=t.source_name, predicate=t.predicate)
        for t in target.read_tables(session)
        if t.predicate
    ]


def _follow(target: RelationalDatabase, end: FillEnd, report: Report, before: int) -> None:
    """Apply increments up to the end. An error that `end` raises ends the loop and is raised again."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def find_end() -> int | None:
        try:
            return end()
        except BaseException as error:
            errors.append(error)
            stop.set()
            return None

    def on_report(found: ApplyReport) -> None:
        if found.error:
            logger.warning("target %s: %s", target.name, found.error)
        report(LoadProgress(phase="loading", rows=before + found.rows))

    run_apply(target.settings, target.name, stop, on_report, end=find_end)
    if errors:
        raise errors[0]


def _finish(
    target: RelationalDatabase, session: RelationalSession, totals: dict[int, RowTotals], report: Report, began: float
) -> LoadReport:
    """Add keys, compare row counts, add indexes and constraints, then mark the first load as ended."""
    # the last transaction makes all of this durable, because it comes later in the WAL
    target.relax_commits(session)
    schemas = {(s.table_id, s.version): s for s in target.read_schemas(session)}
    states = target.read_tables(session)
    placed = {t.table_id: target.place(schemas[t.table_id, t.schema_version]) for t in states}
    ready = [t for t in states if _is_ready(target, session, t, placed[t.table_id])]
    rows = {t.table_id: _finish_table(target, session, placed[t.table_id], report) for t in ready}
    _check_counts(target, session, ready, rows, totals)
    created = [placed[t.table_id] for t in ready if t.created]
    warnings = target.finish_tables(session, created, [placed[t.table_id] for t in ready])
    if missing := target.count_unaccounted(session):
        raise TargetError(
            f"target {target.name}: {missing} changes of the first load are unaccounted for",
            hint="`venus migrate --empty-meanwhile` loads it again",
        )
    target.commit_durably(session)
    with transaction(session):
        position = target.read_position(session)
        assert position is not None
        target.run_own(session, "end_first_load")
        target.run_own(session, "set_job", state=DONE)
        target.run_own(session, "raise_control")
    report(LoadProgress(phase="done", rows=sum(rows.values()), rows_estimate=sum(rows.values())))
    return LoadReport(
        target=target.name,
        offset=position.offset,
        rows={placed[table_id].qualified_name: count for table_id, count in rows.items()},
        parked=sum(count for _, count in target.read_own_rows(session, "open_by_table")),
        seconds=time.monotonic() - began,
        warnings=tuple(warnings),
        left_out=tuple(target.list_left_out(list(placed.values()))),
        halted=tuple(f"{t.source_name}: {t.reason}" for t in states if t.state != ACTIVE),
    )


def _check_counts(
    target: RelationalDatabase,
    session: RelationalSession,
    ready: list[TableState],
    rows: dict[int, int],
    totals: dict[int, RowTotals],
) -> None:
    """Compare the number of rows in each table with the broker's at the same cut. Raises UnequalRowCount.

    Only this comparison shows whether another session has written to a table since the load began.
    """
    if target.config.on_existing == "append":
        return
    parked = {table_id for table_id, _ in target.read_own_rows(session, "open_by_table")}
    for table in ready:
        expected = totals.get(table.table_id)
        if table.state != ACTIVE or table.table_id in parked or expected is None:
            continue
        if rows[table.table_id] != expected.rows:
            raise UnequalRowCount(
                f"{table.source_name} has {count_phrase(rows[table.table_id], 'row')} at the target and "
                f"{expected.rows:,} at the broker: another session has written to it",
                hint=f"`venus migrate --empty-meanwhile --target {target.name}` loads it again without other writers",
            )


def _is_ready(target: RelationalDatabase, session: RelationalSession, state: TableState, placed: TablePlace) -> bool:
    """Return whether a table can be finished: a refused table may be missing, or belong to the user."""
    return (state.created or state.state == ACTIVE) and target.has_table(session, placed)


def _finish_table(target: RelationalDatabase, session: RelationalSession, placed: TablePlace, report: Report) -> int:
    """Add the key if the table has none, and return the number of rows."""
    report(LoadProgress(phase="indexing", table=placed.qualified_name))
    target.finish_table(session, placed)
    return target.count_rows(session, placed)
