"""`venus verify` without the command line: the choice of sides and tables, and the verdict (VENUS 3.3).

By default, the source and the target are compared with each other, and the full data is only queried for rows that
differ, so few rows are transferred. With the side `target` or `source`, only that database is compared with the full
data, which is transferred completely; `target` works while the source is switched off.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from venus import __version__
from venus.adapters.dialects.contract import RegisteredTable, UncapturedTable
from venus.adapters.dialects.registry import open_source
from venus.adapters.dialects.verify_contract import Subject, open_reader
from venus.adapters.targets.columns import TargetColumns
from venus.adapters.targets.contract import LoadedTable, require_capability
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.views import describe_rows
from venus.adapters.verify.findings import TableResult, VerifyResult, hide_values
from venus.adapters.verify.history import open_snapshot
from venus.adapters.verify.slice_tasks import ComparisonEnds, ComparisonSide, close_sides
from venus.adapters.verify.table_comparison import (
    LEGS,
    ChosenTable,
    Report,
    RunnerFor,
    TableComparison,
    VerificationFailed,
    VerifyOptions,
)
from venus.codec import schema as schemas_codec
from venus.config import Settings
from venus.errors import ConfigError, VenusError
from venus.masking.projection import ProjectedSchema, columns_of, describe_columns, source_of
from venus.model import TableSchema
from venus.network.topology import is_labelled
from venus.predicates.ranges import compile_predicate, is_same
from venus.predicates.syntax import PredicateRefused
from venus.process.runners import LocalRunner
from venus.rpc.address import broker_address
from venus.rpc.admin import AdminClient
from venus.rpc.conditions import GONE, RELEASED, RELEASING, missing_table_advice, uncaptured_problem
from venus.text.formatting import suggest_nearest

__all__ = ["VerificationFailed", "VerifyOptions", "run_verify"]


def run_verify(
    settings: Settings, options: VerifyOptions, *, runner_for: RunnerFor | None = None, report: Report | None = None
) -> VerifyResult:
    """Run a comparison, which changes nothing."""
    workers = settings.apply.load_workers
    run = _Run(
        settings, options, runner_for or (lambda rows: LocalRunner.for_rows(workers, rows)), report or (lambda _: None)
    )
    try:
        return run.run()
    finally:
        close_sides()


@dataclass(slots=True)
class _Run:
    """One run of `venus verify`: its options, and what it has found out about the tables."""

    settings: Settings
    options: VerifyOptions
    runner_for: RunnerFor
    report: Report
    notes: list[str] = field(default_factory=list)
    #: Tables that this broker set mirrors, as its labels name them; empty means all.
    mirrored: tuple[str, ...] = ()
    left_out: list[TableSchema] = field(default_factory=list)
    #: Tables removed from capture.
    released: dict[int, TableSchema] = field(default_factory=dict)
    #: Tables that the patterns choose but that are not captured.
    uncaptured: list[UncapturedTable] = field(default_factory=list)
    #: Tables of which this broker set mirrors only some rows, each with the predicate.
    filters: tuple[tuple[str, str], ...] = ()
    #: Tables whose columns are masked, dropped or renamed at the target.
    projected: dict[int, ProjectedSchema] = field(default_factory=dict)
    at_target: dict[int, LoadedTable] = field(default_factory=dict)

    def run(self) -> VerifyResult:
        """Compare the chosen tables on each pair of sides."""
        began, options = time.monotonic(), self.options
        result = VerifyResult(
            business=self.settings.business.name,
            target=options.target,
            leg=options.leg,
            version=__version__,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            sample=options.sample,
            where=options.where,
        )
        registered, result.leg = self._read_registered()
        registered = self._leave_out_released(registered)
        self._note_uncaptured(registered)
        registered = self._leave_out_unmirrored(registered)
        if options.where and result.leg != "ends":
            raise ConfigError(
                f"--where is a condition in SQL, and --leg {result.leg} compares with the full data, which has none",
                hint="use --leg ends, or --table",
            )
        for left, right, chosen in self._plan(registered, result.leg):
            if not chosen:
                continue
            table_ids = [c.subject.schema.table_id for c in chosen]
            address = broker_address(self.settings)
            holder = f"verify of {options.target}"
            with open_snapshot(address, self.settings.business.name, table_ids, holder) as snapshot:
                here = {t.table_id: schemas_codec.from_wire(t).masked_above for t in snapshot.schemas}
                chosen = [self._refuse_other_masks(c, left, right, here) for c in chosen]
                wire = snapshot.SerializeToString()
                ends = ComparisonEnds(
                    settings=self.settings, left=left, right=right, target=options.target, snapshot=wire
                )
                result.tables += [self._compare(ends, one) for one in chosen]
        if not options.tables:
            result.not_compared = {t.name: t.obstacle or "not captured" for t in self.uncaptured}
        result.projected = frozenset(schema.qualified_name for schema in self.projected.values())
        result.notes = self.notes
        result.seconds = time.monotonic() - began
        return result

    def _plan(
        self, registered: dict[int, RegisteredTable] | None, leg: str
    ) -> Iterator[tuple[ComparisonSide, ComparisonSide, list[ChosenTable]]]:
        """Yield each pair of sides with the tables to compare there.

        For a comparison, VENUS masks only the broker's rows, because the masking key must not reach the source. If
        columns are masked, source and target are therefore each compared with the full data, instead of with each
        other.
        """
        for left, right in LEGS[leg]:
            chosen = self._choose_tables(registered, left, right)
            if leg != "ends":
                yield left, right, chosen
                continue
            above = {n for n, one in self.at_target.items() if one.schema.masked_above}
            masked = [c for c in chosen if c.subject.schema.table_id in self.projected.keys() | above]
            if masked and self.options.where:
                raise ConfigError(
                    f"--where is a condition in SQL, and columns of {masked[0].subject.schema.qualified_name} are "
                    "masked, dropped or renamed at the target",
                    hint="name other tables with --table",
                )
            yield left, right, [c for c in chosen if c not in masked]
            for one, other in LEGS["all"] if masked else ():
                both = self._choose_tables(registered, one, other)
                wanted = self.projected.keys() - above
                if ComparisonSide.SOURCE not in (one, other):
                    wanted = wanted | above
                yield one, other, [c for c in both if c.subject.schema.table_id in wanted]
            self.notes += [
                f"{c.subject.schema.qualified_name} is not compared with the source, whose values a set above masks: "
                f"{self.at_target[c.subject.schema.table_id].schema.masked_above}"
                for c in masked
                if c.subject.schema.table_id in above
            ]

    def _refuse_other_masks(
        self, one: ChosenTable, left: ComparisonSide, right: ComparisonSide, here: dict[int, str]
    ) -> ChosenTable:
        """Return the table, with an obstacle if broker sets mask its columns differently for the two sides."""
        table_id, sides, obstacle = one.subject.schema.table_id, (left, right), one.obstacle
        masked = here.get(table_id, "")
        if ComparisonSide.SOURCE in sides and masked and not obstacle:
            obstacle = f"a set above masks its columns ({masked}): compare it with the source there"
        at_target = self.at_target.get(table_id) if ComparisonSide.TARGET in sides else None
        if at_target is not None and at_target.schema.masked_above != masked and not obstacle:
            obstacle = "this broker set masks its columns otherwise: compare it at the set that the target reads"
        return replace(one, obstacle=obstacle)

    def _compare(self, ends: ComparisonEnds, one: ChosenTable) -> TableResult:
        """Compare one table; hide the values of masked columns in its result."""
        found = TableComparison(self.options, ends, one, self.runner_for, self.report).compare()
        projected = self.projected.get(one.subject.schema.table_id)
        if projected is not None and ends.left is ComparisonSide.SOURCE:
            hide_values(found, projected.hidden_columns)
        return found

    # -- choice of tables --------------------------------------------------------------------------------------------

    def _read_registered(self) -> tuple[dict[int, RegisteredTable] | None, str]:
        """Return the source's registry if the comparison needs it, and the chosen pair of sides."""
        leg = self.options.leg
        if leg == "target":
            return None, leg
        try:
            if not self.settings.source.url.get_secret_value():
                raise ConfigError("no [source] url is set", hint="set it, or use --leg target")
            with closing(open_reader(self.settings)) as reader:
                tables = [t for t in reader.read_tables() if not _is_heartbeat(t.schema)]
        except VenusError as error:
            if leg != "auto":
                raise
            self.notes.append(f"the source is not compared: {error}")
            return None, "target"
        return {t.schema.table_id: t for t in tables}, "ends" if leg == "auto" else leg

    def _choose_tables(
        self, registered: dict[int, RegisteredTable] | None, left: ComparisonSide, right: ComparisonSide
    ) -> list[ChosenTable]:
        """Return the tables of these two sides that the options choose."""
        at_target = self._read_target_tables() if ComparisonSide.TARGET in (left, right) else None
        if ComparisonSide.SOURCE not in (left, right):
            registered = None
        table_ids = sorted(((registered or {}).keys() | (at_target or {}).keys()) - self.released.keys())
        found = [self._choose_table(table_id, registered, at_target) for table_id in table_ids]
        return [c for c in found if self._is_wanted(c.subject.schema, [f.subject.schema for f in found])]

    def _leave_out_released(self, registered: dict[int, RegisteredTable] | None) -> dict[int, RegisteredTable] | None:
        """Return the registry without the tables removed from capture, and add notes about these."""
        out = [t for t in (registered or {}).values() if t.state in (RELEASING, RELEASED)]
        self.released = {t.schema.table_id: t.schema for t in out}
        why = "is not compared: it is not captured any more"
        self.notes += [f"{t.schema.qualified_name} {why} ({t.reason})" for t in out]
        return {i: t for i, t in registered.items() if i not in self.released} if registered is not None else None

    def _note_uncaptured(self, registered: dict[int, RegisteredTable] | None) -> None:
        """Add notes about tables that the patterns choose but that are not captured: they cannot be compared."""
        if registered is None:
            return
        chosen = self.settings.source
        try:
            with closing(open_source(self.settings)) as source:
                self.uncaptured = source.dictionary.find_uncaptured_tables(chosen.tables, chosen.exclude)
        except VenusError as error:
            self.notes.append(f"which tables are not captured is not known: {error}")
        if not self.options.tables:
            self.notes += [f"not compared: {uncaptured_problem(t.name, t.obstacle)}" for t in self.uncaptured]

    def _leave_out_unmirrored(self, registered: dict[int, RegisteredTable] | None) -> dict[int, RegisteredTable] | None:
        """Return the registry without tables that this broker set does not mirror, and add notes about these."""
        with AdminClient(broker_address(self.settings)) as admin:
            self.mirrored = admin.mirrored_tables(self.settings.business.name)
            self.filters = admin.row_filters(self.settings.business.name)
        if not self.mirrored:
            return registered
        self.left_out = [t.schema for t in (registered or {}).values() if not self._is_mirrored(t.schema)]
        names = ", ".join(sorted(schema.qualified_name for schema in self.left_out))
        mirrors = f"the broker set here mirrors {', '.join(self.mirrored)} only"
        self.notes.append(f"{mirrors}, so not compared: {names}" if names else mirrors)
        if registered is None:
            return None
        return {number: table for number, table in registered.items() if self._is_mirrored(table.schema)}

    def _is_mirrored(self, schema: TableSchema) -> bool:
        """Return whether this broker set mirrors the table."""
        return not self.mirrored or is_labelled(self.mirrored, schema.namespace, schema.name)

    def _read_target_tables(self) -> dict[int, LoadedTable]:
        """Return each table's version at the target, and the obstacle to its comparison."""
        target = open_target(self.settings, self.options.target)
        require_capability(target, "verifies")
        found = target.read_loaded_tables()
        if found is None:
            raise VerificationFailed(
                f"target {target.name} has not been loaded yet", hint=f"venus migrate --target {target.name}"
            )
        self.projected = {n: t.schema for n, t in found.items() if isinstance(t.schema, ProjectedSchema)}
        self.at_target = {number: t for number, t in found.items() if not _is_heartbeat(t.schema)}
        return self.at_target

    def _choose_table(
        self, table_id: int, registered: dict[int, RegisteredTable] | None, at_target: dict[int, LoadedTable] | None
    ) -> ChosenTable:
        """Return a table to compare: which rows of it, a note, and the obstacle to its comparison if there is one."""
        known = registered.get(table_id) if registered is not None else None
        loaded = at_target.get(table_id) if at_target is not None else None
        schema = known.schema if known else loaded.schema  # type: ignore[union-attr]
        obstacle = loaded.obstacle if loaded else ""
        if not self._is_mirrored(schema):
            obstacle = "the broker set here does not mirror it any more: add it to a label, or drop it at the target"
        elif registered is not None and known is None:
            obstacle = "it is not captured at the source any more"
        elif known and known.reason.startswith(GONE):
            obstacle = f"it is not at the source any more: {missing_table_advice(schema.qualified_name)}"
        elif at_target is not None and loaded is None:
            obstacle = "the target does not have it yet: it comes with its first change"
        elif known and loaded and loaded.schema.version != known.schema.version:
            obstacle = f"the source is at version {known.schema.version} of it, the target at {loaded.schema.version}"
        elif known and not known.fill.done:
            obstacle = f"it is still being read from the source ({known.fill.rows_done:,} rows so far)"
        obstacle = obstacle or self._masking_key_obstacle(loaded)
        note = f"RESYNC at the source: {known.reason}" if known and known.state == "RESYNC" else ""
        predicate, reason = self._choose_rows(schema, loaded.predicate if loaded else "")
        if not predicate and reason:
            obstacle = obstacle or reason
        note = note or reason
        if isinstance(schema, ProjectedSchema):
            note = "; ".join(filter(None, (f"columns at the target: {describe_columns(schema)}", note)))
        subject = Subject(schema=schema, where=self.options.where, digest=self.options.digest, predicate=predicate)
        return ChosenTable(subject=subject, note=note, obstacle=obstacle)

    def _masking_key_obstacle(self, loaded: LoadedTable | None) -> str:
        """Return why a masked table cannot be compared: the configuration has another masking key; empty = it can."""
        used = columns_of(loaded.schema).key_id if loaded is not None else ""
        configured = TargetColumns(self.settings, self.options.target).rules.key_id if used else ""
        if used == configured:
            return ""
        return (
            f"its rows are masked by the key {used}, and the configuration has {configured or 'none'}: start "
            "`venus sync`, which resyncs it, or give [targets] the former masking_key_file"
        )

    def _choose_rows(self, schema: TableSchema, predicate: str) -> tuple[str, str]:
        """Return the predicate of the compared rows ("" for every row or none), and a note."""
        mirrored = next((p for name, p in self.filters if is_labelled((name,), schema.namespace, schema.name)), "")
        note = f"the target gets {describe_rows(predicate)}: it is compared with those" if predicate else ""
        if not mirrored or is_same(predicate, mirrored, (source_of(schema),)):
            return predicate, note
        both = f"({predicate}) and ({mirrored})" if predicate else mirrored
        try:
            compile_predicate(both, source_of(schema))
        except PredicateRefused as refused:
            return "", f"the broker set here does not mirror it by its predicate ({both}): {refused}"
        here = f"the broker set here has {describe_rows(mirrored)}: no others are compared"
        return both, "; ".join(filter(None, (note, here)))

    def _is_wanted(self, schema: TableSchema, every: list[TableSchema]) -> bool:
        """Return whether the options choose this table. Raises ConfigError for a pattern that matches no table."""
        patterns = self.options.tables
        for pattern in patterns:
            if not any(_is_named_by(s, pattern) for s in every):
                if any(_is_named_by(s, pattern) for s in self.left_out):
                    raise ConfigError(
                        f"{pattern!r} is not mirrored by the broker set here", hint="compare it where it is mirrored"
                    )
                if any(_is_named_by(s, pattern) for s in self.released.values()):
                    hint = "--leg target compares the target with the broker's copy of it"
                    raise ConfigError(f"{pattern!r} is not captured any more", hint=hint)
                if missing := next((t for t in self.uncaptured if _is_chosen_by(pattern, t.name)), None):
                    raise ConfigError(uncaptured_problem(missing.name, missing.obstacle))
                known = sorted(s.qualified_name for s in every)
                hint = f"tables that can be compared: {', '.join(known[:12])}"
                raise ConfigError(f"no table is named {pattern!r}{suggest_nearest(pattern, known)}", hint=hint)
        return not patterns or any(_is_named_by(schema, pattern) for pattern in patterns)


def _is_heartbeat(schema: TableSchema) -> bool:
    """Return whether this is VENUS's own heartbeat table, even with an upper-case name."""
    return schema.is_heartbeat or schema.name == "VENUS_HEARTBEAT"


def _is_chosen_by(pattern: str, qualified_name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (qualified_name, qualified_name.partition(".")[2]))


def _is_named_by(schema: TableSchema, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (schema.qualified_name, schema.name))
