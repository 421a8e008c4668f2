"""Repair of wrong rows through the ordinary path: their keys go into the source's log, and the next cut ships them.

The repair never writes to the target. The next cut reads the present state of each row in one snapshot, and gives the
row a new Sequence. The repair therefore includes changes that the application has made since the comparison, and
overwrites nothing newer.

A comparison with its repair also closes the loss windows of unclean elections and promotions.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.verify_contract import Key, Subject, open_reader
from venus.adapters.targets.registry import open_target
from venus.adapters.verify.findings import DifferenceKind, RowDifference, VerifyResult
from venus.adapters.verify.history import open_snapshot
from venus.adapters.verify.slice_tasks import ComparisonEnds, ComparisonSide, close_sides
from venus.adapters.verify.suspect_resolution import SuspectResolver
from venus.adapters.verify.table_comparison import VerifyOptions
from venus.config import Settings
from venus.errors import VenusError
from venus.rpc.address import PRODUCER, broker_address
from venus.rpc.admin import AdminClient

#: How many keys one transaction writes into the log.
KEYS_AT_ONCE = 1_000
CURE_OF_MASKED = (
    "columns of the table are masked, dropped or renamed here: `venus resync {table}`, then `venus resync {table} "
    "--target {target}`, read it again"
)
CURE = "delete all but one there, and give the table its primary key again"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrepairedRow:
    """A row that is still wrong."""

    table: str
    key: dict[str, str]
    reason: str


@dataclass(slots=True, kw_only=True)
class RepairResult:
    """Result of a repair: rows shipped again, rows that are right now, and rows that are still wrong."""

    emitted: dict[str, int] = field(default_factory=dict)  # the number of keys by table
    repaired: int = 0
    left: list[UnrepairedRow] = field(default_factory=list)


def run_repair(settings: Settings, target: str, result: VerifyResult, *, wait_s: float) -> RepairResult:
    """Ship the differing rows of a comparison again and wait until they are right, for `wait_s` at most."""
    wanted: dict[str, dict[Key, RowDifference]] = defaultdict(dict)
    done = RepairResult()
    for difference in result.shippable:
        if difference.table in result.projected and result.leg != "source":
            reason = CURE_OF_MASKED.format(table=difference.table, target=target)
            done.left.append(UnrepairedRow(table=difference.table, key=difference.key, reason=reason))
        else:
            wanted[difference.table][difference.forms] = difference
    for difference in result.differences:
        if difference.kind is DifferenceKind.REPEATED:
            done.left.append(
                UnrepairedRow(table=difference.table, key=difference.key, reason=f"{difference.note}; {CURE}")
            )
    if not wanted:
        return done
    try:
        right = ComparisonSide.FULL if result.leg == "source" else ComparisonSide.TARGET
        subjects = _log_wrong_rows(settings, wanted, done)
        if right is ComparisonSide.TARGET:
            subjects = _target_subjects(settings, target, subjects)
        _wait_until_repaired(settings, target, right, wanted, subjects, done, wait_s)
    finally:
        close_sides()
    return done


def _log_wrong_rows(
    settings: Settings, wanted: dict[str, dict[Key, RowDifference]], done: RepairResult
) -> dict[str, Subject]:
    """Write the keys of the wrong rows into the source's log; return the tables by name."""
    subjects = {}
    try:
        reader = open_reader(settings)
    except VenusError as error:
        raise VenusError(
            f"nothing was repaired: rows are shipped again by the source, and {error}",
            hint="without the source, `venus resync TABLE --target NAME` makes a table equal to the full data",
        ) from error
    with closing(reader):
        schemas = {t.schema.qualified_name: t.schema for t in reader.read_tables()}
        for table, differences in wanted.items():
            subject = subjects[table] = Subject(schema=schemas[table])
            keys = list(differences)
            for first in range(0, len(keys), KEYS_AT_ONCE):
                reader.touch(subject, keys[first : first + KEYS_AT_ONCE])
            done.emitted[table] = len(keys)
    return subjects


