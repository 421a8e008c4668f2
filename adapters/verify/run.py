"""`venus verify` without the command line: which legs, which tables, slice by slice, verdict (VENUS 3.3; spark.md 3).

The source and the target are compared with each other by default, and the full data is only asked about the rows that
differ: few rows move. `target` and `source` compare one end with the whole full data, which then all moves; the first
of them works with the source switched off.
"""

from __future__ import annotations

import fnmatch
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from venus import __version__
from venus.adapters.dialects.contract import RegisteredTable, SchemaChanged
from venus.adapters.dialects.verifying import Slice, Subject, open_reader
from venus.adapters.running import LocalRunner, Runner
from venus.adapters.under.naming import is_heartbeat
from venus.adapters.under.target import LOADING, PostgresTarget
from venus.adapters.verify.calibration import disagreement
from venus.adapters.verify.findings import Result, TableResult, Undecided
from venus.adapters.verify.full import opened_snapshot
from venus.adapters.verify.settling import Settling, undecided_rows
from venus.adapters.verify.slices import SLICE_ROWS, by_range, range_slices, sample, whole_slice
from venus.adapters.verify.tasks import Compared, Ends, Place, Suspect, Task, close_opened, compare_slice, opened
from venus.config import Settings
from venus.errors import ConfigError, SourceError, TargetError, VenusError
from venus.model import TableSchema
from venus.wire import broker_pb2

#: Legs by name; `ends` is what `auto` takes while the source can be reached.
LEGS: dict[str, tuple[tuple[Place, Place], ...]] = {
    "ends": ((Place.SOURCE, Place.TARGET),),
    "target": ((Place.FULL, Place.TARGET),),
    "source": ((Place.SOURCE, Place.FULL),),
    "all": ((Place.FULL, Place.TARGET), (Place.SOURCE, Place.FULL)),
}
LEG_NAMES = ("auto", *LEGS)
MODES = ("auto", "hash", "scan")
DIGESTS = ("md5", "sha256")
#: What a row costs here beside a row that is loaded, by which runners are chosen: reading one and summing it up is a
#: twentieth, and of one whose database computes the checksum this process sees nothing at all.
READ_ROWS_PER_ROW, PUSHED_ROWS_PER_ROW = 20, 400


class VerificationFailed(VenusError):
    """The comparison could not be made."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is compared, and how."""

    target: str
    leg: str = "auto"
    tables: tuple[str, ...] = ()
    where: str = ""
    mode: str = "auto"
    sample: float = 1.0
    seed: int = 0
    rows_per_s: float = 0.0
    wait_s: float = 30.0
    digest: str = "md5"
    differences_max: int = 100_000
    slice_rows: int = SLICE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a comparison is."""

    table: str
    rows: int
    rows_estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A table to be compared, or the reason why it cannot be."""

    subject: Subject
    note: str = ""
    obstacle: str = ""


Report = Callable[[Progress], None]
RunnerFor = Callable[[int], Runner]


def verify(
    settings: Settings, options: Options, *, runner_for: RunnerFor | None = None, report: Report | None = None
) -> Result:
    """Compare; changes nothing anywhere."""
    workers = settings.apply.load_workers
    run = _Run(
        settings, options, runner_for or (lambda rows: LocalRunner.for_rows(workers, rows)), report or (lambda _: None)
    )
    try:
        return run.run()
    finally:
        close_opened()


