"""The cut-over of one target, step by step (features 2, 41). Run it twice and nothing happens twice.

look -> wait until drained -> watch whether the source is at rest -> compare source, full data and target -> ask every
foreign key -> set counters -> look again whether anything moved -> mark -> finish. Everything up to the mark may be
repeated as often as one likes, and is what a rehearsal does. The mark is one transaction that holds the applied offset:
from there on VENUS writes no row at this target. What is left then (actions of foreign keys, GENERATED ALWAYS) is done
again by the next run if this one is killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from venus.adapters.cutover import certificate, heirs, references
from venus.adapters.cutover.certificate import Compared
from venus.adapters.cutover.comparing import Comparing
from venus.adapters.cutover.counters import Counter, always, set_counters
from venus.adapters.cutover.legs import NotAtRest, Table, target_hash
from venus.adapters.cutover.readiness import Block, Readiness, blocks, look, moved, pending
from venus.adapters.dialects.contract import Numbering, Source
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.postgresql import cutmark
from venus.adapters.targets.postgresql.cutmark import sql
from venus.adapters.targets.postgresql.database import PostgresTarget, transaction
from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.schema.ddl_file import convert
from venus.adapters.targets.postgresql.session import Session
from venus.config import Settings
from venus.errors import Refused, SourceError
from venus.rpc.admin import Admin
from venus.wire import broker_pb2

LOOK_EVERY_S = 0.2

#: (what is being done, how far, of how many; 0 = not known)
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the operator asks for."""

    rehearse: bool = False
    wait_s: float = 60.0
    quiet_s: float = 5.0
    leave_invalid: bool = False
    #: When, and who: time and names are the caller's.
    head: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What has become of it. `blocks` is not empty only for a rehearsal."""

    certificate: dict[str, Any]
    blocks: tuple[Block, ...] = ()
    already: bool = False
    resumed: bool = False


def cutover(settings: Settings, name: str, wish: Wish, report: Report = lambda *_: None) -> Outcome:
    """Cut target `name` over, or rehearse it. Raises Refused with one line for each thing that forbids it."""
    target = PostgresTarget(settings, name)
    with _session(target) as session:
        if not target.installed(session):
            raise Refused(f"target {name} has not been loaded yet", hint=f"venus migrate --target {name}")
        target.install()
        mark = cutmark.read(target, session)
        if mark is not None and mark.state == cutmark.DONE:
            return Outcome(certificate=mark.certificate, already=True)
        source = open_source(settings)
        try:
            with Admin(target.broker) as admin:
                run = _Cutover(target, session, source, admin, wish, report)
                return run.finish(mark.certificate, resumed=True) if mark is not None else run.run()
        finally:
            source.close()


@contextmanager
def _session(target: PostgresTarget) -> Iterator[Session]:
    session = target.connect("cutover")
    try:
        yield session
    finally:
        session.rollback()
        session.close()


class _Cutover:
    """One run."""

    def __init__(
        self, target: PostgresTarget, session: Session, source: Source, admin: Admin, wish: Wish, report: Report
    ) -> None:
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
        placed, created = self._placed(start)
        self._add(list(heirs.unlike(self._session, placed)))
        numberings = self._source.numberings()
        tables, snapshot = self._compared(placed)
        keys = self._asked(placed, created)
        counters = set_counters(self._session, placed, numberings, self._target.config.schema_)
        end = self._drained()
        self._add(moved(start.counters, end.counters), "stop the application's writes at the source, and try again")
        found = self._certificate(placed, tables, keys, counters, snapshot, end)
        if self._wish.rehearse:
            return Outcome(certificate=found, blocks=tuple(self._blocks))
        self._mark(found, end)
        return self.finish(found)

    # -- what forbids it -------------------------------------------------------------------------------------------

    def _add(self, found: Sequence[Block], hint: str = "") -> None:
        """Take note of what forbids the cut-over: a rehearsal goes on and tells of everything, the real one stops."""
        if found and not self._wish.rehearse:
            raise Refused("\n".join(b.line for b in found), hint=hint or "fix that, then run the command again")
        self._blocks += [b for b in found if b not in self._blocks]

    def _drained(self) -> Readiness:
        """Wait until nothing is on its way to the target."""
        end = time.monotonic() + self._wish.wait_s
        before: dict[str, int] | None = None
        while True:
            readiness = look(self._source, self._admin, self._target, self._session)
            before = readiness.counters if before is None else before
            if readiness.position is None:
                raise Refused(blocks(readiness)[0].line)
            self._add(blocks(readiness))
            waits = pending(readiness)
            if not waits:
                return readiness
            if self._blocks or time.monotonic() > end:
                # where a change of theirs is at this moment does not say who writes; what has passed does
                self._add(
                    [*waits, *moved(before, readiness.counters)],
                    "stop the application's writes at the source; `venus status --watch` shows what is late",
                )
                return readiness
            self._report(f"waits: {waits[0].what}", 0, 0)
            time.sleep(LOOK_EVERY_S)

    def _watch(self, before: Readiness) -> None:
        """See whether the source is at rest."""
        end = time.monotonic() + self._wish.quiet_s
        while (left := end - time.monotonic()) > 0:
            self._report("watches for writes at the source", 0, 0)
            time.sleep(min(left, 1.0))
        after = self._drained()
        self._add(moved(before.counters, after.counters), "stop the application's writes at the source, and try again")

    # -- what is proved --------------------------------------------------------------------------------------------

    def _placed(self, readiness: Readiness) -> tuple[list[Placed], list[Placed]]:
        """Return the tables in their newest versions, and those of them that VENUS has made."""
        newest = {(s.table_id, s.version): s for s in self._target.schemas(self._session)}
        found = [
            (self._target.place(newest[t.table_id, t.schema_version]), t.created)
            for t in readiness.tables
            if (t.table_id, t.schema_version) in newest
        ]
        placed = [(p, created) for p, created in found if not p.schema.is_heartbeat]
        return [p for p, _ in placed], [p for p, created in placed if created]

    def _compared(self, placed: Sequence[Placed]) -> tuple[list[Compared], broker_pb2.Snapshot | None]:
        try:
            with Comparing(self._target, self._session, self._source, self._report) as comparing:
                tables = comparing.compare(placed)
        except (NotAtRest, SourceError) as error:
            if not self._wish.rehearse:
                raise
            self._add([Block(what=str(error), remedy=error.hint)])
            return [], None
        wrong = [t for t in tables if not t.equal]
        found = [Block(what=f"{t.table} is not the same everywhere: {_counts(t)}") for t in wrong]
        self._add(found, f"`venus verify --target {self._target.name}` finds the rows")
        return tables, comparing.snapshot

    def _asked(self, placed: Sequence[Placed], created: Sequence[Placed]) -> list[references.Found]:
        self._report("checks the foreign keys", 0, 0)
        there = references.present(self._session, placed)
        found = references.asked(self._session, there, references.planned(placed, created))
        orphans = [f for f in found if f.orphans]
        if not self._wish.leave_invalid:
            self._add(
                [Block(what=f"foreign key {f.name} {f.shown}: {f.orphans:,} rows refer to nothing, for example "
                       f"{f.example}") for f in orphans],
                "fix the rows at the source, or let these keys hold for new rows only: --leave-invalid",
            )  # fmt: skip
        return found

    def _certificate(
        self, placed: Sequence[Placed], tables: Sequence[Compared], keys: Sequence[references.Found],
        counters: Sequence[Counter], snapshot: broker_pb2.Snapshot | None, end: Readiness,
    ) -> dict[str, Any]:  # fmt: skip
        settings, target = self._target.settings, self._target
        conversion = convert([p.schema for p in placed], settings, target.name, (), self._source.other_objects())
        head = self._wish.head | {
            "kind": "rehearsal" if self._wish.rehearse else "certificate",
            "business": target.business,
            "target": target.name,
            "sequence": int(snapshot.sequence) if snapshot else 0,
            "offset": int(snapshot.offset) if snapshot else 0,
            "committed_changes": {str(t): n for t, n in end.committed.items()},
        }
        return certificate.document(
            head=head, tables=tables, foreign_keys=keys, counters=counters,
            left_out=[remark.line for remark in conversion.remarks],
        )  # fmt: skip

    # -- what is final ---------------------------------------------------------------------------------------------

    def _mark(self, found: dict[str, Any], end: Readiness) -> None:
        """Stop VENUS at this target, in one transaction, if nothing has moved since the comparison."""
        target, session = self._target, self._session
        with transaction(session):
            session.run("SET LOCAL venus.apply = 'on'")
            target.own(session, "hold_position")
            now = {t.source_name: t for t in target.tables(session)}
            counters = {n: t.rows_applied + t.rows_quarantined + t.rows_skipped + t.rows_held for n, t in now.items()}
            self._add(moved(end.counters, counters), "stop the application's writes at the source, and try again")
            values = {"group": target.group, "sequence": found["sequence"], "offset": found["offset"]}
            session.run(sql("put_mark"), values | {"certificate": json.dumps(found)})
            target.own(session, "set_paused", paused=True)
            target.own(session, "raise_control")

    def finish(self, found: dict[str, Any], *, resumed: bool = False) -> Outcome:
        """Put in force what would have disturbed VENUS: actions of foreign keys, GENERATED ALWAYS."""
        target, session = self._target, self._session
        readiness = look(self._source, self._admin, target, session)
        placed, created = self._placed(readiness)
        self._report("enforces the foreign keys", 0, 0)
        there, owed = references.present(session, placed), references.planned(placed, created)
        invalid = {f["name"] for f in found["foreign_keys"] if f["orphans"]}
        warnings = references.put_in_force(session, there, owed, invalid, acting=True)
        set_always(session, created, self._source.numberings(), how="ALWAYS")
        warnings += [
            f"check {name} of {t} has not met every row" for t, name in references.unvalidated_checks(session, placed)
        ]
        found = found | {"warnings": warnings}
        session.run(sql("finish_mark"), {"group": target.group, "certificate": json.dumps(found)})
        return Outcome(certificate=found, resumed=resumed)

    def undo(self, mark: cutmark.Mark) -> None:
        """Compare the target with its certificate, then take back what `finish` and the mark have done."""
        target, session = self._target, self._session
        placed, created = self._placed(look(self._source, self._admin, target, session))
        certified = {t["target_table"]: t["hash"]["target"] for t in mark.certificate["tables"]}
        session.run(sql("begin_reading"))
        now = {p.qualified: target_hash(session, Table(p, (p.schema,)), self._told).text for p in placed}
        session.rollback()
        written = [Block(what=f"{table} has been written to since the cut-over") for table in now
                   if now[table] != certified.get(table)]  # fmt: skip
        self._add(written, "these changes exist only here: carry them over by hand, or load another target")
        there, owed = references.present(session, placed), references.planned(placed, created)
        invalid = {f["name"] for f in mark.certificate["foreign_keys"] if f["orphans"]}
        references.put_in_force(session, there, owed, invalid, acting=False)
        set_always(session, created, self._source.numberings(), how="BY DEFAULT")
        with transaction(session):
            target.own(session, "hold_position")
            session.run(sql("remove_mark"), {"group": target.group})
            target.own(session, "set_paused", paused=False)
            target.own(session, "raise_control")

    def _told(self, table: str, rows: int) -> None:
        self._report(f"hashes target: {table}", rows, 0)


def undo(settings: Settings, name: str, report: Report = lambda *_: None) -> cutmark.Mark:
    """Give a target back to VENUS, as it was before the mark. Raises Refused if anybody has written there since."""
    target = PostgresTarget(settings, name)
    with _session(target) as session:
        mark = cutmark.read(target, session)
        if mark is None:
            raise Refused(f"target {name} was not cut over: there is nothing to undo")
        source = open_source(settings)
        try:
            with Admin(target.broker) as admin:
                run = _Cutover(target, session, source, admin, Wish(), report)
                run.undo(mark)
        finally:
            source.close()
    return mark


def set_always(session: Session, created: Sequence[Placed], numberings: Sequence[Numbering], *, how: str) -> None:
    """Let identities be what they are at the source, or what VENUS needs."""
    for placed, column in always(created, numberings):
        session.run(sql("set_generated", table=placed.sql, column=column, how=how))


def _counts(table: Compared) -> str:
    return f"source {table.source.rows:,} rows, full data {table.full.rows:,}, target {table.target.rows:,}"
