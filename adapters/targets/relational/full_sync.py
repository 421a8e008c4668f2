"""Full load of a relational target from the broker's full data; the source may be offline (VENUS 3.3, offset -1).

The plan of a load is made once and stored at the target: the snapshot, its splits, and which splits are loaded. If a
load is killed, the next run resumes it and reads at most one split per worker twice. The last transaction sets the
applied offset to the snapshot's cut. Increments follow from that offset with no gap and no overlap.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from venus.adapters.targets.contract import FillEnd, LoadProgress, LoadReport
from venus.adapters.targets.relational.database import (
    LOCK_WAIT_S,
    RelationalDatabase,
    open_database,
    refuse_if_cut_over,
    wait_for_lock,
)
from venus.adapters.targets.relational.load_plan import DONE, FOLLOWING, LoadPlan, LoadPlanner, UnequalRowCount
from venus.adapters.targets.relational.load_task import (
    FormerKey,
    SplitResult,
    SplitTask,
    group_small_splits,
    load_split,
    load_splits,
)
from venus.adapters.targets.relational.own_tables import TablePlace
from venus.adapters.targets.relational.session import RelationalSession, transaction
from venus.adapters.targets.relational.states import HALTED, TargetPosition, rows_to_text
from venus.codec.stored_rows import RowTotals
from venus.config import Settings
from venus.errors import DigestMismatch, Diverged, ProtocolError, Refused, SnapshotExpired, VenusError
from venus.model import count_phrase
from venus.process.runners import LocalRunner, Runner
from venus.rpc import reports
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

__all__ = ["LoadProgress", "LoadReport", "SplitResult", "SplitTask", "full_sync", "load_split"]

logger = logging.getLogger(__name__)

LOOK_S = 0.25
#: Above this number of splits, small ones share a task.
SINGLE_SPLITS_MAX = 32
#: How long a command waits for the session of a killed predecessor before it refuses to work beside another process.
BRIEF_LOCK_WAIT_S = 5.0
#: How many times a snapshot may expire during a load.
PLANS_MAX = 3

Report = Callable[[LoadProgress], None]
#: Chooses the runner by the estimated number of rows.
RunnerChooser = Callable[[int], Runner]


@contextmanager
def watch_progress(target: RelationalDatabase, load_id: str, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Report the rows and splits at the target repeatedly while the block runs."""
    stop = threading.Event()
    thread = threading.Thread(
        target=_poll_progress, args=(target, load_id, tell, stop), name="venus-watch", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _poll_progress(
    target: RelationalDatabase, load_id: str, tell: Callable[[int, int], None], stop: threading.Event
) -> None:
    """Report the progress of a load repeatedly until `stop`, with an own connection."""
    if stop.wait(LOOK_S):
        return  # the block has ended already: not worth a connection
    rows = 0
    try:
        session = target.connect("watch")
    except VenusError as error:
        logger.info("cannot read the progress of the load: %s", error)
        return
    try:
        while not stop.wait(LOOK_S):
            committed, splits, under_way = target.read_load_progress(session, load_id)
            rows = max(rows, committed + under_way)  # a COPY that has ended but is not committed is not counted
            tell(rows, splits)
    except VenusError as error:
        logger.info("can no longer read the progress of the load: %s", error)
    finally:
        session.close()


def full_sync(
    settings: Settings,
    name: str,
    report: Report | None = None,
    *,
    runner: Runner | None = None,
    choose: RunnerChooser | None = None,
    empty_meanwhile: bool = False,
    fill_end: FillEnd | None = None,
) -> LoadReport:
    """Load target `name` from the broker's full data up to an exact offset; resume an interrupted load.

    `runner` loads the splits, or `choose` returns the runner; without either, local processes load them. A target that
    was loaded before and cannot follow, or whose first load has not ended, is emptied first if `empty_meanwhile`
    accepts that. With `fill_end` the load overlaps the first read of the source and ends after it.
    """
    target = open_database(settings, name, first_load=True)
    target.install()
    began, report = time.monotonic(), report or (lambda _: None)
    session = target.connect("load")
    try:
        refuse_if_cut_over(target, session)
        wait_for_lock(target, session, threading.Event(), BRIEF_LOCK_WAIT_S if fill_end is None else LOCK_WAIT_S)
        with target.log_load_waits():
            load = _Load(target, session, report, _runner_chooser(settings, runner, choose), fill_end)
            loaded = load.run(empty_meanwhile=empty_meanwhile)
    finally:
        session.rollback()
        session.close()
    if loaded is not None:
        return loaded
    from venus.adapters.targets.relational.first_load import committed_end, complete_first_load  # imports all of apply

    return complete_first_load(target, fill_end or committed_end(target), report, began)


def _runner_chooser(settings: Settings, runner: Runner | None, choose: RunnerChooser | None) -> RunnerChooser:
    """Return a function that chooses the runner: the given one, the choice of `choose`, or local processes."""
    if runner is not None:
        return lambda _: runner
    return choose or (lambda rows: LocalRunner.for_rows(settings.apply.load_workers, rows))


class _Load:
    """One run of a full load.

    The run returns no report if the tables then have to follow the first read of the source (first_load.py).
    """

    def __init__(
        self,
        target: RelationalDatabase,
        session: RelationalSession,
        report: Report,
        choose: RunnerChooser,
        fill_end: FillEnd | None = None,
    ) -> None:
        self._target = target
        self._session = session
        self._report = report
        self._choose = choose
        self._overlaps = fill_end is not None and fill_end() is None
        self._snapshots = SnapshotClient(target.broker)
        self._began = time.monotonic()
        self._resumed = 0

    def run(self, *, empty_meanwhile: bool) -> LoadReport | None:
        """Load the target unless it can follow; None if first_load.py continues this load from the stream."""
        try:
            position = self._target.read_position(self._session)
            if position is not None:
                error = self._find_divergence(position)
                if error is None and position.loading and not empty_meanwhile:
                    self._announce(f"its first load continues at offset {position.offset:,}")
                    return None
                if error is None and not position.loading and not (empty_meanwhile and self._has_halted()):
                    return LoadReport(target=self._target.name, offset=position.offset, rows={}, already=True)
                if error is not None and not empty_meanwhile and not position.loading:
                    raise self._empty_tables_error(error)
                self._announce(f"its load begins again: {error or '--empty-meanwhile was given'}")
            for attempt in range(PLANS_MAX):
                try:
                    return self._load(fresh=attempt > 0 or position is not None)
                except SnapshotExpired as expired:
                    self._announce(f"its load begins again: {expired}")
            raise SnapshotExpired("the snapshot kept expiring while loading", hint="raise broker.snapshot_lease_s")
        finally:
            self._snapshots.close()

    def _has_halted(self) -> bool:
        """Return whether a table has halted: only a new load may give it another key."""
        return any(table.state == HALTED for table in self._target.read_tables(self._session))

    def _announce(self, note: str) -> None:
        """Log and report a note about the load, such as that it continues or begins again."""
        logger.info("target %s: %s", self._target.name, note)
        self._report(LoadProgress(phase="planning", note=note))

    def _empty_tables_error(self, error: Diverged) -> Refused:
        """Return the error for a load during which readers would see empty tables."""
        name = self._target.name
        return Refused(
            f"target {name} is loaded and cannot follow ({error}): a new load would show empty tables until it is done",
            hint=f"`venus resync --all --target {name}`, then `venus sync`, make it equal while it is read; or add "
            "--empty-meanwhile",
        )

    def _find_divergence(self, position: TargetPosition) -> Diverged | None:
        """Return why a target that was loaded before cannot continue with increments; None if it can."""
        subscriber = Subscriber(
            self._target.broker,
            self._target.business,
            f"{self._target.group}/check",
            credit_bytes=1 << 16,
            transient=True,
        )
        try:
            subscriber.open(position.offset, position.epoch, rows=position.rows)
        except Diverged as error:
            return error
        finally:
            subscriber.close()
        return None

    def _load(self, *, fresh: bool) -> LoadReport | None:
        """Load by the stored plan, or by a new one if there is none or if `fresh`."""
        self._report(LoadProgress(phase="planning"))
        planner = LoadPlanner(self._target, self._session, self._snapshots)
        kept = None if fresh else planner.read_plan()
        if planner.obstacle:
            self._announce(f"its load begins again: {planner.obstacle}")
        plan = kept or planner.make_plan(overlaps=self._overlaps)
        with self._renew_snapshot(plan.snapshot):
            with self._close_snapshot_if_unequal(plan):
                results = self._load_splits(plan, resumes=kept is not None)
            return self._finish(plan, results)

    # -- the snapshot's lease ----------------------------------------------------------------------------------------

    @contextmanager
    def _renew_snapshot(self, snapshot: broker_pb2.Snapshot) -> Iterator[None]:
        """Renew the snapshot's lease while the block runs."""
        stop = threading.Event()

        def renew() -> None:
            while not stop.wait(max(1.0, snapshot.lease_s / 3)):
                try:
                    self._snapshots.renew(snapshot.snapshot_id)
                except VenusError as error:
                    logger.warning("the snapshot could not be renewed: %s", error)

        thread = threading.Thread(target=renew, name="venus-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # -- the splits ------------------------------------------------------------------------------------------------

    def _build_tasks(self, plan: LoadPlan) -> list[SplitTask]:
        """Return a task for each split of the plan's tables."""
        target = self._target
        return [
            SplitTask(
                kind=target.kind,
                url=target.worker_url,
                broker=target.broker,
                business=target.business,
                group=target.group,
                load_id=plan.load_id,
                snapshot_id=plan.snapshot.snapshot_id,
                split_no=number,
                split=split.SerializeToString(),
                placed=plan.placed[split.table_id],
                versions=plan.versions[split.table_id],
                predicate=plan.predicates.get(split.table_id, ""),
                masking_key=target.columns.key,
            )
            for number, split in enumerate(plan.snapshot.splits)
            if split.table_id in plan.placed
        ]

    def _load_splits(self, plan: LoadPlan, *, resumes: bool) -> list[SplitResult]:
        """Load the splits that are not loaded yet; return the results of all splits."""
        kept = self._target.read_own_rows(self._session, "manifest", load_id=plan.load_id)
        done = {
            split: SplitResult(
                split_no=split,
                table_id=table_id,
                rows=rows,
                parked=parked,
                outside=outside,
                digest=digest,
                already=True,
            )
            for split, table_id, rows, parked, outside, digest in kept
        }
        self._resumed = len(done)
        tasks = self._build_tasks(plan)
        if resumes:
            self._announce(f"its load continues: {len(done):,} of {count_phrase(len(tasks), 'key range')} were loaded")
        left = [t for t in tasks if t.split_no not in done]
        self._report_rows(plan, sum(r.rows for r in done.values()), len(done))
        with watch_progress(self._target, plan.load_id, lambda rows, splits: self._report_rows(plan, rows, splits)):
            for results in self._run(self._choose(plan.rows_estimate), left):
                done |= {result.split_no: result for result in results}
        self._report_rows(plan, sum(r.rows for r in done.values()), len(done))
        return [done[t.split_no] for t in tasks]

    def _run(self, runner: Runner, tasks: list[SplitTask]) -> Iterator[tuple[SplitResult, ...]]:
        """Run tasks by the runner, small ones in groups; yield the results as they arrive."""
        if not self._target.loads_in_parallel:
            for group in group_small_splits(tasks):
                yield from runner.run(load_splits, [group])
        elif len(tasks) > SINGLE_SPLITS_MAX:
            yield from runner.run(load_splits, group_small_splits(tasks))
        else:
            yield from ((result,) for result in runner.run(load_split, tasks))

    def _report_rows(self, plan: LoadPlan, rows: int, splits: int) -> None:
        """Report how many rows and splits are loaded."""
        self._report(
            LoadProgress(
                phase="loading",
                rows=rows,
                rows_estimate=max(rows, plan.rows_estimate),
                splits=splits,
                splits_total=len(plan.snapshot.splits),
            )
        )

    # -- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, plan: LoadPlan, results: list[SplitResult]) -> LoadReport | None:
        """Check row counts, add keys (and constraints unless the plan overlaps), and set the applied offset."""
        target, session = self._target, self._session
        # the last transaction makes all of this durable, because it comes later in the WAL
        target.relax_commits(session)
        rows, parked = dict.fromkeys(plan.placed, 0), dict.fromkeys(plan.placed, 0)
        for result in results:
            rows[result.table_id] += result.rows
            parked[result.table_id] += result.parked
        states = {t.table_id: t for t in target.read_tables(session)}
        with self._close_snapshot_if_unequal(plan):
            self._snapshots.confirm(plan.snapshot.snapshot_id, sum_totals(results), plan.names)
            for table_id, placed in plan.placed.items():
                self._report(LoadProgress(phase="indexing", table=placed.qualified_name, rows=sum(rows.values())))
                self._check_count(placed, rows[table_id])
                target.finish_table(session, placed)
        created = [p for table_id, p in plan.placed.items() if states[table_id].created]
        warnings = [] if plan.overlaps else target.finish_tables(session, created, list(plan.placed.values()))
        self._register(plan)
        target.commit_durably(session)
        with transaction(session):
            self._set_states(plan, parked)
        self._snapshots.close(plan.snapshot.snapshot_id)
        if plan.overlaps:
            return None
        self._report(LoadProgress(phase="done", rows=sum(rows.values()), rows_estimate=sum(rows.values())))
        return LoadReport(
            target=target.name,
            offset=plan.snapshot.offset,
            parked=sum(parked.values()),
            warnings=tuple(warnings),
            rows={p.qualified_name: rows[table_id] for table_id, p in plan.placed.items()},
            seconds=time.monotonic() - self._began,
            resumed_splits=self._resumed,
            left_out=tuple(target.list_left_out(list(plan.placed.values()))),
        )

    @contextmanager
    def _close_snapshot_if_unequal(self, plan: LoadPlan) -> Iterator[None]:
        """Close the snapshot if its rows are wrong, so that the next run starts from a new one."""
        try:
            yield
        except DigestMismatch:  # a damaged reply proves nothing about the loaded rows
            raise
        except (ProtocolError, UnequalRowCount, FormerKey):
            with suppress(VenusError):
                self._snapshots.close(plan.snapshot.snapshot_id)
            raise

    def _check_count(self, placed: TablePlace, loaded: int) -> None:
        """Compare the number of rows in a table with the number that was loaded.

        A scan of the whole table is deliberate, even for 10^9 rows. Each split is its own transaction, so no lock
        protects the table from the first split to the last, and a split counts only the rows that it sends. Only the
        table itself shows that a trigger has discarded rows, that another session has written to it, or that a failover
        of the target has lost commits. After this check the table is declared equal to the source. The scan is cheaper
        than the index builds that follow.
        """
        if self._target.config.on_existing == "append":
            return
        found = self._target.count_rows(self._session, placed)
        if found != loaded:
            raise UnequalRowCount(
                f"{placed.qualified_name} has {found} rows after {loaded} were loaded",
                hint="another session has written to it; load it again without other writers",
            )

    def _register(self, plan: LoadPlan) -> None:
        """Register the group at the broker before the snapshot closes, so that increments after the cut are kept."""
        subscriber = Subscriber(self._target.broker, self._target.business, self._target.group, credit_bytes=1 << 16)
        try:
            subscriber.open(plan.snapshot.offset, 0, rows=reports.rows_identity(plan.snapshot))
            subscriber.acknowledge(plan.snapshot.offset)
        finally:
            subscriber.close()

    def _set_states(self, plan: LoadPlan, parked: dict[int, int]) -> None:
        """Set the applied offset to the snapshot's cut; mark the load as done unless the source is still being read."""
        target, session, snapshot = self._target, self._session, plan.snapshot
        target.run_own(
            session,
            "set_position",
            offset=snapshot.offset,
            epoch=snapshot.epoch,
            sequence=snapshot.sequence,
            rows=rows_to_text(reports.rows_identity(snapshot)),
        )
        if not plan.overlaps:
            target.run_own(session, "set_loaded", offset=snapshot.offset)
        for table_id, count in parked.items():
            if count and target.config.on_error != "quarantine":
                reason = f"the target refused {count_phrase(count, 'row')} of the full load"
                target.set_state(session, table_id, HALTED, held_from=snapshot.offset, reason=reason)
        target.run_own(session, "set_job", state=FOLLOWING if plan.overlaps else DONE)


def sum_totals(results: Iterable[SplitResult]) -> dict[int, RowTotals]:
    """Return the totals of the rows read, by table: loaded, parked, or outside of the predicate."""
    found: dict[int, RowTotals] = {}
    for result in results:
        totals = RowTotals(result.rows + result.parked + result.outside, int(result.digest, 16))
        found.setdefault(result.table_id, RowTotals()).include(totals)
    return found