@dataclass(slots=True)
class _Run:
    settings: Settings
    options: Options
    runner_for: RunnerFor
    report: Report
    notes: list[str] = field(default_factory=list)

    def run(self) -> Result:
        began, options = time.monotonic(), self.options
        result = Result(
            business=self.settings.business.name, target=options.target, leg=options.leg, version=__version__,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"), sample=options.sample, where=options.where,
        )  # fmt: skip
        registered, result.leg = self._registered()
        if options.where and result.leg != "ends":
            raise ConfigError(
                f"--where is a condition in SQL, and --leg {result.leg} compares with the full data, which has none",
                hint="use --leg ends, or --table",
            )
        for left, right in LEGS[result.leg]:
            chosen = self._chosen(registered, left, right)
            table_ids = [c.subject.schema.table_id for c in chosen]
            address = self.settings.broker.address or self.settings.broker.listen
            holder = f"verify of {options.target}"
            with opened_snapshot(address, self.settings.business.name, table_ids, holder) as snapshot:
                ends = Ends(
                    settings=self.settings, left=left, right=right, target=options.target,
                    snapshot=snapshot.SerializeToString(),
                )  # fmt: skip
                for one in chosen:
                    result.tables.append(_Table(self, ends, one, snapshot).compare())
        result.notes, result.seconds = self.notes, time.monotonic() - began
        return result

    # -- what is compared --------------------------------------------------------------------------------------------

    def _registered(self) -> tuple[dict[int, RegisteredTable] | None, str]:
        """Return the source's registry if the leg needs it, and the leg that is taken."""
        leg = self.options.leg
        if leg == "target":
            return None, leg
        try:
            if not self.settings.source.url.get_secret_value():
                raise ConfigError("no [source] url is set", hint="set it, or use --leg target")
            with closing(open_reader(self.settings)) as reader:
                tables = [t for t in reader.tables() if not is_heartbeat(t.schema)]
        except VenusError as error:
            if leg != "auto":
                raise
            self.notes.append(f"the source is not compared: {error}")
            return None, "target"
        return {t.schema.table_id: t for t in tables}, "ends" if leg == "auto" else leg

    def _chosen(self, registered: dict[int, RegisteredTable] | None, left: Place, right: Place) -> list[Chosen]:
        at_target = self._at_target() if Place.TARGET in (left, right) else None
        if Place.SOURCE not in (left, right):
            registered = None
        table_ids = sorted((registered or {}).keys() | (at_target or {}).keys())
        found = [self._one(table_id, registered, at_target) for table_id in table_ids]
        return [c for c in found if self._wanted(c.subject.schema, [f.subject.schema for f in found])]

    def _at_target(self) -> dict[int, tuple[TableSchema, str]]:
        """Return each table's version at the target, and what stands in the way there."""
        target = PostgresTarget(self.settings, self.options.target)
        with closing(target.connect("verify")) as session:
            if not target.installed(session) or target.position(session) is None:
                raise VerificationFailed(
                    f"target {target.name} has not been loaded yet", hint=f"venus migrate --target {target.name}"
                )
            schemas = {(s.table_id, s.version): s for s in target.schemas(session)}
            states = target.tables(session)
        return {
            t.table_id: (schemas[t.table_id, t.schema_version], "it is being loaded" if t.state == LOADING else "")
            for t in states
        }

    def _one(
        self, table_id: int, registered: dict[int, RegisteredTable] | None,
        at_target: dict[int, tuple[TableSchema, str]] | None,
    ) -> Chosen:  # fmt: skip
        known = registered.get(table_id) if registered is not None else None
        loaded = at_target.get(table_id) if at_target is not None else None
        schema = known.schema if known else loaded[0]  # type: ignore[index]
        obstacle = loaded[1] if loaded else ""
        if registered is not None and known is None:
            obstacle = "it is not captured at the source any more"
        elif at_target is not None and loaded is None:
            obstacle = "the target does not have it yet: it comes with its first change"
        elif known and loaded and loaded[0].version != known.schema.version:
            obstacle = f"the source is at version {known.schema.version} of it, the target at {loaded[0].version}"
        elif known and not known.fill.done:
            obstacle = f"it is still being read from the source ({known.fill.rows_done:,} rows so far)"
        note = f"RESYNC at the source: {known.reason}" if known and known.state == "RESYNC" else ""
        subject = Subject(schema=schema, where=self.options.where, digest=self.options.digest)
        return Chosen(subject=subject, note=note, obstacle=obstacle)

    def _wanted(self, schema: TableSchema, every: list[TableSchema]) -> bool:
        patterns = self.options.tables
        for pattern in patterns:
            if not any(_named(s, pattern) for s in every):
                known = ", ".join(sorted(s.qualified for s in every)[:12])
                raise ConfigError(f"no table is named {pattern!r}", hint=f"compared can be: {known}")
        return not patterns or any(_named(schema, pattern) for pattern in patterns)


def _named(schema: TableSchema, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (schema.qualified, schema.name))


