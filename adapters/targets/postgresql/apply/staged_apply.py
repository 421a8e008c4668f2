"""The scale-out apply: tasks stage changes in parallel, and one transaction merges them (VENUS 3.4).

The scale-out apply always covers the range between the target's own applied offset and a requested end. A repeated
request finds nothing left to do, even after a driver was killed and its checkpoint deleted. The transaction moves the
applied offset only if it still has the expected value. Everything unusual (a marker, a new version, a table that does
not follow, a refused row) and everything small is applied by the ordinary path, `run_apply`, up to the requested end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from venus.adapters.targets.postgresql.apply.staged_task import (
    StagedTable,
    StageReceipt,
    StageTask,
    stage_prefix,
    stage_range,
)
from venus.adapters.targets.postgresql.database import (
    PostgresDatabase,
    lock_target,
    refuse_acting_foreign_keys,
)
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.targets.relational import catalogue as catalogues
from venus.adapters.targets.relational.apply_loop import ApplyLoop, ApplyReport, Report
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.session import Superseded
from venus.adapters.targets.relational.start_over import apply_configuration, start_over
from venus.adapters.targets.relational.states import CATCHUP, RESYNC
from venus.config import Settings
from venus.errors import DatabaseUnavailable, Diverged, ProtocolError, TargetError, VenusError
from venus.process.runners import Runner
from venus.rpc.conditions import ROWS_EVERY_S, switch_conditions
from venus.rpc.subscriber import Subscriber

logger = logging.getLogger(__name__)

#: The smallest number of offsets that is worth a task.
PIECE_OFFSETS_MIN = 5_000
#: A micro-batch contains at least one whole cut. Above this multiple of its limit, the ordinary path streams it.
STAGED_TIMES = 4
PAUSE_S = 0.5
RETRY_MAX_S = 15.0


class StagedApply:
    """Scale-out apply to one target: tasks stage the changes below an offset, and one transaction merges them."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        runner: Runner,
        stop: threading.Event,
        report: Report | None = None,
        *,
        describe_switch: Callable[[], str] = lambda: "",
    ) -> None:
        self._settings, self._name, self._runner, self._stop = settings, name, runner, stop
        self._target = PostgresDatabase(settings, name)
        self._report = report
        self._loop = ApplyLoop(name, stop, report)
        self._subscriber: Subscriber | None = None
        self._log_start = 0
        self._describe_switch = describe_switch
        #: The last report about an unfinished switch, and the lock that lets only one thread work at the target.
        self._switch, self._lock = "", threading.Lock()
        self._row_counts: dict[int, int] = {}
        self._counted_at_us = 0
        #: How many micro-batches were staged, and how many took the ordinary path.
        self.staged = self.ordinary = 0

    def start(self) -> tuple[int, int]:
        """Drop the staging tables of killed runs; return the applied offset and its epoch. Raises Refused."""
        with _LockedSession(self._target, self._stop) as opened:
            opened.drop_stages()
            position = opened.catalogue.position
            if self._start_over_if_trimmed(opened):
                position = catalogues.read_catalogue(self._target, opened.session).position
        self._loop.record_start(position.offset)
        return position.offset, position.epoch

    def _start_over_if_trimmed(self, opened: _LockedSession) -> bool:
        """Start over from the full data if the applied offset was trimmed; return whether that happened."""
        try:
            self._subscribe(opened)
        except Diverged as error:
            if not start_over(self._target, opened.session, opened.catalogue, error):
                raise
            return True
        except VenusError as error:
            if not error.retryable:
                raise
        return False

    def apply_up_to(self, end: int) -> None:
        """Apply every change below `end`, and retry after transient errors. Raises all other errors."""
        with self._lock:
            self._apply_up_to(end)

    def report_switch(self) -> None:
        """Report to the broker that a switch of the application is unfinished or has ended. Cheap to call often."""
        if self._describe_switch() != self._switch and self._lock.acquire(blocking=False):
            try:
                self._try_apply(0)
            except VenusError as error:
                if not self._loop.is_waited_for(error):
                    raise
                self._disconnect()
            finally:
                self._lock.release()

    def _apply_up_to(self, end: int) -> None:
        """Do the work of `apply_up_to` until it is done or stopped, while the caller holds the lock."""
        wait_s = PAUSE_S
        while not self._stop.is_set():
            try:
                if self._try_apply(end):
                    return
                wait_s = PAUSE_S
            except VenusError as error:
                if not self._loop.is_waited_for(error):
                    raise
                self._loop.on_retry(error)
                self._disconnect()
                self._stop.wait(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)

    def close(self) -> None:
        """Close the connection to the broker."""
        self._disconnect()

    def _try_apply(self, end: int) -> bool:
        """Try once to apply every change below `end`; return False if the target is paused."""
        with _LockedSession(self._target, self._stop) as opened:
            self._loop.log_constraints(self._target.constraints_text(is_deferred=opened.defer))
            self._subscribe(opened)
            self._loop.clearing.step(self._target, opened.session)
            position = opened.catalogue.position
            if position.paused:
                self._loop.report(opened.catalogue.held_tables())
                self._stop.wait(PAUSE_S)
                return False
            if position.offset >= end:
                return True
            if self._should_stage(end - position.offset) and opened.has_ordinary_tables and self._stage(opened, end):
                self._acknowledge(opened)
                return True
        self._apply_ordinarily(end)
        return True

    def _should_stage(self, offsets: int) -> bool:
        """Return whether tasks should stage this number of changes, which is limited by the memory of each task."""
        spark = self._settings.spark
        return spark.stage_rows_min <= offsets <= STAGED_TIMES * spark.batch_rows_max

    # -- the broker's view of this group ---------------------------------------------------------------------------

    def _subscribe(self, opened: _LockedSession) -> None:
        """Connect as the target's group without reading: the broker learns the applied offset and keeps the rest."""
        if self._subscriber is None:
            subscriber = Subscriber(self._target.broker, self._target.business, self._target.group, credit_bytes=1)
            try:
                position = opened.catalogue.position
                found = subscriber.open(
                    position.offset, position.epoch, kept=opened.catalogue.keep_from(), rows=position.rows
                )
            except Diverged as error:
                subscriber.close()
                raise self._target.diverged_error(error) from error
            except BaseException:
                subscriber.close()
                raise
            self._subscriber, self._log_start = subscriber, found.log_start
        self._acknowledge(opened)

    def _acknowledge(self, opened: _LockedSession) -> None:
        """Acknowledge the applied offset, and report the state of the tables to the broker."""
        assert self._subscriber is not None
        missing = self._target.count_unaccounted(opened.session)
        if missing:
            logger.error("target %s: %s changes below its applied offset are unaccounted for", self._name, missing)
        catalogue = opened.catalogue
        kept = catalogue.keep_from(self._log_start)
        self._subscriber.acknowledge(catalogue.position.offset, kept=kept, unaccounted=missing)
        condition = catalogue.condition()
        self._count_rows(opened)
        figures = replace(condition.figures, rows=self._row_counts, counted_at_us=self._counted_at_us)
        self._switch = self._describe_switch()
        tables = (*switch_conditions(self._switch), *condition.tables)
        self._subscriber.report(replace(condition, tables=tables, figures=figures))

    def _count_rows(self, opened: _LockedSession) -> None:
        """Read the approximate row counts of the tables if that is due."""
        now_us = time.time_ns() // 1000
        if now_us - self._counted_at_us >= ROWS_EVERY_S * 1e6:
            self._row_counts, self._counted_at_us = self._target.read_row_counts(opened.session), now_us

    def _disconnect(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
        self._subscriber = None

    # -- the two paths ---------------------------------------------------------------------------------------------

    def _stage(self, opened: _LockedSession, end: int) -> bool:
        """Stage every change below `end` by tasks and merge them; return False if the ordinary path must apply them."""
        start = opened.catalogue.position.offset
        tasks = opened.build_tasks(start, end, self._settings.apply.load_workers)
        receipts = sorted(self._runner.run(stage_range, tasks), key=lambda r: r.start)
        try:
            odd = next((r.unusual for r in receipts if r.unusual), "")
            if odd:
                logger.info("target %s: offsets %s to %s take the ordinary path: %s", self._name, start, end, odd)
                return False
            opened.merge_receipts(receipts, end)
        except Superseded:
            raise DatabaseUnavailable("an operator has changed a state; reading the states again") from None
        except TargetError as refusal:
            logger.info("target %s: offsets %s to %s take the ordinary path: %s", self._name, start, end, refusal)
            return False
        finally:
            opened.session.rollback()
            opened.drop_stages()
        self.staged += 1
        self._loop.record_applied(end, end - start)
        self._loop.report(opened.catalogue.held_tables())
        return True

    def _apply_ordinarily(self, end: int) -> None:
        """Run the ordinary apply loop until `end` is applied and no table is still catching up or resyncing."""
        self._disconnect()
        inner = threading.Event()

        def report_and_stop_at_end(found: ApplyReport) -> None:
            if self._report is not None:
                self._report(found)
            tending = any(table.state == CATCHUP for table in found.held)
            if self._stop.is_set() or (found.offset >= end and not tending and not self._is_resyncing()):
                inner.set()

        run_apply(self._settings, self._name, inner, report_and_stop_at_end, describe_switch=self._describe_switch)
        self._switch = ""  # the session's end also ends the reports
        self.ordinary += 1

    def _is_resyncing(self) -> bool:
        session = self._target.connect("look")
        try:
            return any(purpose == RESYNC for _, purpose, _ in self._target.read_own_rows(session, "sweeps"))
        finally:
            session.close()


class _LockedSession:
    """One session that has locked the target, and a copy of VENUS's own tables there."""

    def __init__(self, target: PostgresDatabase, stop: threading.Event) -> None:
        self._target = target
        self.session: TargetSession = target.connect()
        try:
            self.defer = not lock_target(target, self.session, stop)
            self.catalogue: TargetCatalogue = catalogues.read_catalogue(target, self.session)
            while apply_configuration(target, self.session, self.catalogue):
                self.catalogue = catalogues.read_catalogue(target, self.session)
            if self.defer:
                refuse_acting_foreign_keys(self.session, target, list(self.catalogue.tables.values()))
        except BaseException:
            self.session.close()
            raise

    def __enter__(self) -> _LockedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    @property
    def has_ordinary_tables(self) -> bool:
        """Whether every table follows and nothing is parked, swept or resynced."""
        catalogue = self.catalogue
        return not (catalogue.held_tables() or catalogue.parked or catalogue.sweeps)

    def build_tasks(self, start: int, end: int, workers: int) -> list[StageTask]:
        """Divide the offsets from `start` to `end` into ranges, and return a staging task for each range."""
        target, catalogue = self._target, self.catalogue
        tables = {
            t.table_id: target.place(catalogue.schema(t.table_id, t.schema_version)) for t in catalogue.tables.values()
        }
        heartbeats = {key: schema for key, schema in catalogue.schemas.items() if schema.is_heartbeat}
        pieces = max(1, min(workers, (end - start) // PIECE_OFFSETS_MIN))
        bounds = [start + (end - start) * i // pieces for i in range(pieces + 1)]
        whole = StageTask(
            url=target.worker_url,
            broker=target.broker,
            business=target.business,
            group=target.group,
            start=start,
            end=end,
            tables=tables,
            heartbeats=heartbeats,
            known=frozenset(catalogue.schemas),
            predicates={t.table_id: t.predicate for t in catalogue.tables.values() if t.predicate},
            rows=catalogue.position.rows,
            rows_at=catalogue.position.offset,
            masking_key=target.columns.key,
        )
        return [replace(whole, start=bounds[i], end=bounds[i + 1]) for i in range(pieces)]

    def merge_receipts(self, receipts: Sequence[StageReceipt], end: int) -> None:
        """Merge all staged changes in order and move the applied offset to `end`, in one transaction."""
        session, target = self.session, self._target
        assert [r.end for r in receipts[:-1]] == [r.start for r in receipts[1:]]
        assert receipts[-1].end == end
        position = self.catalogue.position
        met = sum(r.other for r in receipts) + sum(s.changes for r in receipts for s in r.staged)
        if met != end - position.offset:
            raise ProtocolError(f"{met} changes were staged of {end - position.offset} from {position.offset} on")
        found = session.row(f"BEGIN; {target.own_text(session, 'hold_position')}")
        if found != (position.offset, position.control):
            raise Superseded("another process has changed the state of this target")
        if self.defer:
            session.run("SET CONSTRAINTS ALL DEFERRED")
        for receipt in receipts:
            for staged in receipt.staged:
                session.run("; ".join(self._merge_texts(staged)))
        session.run("; ".join([*self._count_texts(receipts), self._advance_text(receipts, end), "COMMIT"]))
        self.catalogue.record_position(end, receipts[-1].epoch)

    def _merge_texts(self, staged: StagedTable) -> list[str]:
        """Return the statements that merge the staging tables of one table into that table."""
        state = self.catalogue.tables[staged.table_id]
        sql = self.catalogue.sql(self._target, staged.table_id, state.schema_version)
        texts = [sql.text("delete_staged", stage=staged.gone, staged=str(staged.changes))] if staged.gone else []
        return texts + ([sql.text("upsert_staged", stage=staged.live)] if staged.live else [])

    def _count_texts(self, receipts: Sequence[StageReceipt]) -> list[str]:
        """Return the statements that add the merged changes to the counters of the tables."""
        applied: dict[int, int] = {}
        for staged in (s for r in receipts for s in r.staged):
            applied[staged.table_id] = applied.get(staged.table_id, 0) + staged.changes
        return [
            self._target.own_text(
                self.session, "count", table_id=table_id, applied=rows, quarantined=0, skipped=0, held=0
            )
            for table_id, rows in applied.items()
        ]

    def _advance_text(self, receipts: Sequence[StageReceipt], end: int) -> str:
        """Return the statement that moves the applied offset to `end` if it still has its expected value."""
        position, last = self.catalogue.position, receipts[-1]
        beats = [r.heartbeat_us for r in receipts if r.heartbeat_us is not None]
        return self._target.own_text(
            self.session,
            "advance",
            expected=position.offset,
            control=position.control,
            offset=end,
            epoch=last.epoch,
            sequence=last.sequence,
            captured_us=last.captured_us or None,
            committed_us=last.committed_us or None,
            heartbeat_us=beats[-1] if beats else None,
            other=sum(r.other for r in receipts),
        )

    def drop_stages(self) -> None:
        """Drop every staging table of this target, including those of killed attempts."""
        prefix = {"own": OWN_SCHEMA, "prefix": stage_prefix(self._target.group)}
        names = [row[0] for row in self.session.rows(statement("staged", "stages"), prefix)]
        for name in names:
            self.session.run(statement("staged", "drop_stage", stage=f"{OWN_SCHEMA}.{name}"))