def _target_subjects(settings: Settings, target: str, subjects: dict[str, Subject]) -> dict[str, Subject]:
    """Return the tables, each with the predicate that chooses the target's rows."""
    loaded = (open_target(settings, target).read_loaded_tables() or {}).values()
    predicates = {table.schema.table_id: table.predicate for table in loaded}
    return {
        name: replace(subject, predicate=predicates.get(subject.schema.table_id, ""))
        for name, subject in subjects.items()
    }


def _wait_until_repaired(
    settings: Settings,
    target: str,
    right: ComparisonSide,
    wanted: dict[str, dict[Key, RowDifference]],
    subjects: dict[str, Subject],
    done: RepairResult,
    wait_s: float,
) -> None:
    """Wait up to `wait_s` seconds until the rows are right on both sides; record in `done` which are not."""
    address = broker_address(settings)
    table_ids = [s.schema.table_id for s in subjects.values()]
    with open_snapshot(address, settings.business.name, table_ids, f"repair of {target}") as snapshot:
        ends = ComparisonEnds(
            settings=settings,
            left=ComparisonSide.SOURCE,
            right=right,
            target=target,
            snapshot=snapshot.SerializeToString(),
        )
        for table, differences in wanted.items():
            left = SuspectResolver(ends, subjects[table]).wait_until_right(list(differences), wait_s)
            done.repaired += len(differences) - len(left)
            done.left += [
                UnrepairedRow(table=table, key=differences[key].key, reason=decision.reason or "not applied yet")
                for key, decision in left.items()
            ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWindows:
    """Losses of brokers that still await a repair: the terms of unclean elections, and the home terms of promotions."""

    terms: tuple[int, ...] = ()
    home_terms: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms or self.home_terms)

    def __str__(self) -> str:
        elections = [f"the unclean election of term {term}" for term in self.terms]
        return " and ".join([*elections, *(f"the promotion of home term {term}" for term in self.home_terms)])


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowClosing:
    """The windows of possible loss that were open when a comparison began, and whether it has closed them."""

    terms: tuple[int, ...]
    home_terms: tuple[int, ...] = ()
    closed: bool = False
    why: str = ""  # why no window was closed


def read_loss_windows(settings: Settings) -> LossWindows:
    """Return the open windows that the leader knows. Raises Unavailable."""
    with AdminClient(broker_address(settings, PRODUCER)) as admin:
        business = settings.business.name
        found = [entry for entry in admin.status(business).businesses if entry.business == business]
    return LossWindows(
        terms=tuple(window.term for entry in found for window in entry.replication.losses),
        home_terms=tuple(window.home_term for entry in found for window in entry.losses),
    )


def close_loss_windows(
    settings: Settings, options: VerifyOptions, result: VerifyResult, repaired: RepairResult, windows: LossWindows
) -> WindowClosing:
    """Close the windows at the broker, if the comparison has shown that source, full data and target are equal."""
    terms, home_terms = windows.terms, windows.home_terms
    why = _reason_unproved(options, result, repaired)
    if why:
        return WindowClosing(terms=terms, home_terms=home_terms, why=why)
    with AdminClient(broker_address(settings, PRODUCER)) as admin:
        business = settings.business.name
        waiting = admin.close_losses(business, f"{business}/{options.target}", terms, home_terms)
    if waiting:
        why = f"still to be compared and repaired: {', '.join(waiting)}"
        return WindowClosing(terms=terms, home_terms=home_terms, why=why)
    return WindowClosing(terms=terms, home_terms=home_terms, closed=True)


def _reason_unproved(options: VerifyOptions, result: VerifyResult, repaired: RepairResult) -> str:
    """Return why a comparison does not prove that everything is equal; "" if it does."""
    if result.leg != "all":
        return f"--leg {result.leg} does not compare source, full data and target with each other: use --leg all"
    if options.tables or options.where or options.sample < 1.0:
        return "only a part was compared"
    if repaired.left:
        return f"{len(repaired.left):,} rows are still wrong"
    if result.undecided_rows:
        return f"{len(result.undecided_rows):,} rows or tables could not be decided"
    if result.cut_short:
        return "the comparison stopped at the limit of differences: run it again"
    return ""
