"""The cut-over of one target, step by step (features 2, 41); idempotent.

Read the state -> wait until drained -> watch that the source is at rest -> compare source, full data and target ->
check every foreign key -> set counters -> check that nothing moved -> mark -> finish. Everything up to the mark may be
repeated at will, and is what a rehearsal does. The mark is one transaction that holds the applied offset:
from there on VENUS writes no row at this target. What is left then (actions of foreign keys, GENERATED ALWAYS) is done
again by the next run if this one is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from venus.adapters.cutover import certificate
from venus.adapters.cutover.certificate import Compared, choose_left_out, dangling, left_out_document, uncaptured_blocks
from venus.adapters.cutover.legs import Comparing, NotAtRest, Table, target_hash
from venus.adapters.cutover.readiness import Readiness, absent, blocks, counters_of, look, moved, pending
from venus.adapters.dialects.contract import Source, UncapturedTable
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.contract import Target
from venus.adapters.targets.cutting import Block, Counter, CutoverTarget, Mark, Reference, SchemaDifference, TableThere
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.views import TargetTable
from venus.config import Settings
from venus.errors import Refused, SourceError
from venus.rpc.address import broker_of
from venus.rpc.admin import Admin
from venus.wire import broker_pb2

LOOK_EVERY_S = 0.2
#: A process that is away for less than this counts as reconnecting.
RECONNECT_S = 5.0

#: (current step, done, total; 0 means not known)
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Options of a cut-over."""

    rehearse: bool = False
    wait_s: float = 60.0
    quiet_s: float = 5.0
    leave_invalid: bool = False
    #: Tables that are not captured and are left out.
    leave_out: tuple[str, ...] = ()
    leave_differences: bool = False
    #: Time and names, from the caller.
    head: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a cut-over. Only a rehearsal may have `blocks`."""

    certificate: dict[str, Any]
    blocks: tuple[Block, ...] = ()
    already: bool = False
    resumed: bool = False


def cutover(settings: Settings, name: str, wish: Wish, report: Report = lambda *_: None) -> Outcome:
    """Cut target `name` over, or rehearse it.

    Raises Refused with one line for each obstacle, ConfigError if that kind of target cannot be cut over.
    """
    target = open_target(settings, name)
    with target.cutover() as session:
        session.prepare()
        mark = session.mark()
        if mark is not None and mark.done:
            return Outcome(certificate=mark.certificate, already=True)
        with _running(settings, target, session, wish, report) as run:
            return run.finish(mark.certificate, resumed=True) if mark is not None else run.run()


def undo(settings: Settings, name: str, report: Report = lambda *_: None) -> Mark:
    """Return a target to VENUS, as it was before the mark. Raises Refused if it has been written to since."""
    target = open_target(settings, name)
    with target.cutover() as session:
        mark = session.mark()
        if mark is None:
            raise Refused(f"target {name} was not cut over: there is nothing to undo")
        with _running(settings, target, session, Wish(), report) as run:
            run.undo(mark)
    return mark


@contextmanager
def _running(
    settings: Settings, target: Target, session: CutoverTarget, wish: Wish, report: Report
) -> Iterator[_Cutover]:
    source = open_source(settings)
    try:
        with Admin(broker_of(settings)) as admin:
            yield _Cutover(settings, target, session, source, admin, wish, report)
    finally:
        source.close()


class _Cutover:
    """One run of a cut-over."""

    def __init__(
        self,
        settings: Settings,
        target: Target,
        session: CutoverTarget,
        source: Source,
        admin: Admin,
        wish: Wish,
        report: Report,
    ) -> None:
        self._settings = settings
        self._target = target
        self._session = session
        self._source = source
        self._admin = admin
        self._wish = wish
        self._report = report
        self._blocks: list[Block] = []

    def run(self) -> Outcome:
        """Do everything up to the mark, then mark and finish; a rehearsal stops before."""
        start = self._drained()
        self._watch(start)
        there = self._session.tables()
        self._add(self._session.differences())
        schema = self._compare_schemas()
        numberings = self._source.numberings()
        tables, snapshot = self._compared(there, start)
        keys = self._asked()
        counters = self._session.set_counters(numberings)
        end = self._drained()
        self._add(moved(start.counters, end.counters), "stop the application's writes at the source, and try again")
        found = self._certificate(there, tables, keys, counters, snapshot, end) | certificate.schema(schema)
        if self._wish.rehearse:
            return Outcome(certificate=found, blocks=tuple(self._blocks))
        self._mark(found, end)
        return self.finish(found)

    # -- what forbids it -------------------------------------------------------------------------------------------

    def _add(self, found: Sequence[Block], hint: str = "") -> None:
        """Record obstacles: a rehearsal continues and reports all of them, a real cut-over raises Refused."""
        if found and not self._wish.rehearse:
            raise Refused("\n".join(b.line for b in found), hint=hint or "fix that, then run the command again")
        self._blocks += [b for b in found if b not in self._blocks]

    def _drained(self) -> Readiness:
        """Wait until nothing is on its way to the target."""
        end = time.monotonic() + self._wish.wait_s
        before: dict[str, int] | None = None
        there_at = time.monotonic()  # when all processes were last there
        while True:
            chosen = self._settings.source
            readiness = look(
                self._source, self._admin, self._settings.business.name, self._session, chosen.tables, chosen.exclude
            )
            before = readiness.counters if before is None else before
            if not readiness.at_target.loaded:
                raise Refused(blocks(readiness)[0].line)
            self._add([*blocks(readiness), *uncaptured_blocks(readiness.uncaptured, self._left_out(readiness))])
            away = absent(readiness)
            if not away:
                there_at = time.monotonic()
            elif time.monotonic() - there_at > RECONNECT_S:
                self._add(away)
            waits = away + pending(readiness)
            if not waits:
                return readiness
            if self._blocks or time.monotonic() > end:
                self._add(away)  # it has its own remedy
                # waiting changes do not show which tables are written to; changes that have passed do
                self._add(
                    [*waits, *moved(before, readiness.counters)],
                    "stop the application's writes at the source; `venus status --watch` shows what is late",
                )
                return readiness
            self._report(f"waits: {waits[0].what}", 0, 0)
            time.sleep(LOOK_EVERY_S)

    def _left_out(self, readiness: Readiness) -> list[UncapturedTable]:
        """Return the tables that are not captured and that the operator leaves out. Raises ConfigError."""
        return choose_left_out(readiness.uncaptured, self._wish.leave_out)

    def _not_captured(self, readiness: Readiness) -> list[dict[str, Any]]:
        """Return the tables of the source that the target does not have, for the certificate."""
        released = {name: why for name, why in readiness.released.items() if name not in readiness.gone}
        return left_out_document(self._left_out(readiness), released)

    def _watch(self, before: Readiness) -> None:
        """Check that the source is at rest."""
        end = time.monotonic() + self._wish.quiet_s
        while (left := end - time.monotonic()) > 0:
            self._report("watches for writes at the source", 0, 0)
            time.sleep(min(left, 1.0))
        after = self._drained()
        self._add(moved(before.counters, after.counters), "stop the application's writes at the source, and try again")

    # -- what is proved --------------------------------------------------------------------------------------------

    def _compared(
        self, there: Sequence[TableThere], start: Readiness
    ) -> tuple[list[Compared], broker_pb2.Snapshot | None]:
        group = start.at_target.group
        try:
            with Comparing(self._session, self._source, self._settings, group, self._report) as comparing:
                tables = comparing.compare(there)
        except (NotAtRest, SourceError) as error:
            if not self._wish.rehearse:
                raise
            self._add([Block(what=str(error), remedy=error.hint)])
            return [], None
        wrong = [t for t in tables if not t.equal]
        found = [Block(what=f"{t.table} is not the same everywhere: {t.difference}") for t in wrong]
        self._add(found, f"`venus verify --target {self._target.name}` finds the rows")
        return tables, comparing.snapshot

    def _compare_schemas(self) -> list[SchemaDifference]:
        """Compare the schemas of the target's tables with those of the source, on which the application relies."""
        self._report("compares the schemas", 0, 0)
        found = self._session.schema_differences()
        if not self._wish.leave_differences:
            hint = "run these at the target, or accept them all: --leave-differences"
            self._add([d.block for d in found if d.blocks], hint)
        return found

    def _asked(self) -> list[Reference]:
        self._report("checks the foreign keys", 0, 0)
        found = self._session.references()
        orphans = [f for f in found if f.orphans and not f.not_valid]
        if not self._wish.leave_invalid:
            self._add(
                [Block(what=f"foreign key {f.name} {f.shown}: {dangling(f.orphans)}, for example {f.example}")
                 for f in orphans],
                "fix the rows at the source, or let these keys hold for new rows only: --leave-invalid",
            )  # fmt: skip
        return found

    def _certificate(
        self, there: Sequence[TableThere], tables: Sequence[Compared], keys: Sequence[Reference],
        counters: Sequence[Counter], snapshot: broker_pb2.Snapshot | None, end: Readiness,
    ) -> dict[str, Any]:  # fmt: skip
        conversion = self._target.conversion([t.schema for t in there], (), self._source.other_objects())
        head = self._wish.head | {
            "kind": "rehearsal" if self._wish.rehearse else "certificate",
            "business": self._settings.business.name,
            "target": self._target.name,
            "sequence": int(snapshot.sequence) if snapshot else 0,
            "offset": int(snapshot.offset) if snapshot else 0,
            "committed_changes": {str(t): n for t, n in end.committed.items()},
        }
        return certificate.document(
            head=head, tables=tables, foreign_keys=keys, counters=counters,
            left_out=conversion.left_out, tables_left_out=self._not_captured(end),
        )  # fmt: skip

    # -- what is final ---------------------------------------------------------------------------------------------

    def _mark(self, found: dict[str, Any], end: Readiness) -> None:
        """Stop VENUS at this target, if nothing has moved since the comparison."""

        def check(tables: Sequence[TargetTable]) -> None:
            late = moved(end.counters, counters_of(tables))
            self._add(late, "stop the application's writes at the source, and try again")

        self._session.put_mark(found, check)

    def finish(self, found: dict[str, Any], *, resumed: bool = False) -> Outcome:
        """Enable what would have disturbed VENUS: actions of foreign keys, GENERATED ALWAYS."""
        self._session.tables()
        self._report("enforces the foreign keys", 0, 0)
        warnings = self._session.enforce(_invalid(found), self._source.numberings())
        found = found | {"warnings": warnings}
        self._session.finish_mark(found)
        return Outcome(certificate=found, resumed=resumed)

    def undo(self, mark: Mark) -> None:
        """Compare the target with its certificate, then revert `finish` and the mark."""
        session = self._session
        tables = [Table(t, (t.schema,)) for t in session.tables()]
        certified = {t["target_table"]: t["hash"]["target"] for t in mark.certificate["tables"]}
        with session.reading():
            now = {t.there.name: target_hash(session, t, self._told).text for t in tables}
        written = [Block(what=f"{table} has been written to since the cut-over") for table in now
                   if now[table] != certified.get(table)]  # fmt: skip
        self._add(written, "these changes exist only here: carry them over by hand, or load another target")
        session.relax(_invalid(mark.certificate), self._source.numberings())
        session.remove_mark()

    def _told(self, table: str, rows: int) -> None:
        self._report(f"hashes target: {table}", rows, 0)


def _invalid(found: dict[str, Any]) -> set[str]:
    """Return the foreign keys that rows violate."""
    return {f["name"] for f in found["foreign_keys"] if f["orphans"]}
