"""Repair of wrong rows through the ordinary path: their keys go into the source's log, and the next cut ships them.

The repair never writes to the target. The cut reads each row as it is then, with a new Sequence, in one snapshot. So it
includes changes that the application makes meanwhile, and overwrites nothing newer.

A comparison with its repair also closes the windows of unclean elections and promotions.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.verifying import Key, Subject, open_reader
from venus.adapters.targets.registry import open_target
from venus.adapters.verify.findings import Difference, Kind, Result
from venus.adapters.verify.full import opened_snapshot
from venus.adapters.verify.options import Options
from venus.adapters.verify.settling import Settling
from venus.adapters.verify.tasks import Ends, Place, close_opened
from venus.config import Settings
from venus.errors import VenusError
from venus.rpc.address import broker_of
from venus.rpc.admin import Admin

#: Keys written into the log with one transaction.
KEYS_AT_ONCE = 1_000
CURE = "delete all but one there, and give the table its primary key again"


@dataclass(frozen=True, slots=True, kw_only=True)
class StillWrong:
    """A row that is still wrong."""

    table: str
    key: dict[str, str]
    reason: str


@dataclass(slots=True, kw_only=True)
class Repaired:
    """Result of a repair."""

    emitted: dict[str, int] = field(default_factory=dict)  # keys by table
    repaired: int = 0
    left: list[StillWrong] = field(default_factory=list)


def repair(settings: Settings, target: str, result: Result, *, wait_s: float) -> Repaired:
    """Ship the differing rows of a comparison again and wait until they are right, for `wait_s` at most."""
    wanted: dict[str, dict[Key, Difference]] = defaultdict(dict)
    done = Repaired()
    for difference in result.shippable:
        wanted[difference.table][difference.forms] = difference
    for difference in result.differences:
        if difference.kind is Kind.REPEATED:
            done.left.append(
                StillWrong(table=difference.table, key=difference.key, reason=f"{difference.note}; {CURE}")
            )
    if not wanted:
        return done
    try:
        right = Place.FULL if result.leg == "source" else Place.TARGET
        subjects = _touch(settings, wanted, done)
        if right is Place.TARGET:
            subjects = _as_at_target(settings, target, subjects)
        _wait(settings, target, right, wanted, subjects, done, wait_s)
    finally:
        close_opened()
    return done


def _touch(settings: Settings, wanted: dict[str, dict[Key, Difference]], done: Repaired) -> dict[str, Subject]:
    subjects = {}
    try:
        reader = open_reader(settings)
    except VenusError as error:
        raise VenusError(
            f"nothing was repaired: rows are shipped again by the source, and {error}",
            hint="without the source, `venus resync TABLE --target NAME` makes a table equal to the full data",
        ) from error
    with closing(reader):
        schemas = {t.schema.qualified: t.schema for t in reader.tables()}
        for table, differences in wanted.items():
            subject = subjects[table] = Subject(schema=schemas[table])
            keys = list(differences)
            for first in range(0, len(keys), KEYS_AT_ONCE):
                reader.touch(subject, keys[first : first + KEYS_AT_ONCE])
            done.emitted[table] = len(keys)
    return subjects


def _as_at_target(settings: Settings, target: str, subjects: dict[str, Subject]) -> dict[str, Subject]:
    """Return the tables with the target's predicates."""
    loaded = (open_target(settings, target).loaded_tables() or {}).values()
    predicates = {table.schema.table_id: table.predicate for table in loaded}
    return {
        name: replace(subject, predicate=predicates.get(subject.schema.table_id, ""))
        for name, subject in subjects.items()
    }


def _wait(
    settings: Settings, target: str, right: Place, wanted: dict[str, dict[Key, Difference]],
    subjects: dict[str, Subject], done: Repaired, wait_s: float,
) -> None:  # fmt: skip
    address = broker_of(settings)
    table_ids = [s.schema.table_id for s in subjects.values()]
    with opened_snapshot(address, settings.business.name, table_ids, f"repair of {target}") as snapshot:
        ends = Ends(
            settings=settings, left=Place.SOURCE, right=right, target=target, snapshot=snapshot.SerializeToString()
        )
        for table, differences in wanted.items():
            left = Settling(ends, subjects[table]).until_right(list(differences), wait_s)
            done.repaired += len(differences) - len(left)
            done.left += [
                StillWrong(table=table, key=differences[key].key, reason=decision.reason or "not applied yet")
                for key, decision in left.items()
            ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Open windows of possible loss: the terms of unclean elections, and the home terms of promotions."""

    terms: tuple[int, ...] = ()
    home_terms: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms or self.home_terms)

    def __str__(self) -> str:
        elections = [f"the unclean election of term {term}" for term in self.terms]
        return " and ".join([*elections, *(f"the promotion of home term {term}" for term in self.home_terms)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """Outcome for the windows that were open when a comparison began."""

    terms: tuple[int, ...]
    home_terms: tuple[int, ...] = ()
    closed: bool = False
    why: str = ""  # not closed


def open_windows(settings: Settings) -> Windows:
    """Return the open windows that the leader knows. Raises Unavailable."""
    with Admin(broker_of(settings)) as admin:
        business = settings.business.name
        found = [entry for entry in admin.status(business).businesses if entry.business == business]
    return Windows(
        terms=tuple(window.term for entry in found for window in entry.replication.losses),
        home_terms=tuple(window.home_term for entry in found for window in entry.losses),
    )


def close(settings: Settings, options: Options, result: Result, repaired: Repaired, windows: Windows) -> Closing:
    """Close the windows at the broker, if the comparison has shown that source, full data and target are equal."""
    terms, home_terms = windows.terms, windows.home_terms
    why = _unproved(options, result, repaired)
    if why:
        return Closing(terms=terms, home_terms=home_terms, why=why)
    with Admin(broker_of(settings)) as admin:
        business = settings.business.name
        waiting = admin.close_losses(business, f"{business}/{options.target}", terms, home_terms)
    if waiting:
        why = f"still to be compared and repaired: {', '.join(waiting)}"
        return Closing(terms=terms, home_terms=home_terms, why=why)
    return Closing(terms=terms, home_terms=home_terms, closed=True)


def _unproved(options: Options, result: Result, repaired: Repaired) -> str:
    """Return why a comparison does not prove that everything is equal; "" if it does."""
    if result.leg != "all":
        return f"--leg {result.leg} does not compare source, full data and target with each other: use --leg all"
    if options.tables or options.where or options.sample < 1.0:
        return "only a part was compared"
    if repaired.left:
        return f"{len(repaired.left):,} rows are still wrong"
    if result.undecided:
        return f"{len(result.undecided):,} rows or tables could not be decided"
    if result.cut_short:
        return "the comparison stopped at the limit of differences: run it again"
    return ""