class _Table:
    """One table, from calibration to its result."""

    def __init__(self, run: _Run, ends: Ends, chosen: Chosen, snapshot: broker_pb2.Snapshot) -> None:
        self._run = run
        self._ends = ends
        self._subject = chosen.subject
        self._chosen = chosen
        self._snapshot = snapshot
        self._scanned: frozenset[Place] = frozenset()
        self._pushed = 0
        name = chosen.subject.schema.qualified
        self._result = TableResult(table=name, leg=f"{ends.left.value} - {ends.right.value}")
        if chosen.note:
            self._result.notes.append(chosen.note)

    def compare(self) -> TableResult:
        began, result = time.monotonic(), self._result
        if self._chosen.obstacle:
            result.undecided.append(Undecided(table=result.table, key={}, reason=self._chosen.obstacle))
            return result
        try:
            suspects = self._suspects()
            settled = Settling(self._ends, self._subject).settle(suspects, self._run.options.wait_s)
        except (SourceError, TargetError) as error:
            close_opened()
            if self._run.options.where:
                raise VerificationFailed(
                    f"{result.table}: --where {self._run.options.where!r}: {error}",
                    hint="it must be true or false at both databases; name the tables that it fits with --table",
                ) from error
            just = "it has just changed: " if isinstance(error, SchemaChanged) else ""
            result.undecided.append(Undecided(table=result.table, key={}, reason=f"{just}{error}"))
        else:
            result.differences = list(settled.differences.values())
            result.undecided = undecided_rows(self._subject, settled.undecided)
            result.in_flight = settled.in_flight
        result.seconds = time.monotonic() - began
        return result

    def _suspects(self) -> list[Suspect]:
        options, result = self._run.options, self._result
        slices, estimate = self._plan()
        slices = sample(slices, options.sample, random.Random(options.seed))
        work = estimate // (PUSHED_ROWS_PER_ROW if self._pushed == 2 else READ_ROWS_PER_ROW)
        tasks = [
            Task(ends=self._ends, subject=self._subject, part=part, scanned=self._scanned,
                 rows_per_s=options.rows_per_s)
            for part in slices
        ]  # fmt: skip
        suspects: list[Suspect] = []
        results: Iterator[Compared] = self._run.runner_for(work).run(compare_slice, tasks)
        for done in results:
            result.rows += done.rows
            result.moved += done.moved
            suspects += done.suspects
            self._run.report(Progress(table=result.table, rows=result.rows, rows_estimate=estimate))
            if len(suspects) >= options.differences_max:
                result.cut_short = True
                break
        if isinstance(results, Iterator) and hasattr(results, "close"):
            results.close()
        return suspects[: options.differences_max]

    def _plan(self) -> tuple[list[Slice], int]:
        """Calibrate, and cut the table into slices."""
        sessions = opened(self._ends)
        try:
            sessions.begin(self._subject)
            self._calibrate()
            estimates = [(reader.estimate(self._subject), reader) for _, reader in sessions.readers]
            rows, reader = max(estimates, key=lambda pair: pair[0])
            slices: list[Slice] = []
            if by_range(self._subject.schema):
                slices = range_slices(reader.cuts(self._subject, self._run.options.slice_rows))
            sessions.end()
        except BaseException:
            close_opened()
            raise
        return slices or [whole_slice(rows)], rows

    def _calibrate(self) -> None:
        mode, places = self._run.options.mode, []
        for place, reader in opened(self._ends).readers:
            if not reader.pushes_down:
                continue
            why = "--mode scan" if mode == "scan" else disagreement(reader, self._subject)
            if why and mode == "hash":
                raise VerificationFailed(
                    f"{self._result.table}: checksums of the {place.value} cannot be used: {why}",
                    hint="use --mode auto, which compares its rows instead",
                )
            if why:
                places.append(place)
                self._result.notes.append(f"rows of the {place.value} are read and compared here: {why}")
        self._scanned = frozenset(places)
        pushed = [p.value for p, r in opened(self._ends).readers if r.pushes_down and p not in places]
        self._pushed = len(pushed)
        self._result.method = f"checksums by {' and '.join(pushed)}" if pushed else "rows"
