"""Foreign keys at the cut-over: check that every row has its parent, then recreate them with the source's actions.

VENUS applies with foreign keys disabled where it may, so PostgreSQL's VALID proves nothing about newer rows. A query
over the rows themselves checks them. PostgreSQL validates each recreated foreign key once more.

Checks of domains that are NOT VALID at the source are added here as well. PostgreSQL casts every value that is written
to a domain, so a target with such a check could not take the older values of the source.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from venus.adapters.targets.postgresql.database import cutover_sql, transaction
from venus.adapters.targets.postgresql.naming import PlacedTable, quote
from venus.adapters.targets.postgresql.schema.constraints import (
    ConstraintNames,
    PlacedForeignKey,
    check_statements,
    index_statements,
    placed_foreign_keys,
)
from venus.adapters.targets.postgresql.schema.ddl import later_checks
from venus.adapters.targets.postgresql.session import TargetSession
from venus.errors import TargetError

logger = logging.getLogger(__name__)

#: Child, columns, parent, columns there.
Ends = tuple[tuple[str, str], tuple[str, ...], tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForeignKey:
    """A foreign key of the target's dictionary, or one that VENUS has yet to add."""

    name: str
    child: tuple[str, str]
    parent: tuple[str, str]
    columns: tuple[str, ...]
    referred: tuple[str, ...]
    orphans: int = 0
    example: str = ""
    #: NOT VALID at the source: rows there may lack a parent.
    not_valid: bool = False

    @property
    def ends(self) -> Ends:
        """The identity of a foreign key, regardless of its name."""
        return self.child, self.columns, self.parent, self.referred

    @property
    def shown(self) -> str:
        """The foreign key as text for messages."""
        return f"{'.'.join(self.child)} ({', '.join(self.columns)}) -> {'.'.join(self.parent)}"


def plan_references(placed: Sequence[PlacedTable], created: Sequence[PlacedTable]) -> list[PlacedForeignKey]:
    """Return the foreign keys that VENUS creates, with the names that the load has given them."""
    names = ConstraintNames(placed)
    for one in created:
        index_statements(one, names)
    for one in created:
        check_statements(one, names)
    return [r for one in created for r in placed_foreign_keys(one, placed, names)]


def read_foreign_keys(session: TargetSession, placed: Sequence[PlacedTable]) -> list[TargetForeignKey]:
    """Read the foreign keys of the tables from the target's dictionary."""
    rows = session.rows(cutover_sql("foreign_keys"), {"tables": [p.sql for p in placed]})
    return [
        TargetForeignKey(name=name, child=(cn, c), parent=(pn, p), columns=tuple(columns), referred=tuple(referred))
        for name, cn, c, pn, p, columns, referred in rows
    ]


def count_orphans(
    session: TargetSession,
    there: Sequence[TargetForeignKey],
    owed: Sequence[PlacedForeignKey],
    placed: Sequence[PlacedTable],
) -> list[TargetForeignKey]:
    """Return every foreign key with its number of rows without a parent; `placed` = every table of the target."""
    known = {f.ends for f in there}
    missing = [f for f in map(_to_foreign_key, owed) if f.ends not in known]
    lenient = {f.ends for f in map(_to_foreign_key, plan_references(placed, placed)) if f.not_valid}
    return [_with_orphan_count(session, replace(f, not_valid=f.ends in lenient)) for f in (*there, *missing)]


def foreign_key_ends(reference: PlacedForeignKey) -> Ends:
    """Return the ends of a foreign key that VENUS makes."""
    return _to_foreign_key(reference).ends


def _to_foreign_key(reference: PlacedForeignKey) -> TargetForeignKey:
    child, parent, key = reference.placed, reference.referred, reference.key
    return TargetForeignKey(
        name=reference.name,
        child=(child.namespace, child.name),
        parent=(parent.namespace, parent.name),
        columns=tuple(child.fold(c) for c in key.columns),
        referred=tuple(parent.fold(c) for c in (key.referred_columns or parent.schema.key)),
        not_valid=key.not_valid,
    )


def _with_orphan_count(session: TargetSession, found: TargetForeignKey) -> TargetForeignKey:
    mine = [f"c.{quote(c)}" for c in found.columns]
    text = cutover_sql(
        "orphans",
        child=".".join(map(quote, found.child)),
        parent=".".join(map(quote, found.parent)),
        child_columns=", ".join(mine),
        all_set=" AND ".join(f"{c} IS NOT NULL" for c in mine),
        match=" AND ".join(f"p.{quote(r)} = {c}" for r, c in zip(found.referred, mine, strict=True)),
    )
    row = session.row(text)
    count, example = row if row is not None else (0, None)
    return replace(found, orphans=int(count), example=example or "")


def recreate_references(
    session: TargetSession,
    there: Sequence[TargetForeignKey],
    owed: Sequence[PlacedForeignKey],
    invalid: Collection[str],
    *,
    acting: bool,
) -> list[str]:
    """Recreate VENUS's foreign keys with or without the source's actions, and validate them.

    `invalid` names those that rows violate: these hold for new rows only. Return what the target refused.
    """
    named = {f.ends: f.name for f in there}
    warnings = []
    for reference in owed:
        name = named.get(_to_foreign_key(reference).ends, reference.name)
        current = replace(reference, name=name)
        try:
            with transaction(session):
                session.run(current.drop)
                session.run(current.add(acting=acting))
            if name not in invalid and current.validate:
                session.run(current.validate)
        except TargetError as error:
            logger.warning("%s: %s", current.add(acting=acting), error)
            warnings.append(f"foreign key {name}: {error}")
    return warnings


def unvalidated_checks(session: TargetSession, placed: Sequence[PlacedTable]) -> list[tuple[str, str]]:
    """Return table and name of the check constraints that are not validated for every row."""
    return [(t, n) for t, n in session.rows(cutover_sql("unvalidated_checks"), {"tables": [p.sql for p in placed]})]


def add_domain_checks(session: TargetSession, created: Sequence[PlacedTable]) -> list[str]:
    """Add the checks; return what the target refused. May be repeated."""
    refused = []
    for drop, add in later_checks(created):
        try:
            with transaction(session):
                session.run(drop)
                session.run(add)
        except TargetError as error:
            logger.warning("%s: %s", add, error)
            refused.append(f"{add}: {error}")
    return refused


def drop_domain_checks(session: TargetSession, created: Sequence[PlacedTable]) -> None:
    """Drop the checks."""
    for drop, _ in later_checks(created):
        session.run(drop)
