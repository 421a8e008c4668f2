"""The cut-over of one target, step by step; idempotent.

Read the state -> wait until drained -> watch that the source is at rest -> compare source, full data and target ->
check every foreign key -> set counters -> check that nothing moved -> mark -> finish. Every step before the mark may be
repeated at will; a rehearsal runs only those steps. The mark is one transaction that locks the applied offset: after it
VENUS writes no row at this target. If the process is killed after the mark, the next run finishes: it enables the
actions of foreign keys and GENERATED ALWAYS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from venus.adapters.cutover import certificate
from venus.adapters.cutover.certificate import (
    ComparedTable,
    choose_left_out,
    describe_dangling,
    find_uncaptured_table_obstacles,
    left_out_document,
)
from venus.adapters.cutover.comparison import CutoverComparison, NotAtRest, VersionedTable, hash_target
from venus.adapters.cutover.direction import FallBackPair
from venus.adapters.cutover.lock_patience import LockPatience
from venus.adapters.cutover.readiness import (
    Readiness,
    counters_of,
    find_alarms,
    find_blocks,
    find_missing,
    find_movement,
    find_pending,
    read_readiness,
)
from venus.adapters.cutover.switch import Switch
from venus.adapters.dialects.contract import Source, UncapturedTable
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.contract import Target
from venus.adapters.targets.cutover_contract import (
    CounterSetting,
    CutoverMark,
    CutoverObstacle,
    CutoverTable,
    CutoverTarget,
    ReferenceCheck,
    SchemaDifference,
)
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.views import TargetTable
from venus.adapters.targets.way_back import WayBackLoss, find_obstacles
from venus.config import Settings
from venus.errors import Refused, SourceError
from venus.rpc.address import broker_address
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

LOOK_EVERY_S = 0.2
#: A process that is disconnected for less than this counts as reconnecting. The broker repeats an alarm for less than
#: this after its reason has ended, for example after the repair of a difference.
RECONNECT_S = 5.0
#: How long an undo waits for locks.
_UNDO_WAIT_S = 60.0

T = TypeVar("T")

#: (current step, done, total; 0 means not known)
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverRequest:
    """Options of a cut-over."""

    rehearse: bool = False
    wait_s: float = 60.0
    quiet_s: float = 5.0
    leave_invalid: bool = False
    #: The names of uncaptured tables that the operator leaves out.
    leave_out: tuple[str, ...] = ()
    leave_differences: bool = False
    #: The two databases between which the application can switch; None = no way back that keeps its writes.
    pair: FallBackPair | None = None
    #: Time and names, from the caller.
    head: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverOutcome:
    """Outcome of a cut-over. Only that of a rehearsal may have `blocks`, the obstacles that it found."""

    certificate: dict[str, Any]
    blocks: tuple[CutoverObstacle, ...] = ()
    already: bool = False
    resumed: bool = False


def run_cutover(
    settings: Settings, name: str, request: CutoverRequest, report: Report = lambda *_: None
) -> CutoverOutcome:
    """Cut target `name` over, or rehearse it.

    Raises Refused with one line for each obstacle, or ConfigError if that kind of target cannot be cut over.
    """
    target = open_target(settings, name)
    patience = LockPatience(request.wait_s, lambda text: report(text, 0, 0))
    with target.open_cutover() as session:
        patience.run(session.prepare)
        if request.pair is not None and not request.rehearse:
            session.lock_switch()
        mark = session.read_mark()
        if mark is not None and mark.done and request.pair is None:
            return CutoverOutcome(certificate=mark.certificate, already=True)
        with _open_cutover(settings, target, session, request, report, patience) as run:
            if mark is None:
                with run.reopen_on_failure():
                    return run.run()
            if not mark.done:
                return run.finish(mark.certificate, resumed=True)
            run.complete()
            return CutoverOutcome(certificate=mark.certificate, already=True)


def undo_switch(pair: FallBackPair, name: str) -> None:
    """Undo an unfinished switch: the database that accepted writes before accepts them again. Raises Refused."""
    settings = pair.settings_to(name)
    target = open_target(settings, name)
    with (
        target.open_cutover() as session,
        closing(open_source(settings)) as source,
        closing(Switch.connect(pair, name, source, LockPatience(_UNDO_WAIT_S))) as switch,
    ):
        switch.reopen(session)


def undo_target_cutover(settings: Settings, name: str, report: Report = lambda *_: None) -> CutoverMark:
    """Give a target back to VENUS, as it was before the mark. Raises Refused if the application has written to it."""
    target = open_target(settings, name)
    with target.open_cutover() as session:
        mark = session.read_mark()
        if mark is None:
            raise Refused(f"target {name} was not cut over: there is nothing to undo")
        with _open_cutover(settings, target, session, CutoverRequest(), report, LockPatience(_UNDO_WAIT_S)) as run:
            run.undo(mark)
    return mark


@contextmanager
def _open_cutover(
    settings: Settings,
    target: Target,
    session: CutoverTarget,
    request: CutoverRequest,
    report: Report,
    patience: LockPatience,
) -> Iterator[_Cutover]:
    """Yield a cut-over that is connected to source and broker and, with a way back, to both databases."""
    with ExitStack() as opened:
        source = opened.enter_context(closing(open_source(settings)))
        switch = None
        if request.pair is not None:
            switch = opened.enter_context(closing(Switch.connect(request.pair, target.name, source, patience)))
        admin = opened.enter_context(AdminClient(broker_address(settings)))
        yield _Cutover(settings, target, session, source, admin, request, report, patience, switch)


class _Cutover:
    """One run of a cut-over."""

    def __init__(
        self,
        settings: Settings,
        target: Target,
        session: CutoverTarget,
        source: Source,
        admin: AdminClient,
        request: CutoverRequest,
        report: Report,
        patience: LockPatience,
        switch: Switch | None = None,
    ) -> None:
        self._settings = settings
        self._target = target
        self._session = session
        self._source = source
        self._admin = admin
        self._switch = switch
        self._request = request
        self._report = report
        self._patience = patience
        self._blocks: list[CutoverObstacle] = []

    def run(self) -> CutoverOutcome:
        """Do everything up to the mark, then mark and finish; a rehearsal stops before the mark."""
        start = self._wait_until_drained()
        there = self._session.read_tables()
        self._add_obstacles(self._session.find_differences())
        schema = self._compare_schemas()
        losses = self._check_way_back(schema)
        self._check_quiet(start)
        numberings = self._source.dictionary.read_numberings()
        tables, snapshot = self._run_step(lambda: self._compare_tables(there, start))
        keys = self._check_references()
        counters = self._run_step(lambda: self._session.set_counters(numberings))
        end = self._wait_until_drained()
        self._add_obstacles(
            find_movement(start.counters, end.counters), "stop the application's writes at the source, and try again"
        )
        found = self._build_certificate(there, tables, keys, counters, snapshot, end)
        found |= certificate.schema_document(schema) | certificate.losses_document(losses)
        if self._request.rehearse:
            return CutoverOutcome(certificate=found, blocks=tuple(self._blocks))
        self._put_mark(found, end)
        return self.finish(found)

    def _run_step(self, step: Callable[[], T]) -> T:
        """Run a step at the target; repeat it while another session's lock prevents it. Raises LockTimeout."""
        return self._switch.run_step(self._switch.follower, step) if self._switch else self._patience.run(step)

    # -- obstacles -------------------------------------------------------------------------------------------------

    def _check_way_back(self, schema: Sequence[SchemaDifference]) -> list[WayBackLoss]:
        """Check that changes could come back, then let the target reject writes until it is the application's.

        Return the values and objects that the old database could not take back; empty without a way back.
        """
        if self._switch is None:
            return []
        self._report("checks the way back", 0, 0)
        losses = self._switch.find_losses(schema)
        self._add_obstacles([*self._switch.find_obstacles(), *find_obstacles(losses)])
        if not self._request.rehearse:
            self._switch.prepare()
        return losses

    def _add_obstacles(self, found: Sequence[CutoverObstacle], hint: str = "") -> None:
        """Record obstacles: a rehearsal continues and reports all of them, a real cut-over raises Refused."""
        if found and not self._request.rehearse:
            raise Refused("\n".join(b.line for b in found), hint=hint or "fix that, then run the command again")
        self._blocks += [b for b in found if b not in self._blocks]

    def _wait_until_drained(self) -> Readiness:
        """Wait until nothing is on its way to the target."""
        end = time.monotonic() + self._request.wait_s
        before: dict[str, int] | None = None
        there_at = time.monotonic()  # the last time at which all processes were connected and there was no alarm
        while True:
            readiness = self._run_step(self._read_readiness)
            before = readiness.counters if before is None else before
            if not readiness.at_target.loaded:
                raise Refused(find_blocks(readiness)[0].line)
            self._add_obstacles(
                [
                    *find_blocks(readiness),
                    *find_uncaptured_table_obstacles(readiness.uncaptured, self._choose_left_out(readiness)),
                ]
            )
            away = [*find_missing(readiness), *find_alarms(readiness, passing=False)]
            if not away:
                there_at = time.monotonic()
            elif time.monotonic() - there_at > RECONNECT_S:
                self._add_obstacles(away)
            waits = away + find_pending(readiness)
            if not waits:
                return readiness
            if self._blocks or time.monotonic() > end:
                self._add_obstacles(away)  # each of these obstacles names its own remedy
                # only changes that have passed show which tables are written to; waiting changes do not
                self._add_obstacles(
                    [*waits, *find_movement(before, readiness.counters)],
                    "stop the application's writes at the source; `venus status --watch` shows what is late",
                )
                return readiness
            self._report(f"waits: {waits[0].what}", 0, 0)
            time.sleep(LOOK_EVERY_S)

    def _read_readiness(self) -> Readiness:
        chosen, business = self._settings.source, self._settings.business.name
        return read_readiness(self._source, self._admin, business, self._session, chosen.tables, chosen.exclude)

    def _choose_left_out(self, readiness: Readiness) -> list[UncapturedTable]:
        """Return the uncaptured tables that the operator leaves out. Raises ConfigError."""
        return choose_left_out(readiness.uncaptured, self._request.leave_out)

    def _document_left_out(self, readiness: Readiness) -> list[dict[str, Any]]:
        """Return the tables of the source that the target does not have, for the certificate."""
        released = {name: why for name, why in readiness.released.items() if name not in readiness.gone}
        return left_out_document(self._choose_left_out(readiness), released)

    def _check_quiet(self, before: Readiness) -> None:
        """Watch the tables for `quiet_s` seconds. A table that changes during that time is an obstacle."""
        end = time.monotonic() + self._request.quiet_s
        while (left := end - time.monotonic()) > 0:
            self._report("watches for writes at the source", 0, 0)
            time.sleep(min(left, 1.0))
        after = self._wait_until_drained()
        self._add_obstacles(
            find_movement(before.counters, after.counters), "stop the application's writes at the source, and try again"
        )

    # -- proof -----------------------------------------------------------------------------------------------------

    def _compare_tables(
        self, there: Sequence[CutoverTable], start: Readiness
    ) -> tuple[list[ComparedTable], broker_pb2.Snapshot | None]:
        """Compare all tables on the three sides; a difference is an obstacle. Also return the full data's snapshot."""
        group = start.at_target.group
        try:
            with CutoverComparison(self._session, self._source, self._settings, group, self._report) as comparing:
                tables = comparing.compare(there)
        except (NotAtRest, SourceError) as error:
            if not self._request.rehearse:
                raise
            self._add_obstacles([CutoverObstacle(what=str(error), remedy=error.hint)])
            return [], None
        wrong = [t for t in tables if not t.is_equal]
        found = [CutoverObstacle(what=f"{t.table} is not the same everywhere: {t.difference}") for t in wrong]
        self._add_obstacles(found, f"`venus verify --target {self._target.name}` finds the rows")
        return tables, comparing.snapshot

    def _compare_schemas(self) -> list[SchemaDifference]:
        """Compare the schemas of the target's tables with those of the source, on which the application relies."""
        self._report("compares the schemas", 0, 0)
        found = self._run_step(self._session.find_schema_differences)
        if not self._request.leave_differences:
            hint = "run these at the target, or accept them all: --leave-differences"
            self._add_obstacles([d.block for d in found if d.blocks], hint)
        return found

    def _check_references(self) -> list[ReferenceCheck]:
        """Count the rows that violate each foreign key of the target; such rows are an obstacle."""
        self._report("checks the foreign keys", 0, 0)
        found = self._run_step(self._session.check_references)
        orphans = [f for f in found if f.orphans and not f.not_valid]
        if not self._request.leave_invalid:
            self._add_obstacles(
                [
                    CutoverObstacle(
                        what=f"foreign key {f.name} {f.shown}: {describe_dangling(f.orphans)}, for example {f.example}"
                    )
                    for f in orphans
                ],
                "fix the rows at the source, or let these keys hold for new rows only: --leave-invalid",
            )
        return found

    def _build_certificate(
        self,
        there: Sequence[CutoverTable],
        tables: Sequence[ComparedTable],
        keys: Sequence[ReferenceCheck],
        counters: Sequence[CounterSetting],
        snapshot: broker_pb2.Snapshot | None,
        end: Readiness,
    ) -> dict[str, Any]:
        conversion = self._target.build_ddl([t.schema for t in there], (), self._source.dictionary.read_other_objects())
        head = self._request.head | {
            "kind": "rehearsal" if self._request.rehearse else "certificate",
            "business": self._settings.business.name,
            "target": self._target.name,
            "sequence": int(snapshot.sequence) if snapshot else 0,
            "offset": int(snapshot.offset) if snapshot else 0,
            "committed_changes": {str(t): n for t, n in end.committed.items()},
        }
        return certificate.to_document(
            head=head,
            tables=tables,
            foreign_keys=keys,
            counters=counters,
            left_out=conversion.left_out,
            tables_left_out=self._document_left_out(end),
        )

    # -- final steps -----------------------------------------------------------------------------------------------

    def _put_mark(self, found: dict[str, Any], end: Readiness) -> None:
        """Store the mark: VENUS then writes no row here. Raises Refused if a table has changed since the checks."""

        def check_at_rest(tables: Sequence[TargetTable]) -> None:
            late = find_movement(end.counters, counters_of(tables))
            self._add_obstacles(late, "stop the application's writes at the source, and try again")

        if self._switch is None:
            self._run_step(lambda: self._session.put_mark(found, check_at_rest))
            return
        self._report(f"closes {self._switch.owner.name} and opens {self._switch.name}", 0, 0)
        at = self._switch.close_owner(lambda: check_at_rest(self._wait_until_drained().at_target.tables))
        self._wait_until_drained()
        # once more: numbers may have been drawn since, and now no further write can draw one
        numberings = self._source.dictionary.read_numberings()
        counters = self._run_step(lambda: self._session.set_counters(numberings))
        found = found | certificate.counters_document(counters) | {"switch": asdict(at)}
        self._switch.open(self._session, found, check_at_rest, at)

    def reopen_on_failure(self) -> AbstractContextManager[None]:
        """Return a context that undoes an unfinished switch if its block fails; a rehearsal changes nothing."""
        if self._switch is None or self._request.rehearse:
            return nullcontext()
        return self._switch.reopen_on_failure(self._session)

    def complete(self) -> None:
        """Let the application's former database follow, if there is a way back and it does not follow yet."""
        if self._switch is not None:
            self._switch.complete()

    def finish(self, found: dict[str, Any], *, resumed: bool = False) -> CutoverOutcome:
        """Enable what would have disturbed VENUS (foreign keys, GENERATED ALWAYS); complete the switch and the mark."""
        self._session.read_tables()
        self._report("enforces the foreign keys", 0, 0)
        numberings = self._source.dictionary.read_numberings()
        warnings = self._run_step(lambda: self._session.enforce(_violated_keys(found), numberings))
        found = found | {"warnings": warnings}
        self.complete()
        self._run_step(lambda: self._session.finish_mark(found))
        return CutoverOutcome(certificate=found, resumed=resumed)

    def undo(self, mark: CutoverMark) -> None:
        """Compare the target with its certificate, then revert `finish` and the mark."""
        session = self._session
        tables = [VersionedTable(t, (t.schema,)) for t in session.read_tables()]
        certified = {t["target_table"]: t["hash"]["target"] for t in mark.certificate["tables"]}
        now = self._run_step(lambda: self._hash_tables(tables))
        written = [
            CutoverObstacle(what=f"{table} has been written to since the cut-over")
            for table in now
            if now[table] != certified.get(table)
        ]
        self._add_obstacles(written, "these changes exist only here: carry them over by hand, or load another target")
        numberings = self._source.dictionary.read_numberings()
        self._run_step(lambda: session.relax(_violated_keys(mark.certificate), numberings))
        self._target.record_comparison(certificate.certified_comparison(mark.certificate, mark.marked_at))
        self._run_step(session.remove_mark)

    def _hash_tables(self, tables: Sequence[VersionedTable]) -> dict[str, str]:
        with self._session.open_snapshot():
            return {t.there.name: hash_target(self._session, t, self._report_rows).text for t in tables}

    def _report_rows(self, table: str, rows: int) -> None:
        self._report(f"hashes target: {table}", rows, 0)


def _violated_keys(found: dict[str, Any]) -> set[str]:
    """Return the foreign keys that rows violate."""
    return {f["name"] for f in found["foreign_keys"] if f["orphans"]}
