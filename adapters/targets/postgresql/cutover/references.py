"""Foreign keys at the cut-over: check that every row has its parent, then recreate them with the source's actions.

VENUS applies with foreign keys disabled where it may, so PostgreSQL's VALID proves nothing about newer rows. A query
over the rows themselves checks them. PostgreSQL validates each recreated foreign key once more.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from venus.adapters.targets.postgresql.cutmark import sql
from venus.adapters.targets.postgresql.database import transaction
from venus.adapters.targets.postgresql.naming import Placed, quoted
from venus.adapters.targets.postgresql.schema.constraints import Names, Reference, checks, indexes, references
from venus.adapters.targets.postgresql.session import Session
from venus.errors import TargetError

logger = logging.getLogger(__name__)

#: Child, columns, parent, columns there.
Ends = tuple[tuple[str, str], tuple[str, ...], tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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


def planned(placed: Sequence[Placed], created: Sequence[Placed]) -> list[Reference]:
    """Return the foreign keys that VENUS creates, with the names that the load has given them."""
    names = Names(placed)
    for one in created:
        indexes(one, names)
    for one in created:
        checks(one, names)
    return [r for one in created for r in references(one, placed, names)]


def present(session: Session, placed: Sequence[Placed]) -> list[Found]:
    """Read the foreign keys of the tables from the target's dictionary."""
    rows = session.rows(sql("foreign_keys"), {"tables": [p.sql for p in placed]})
    return [
        Found(name=name, child=(cn, c), parent=(pn, p), columns=tuple(columns), referred=tuple(referred))
        for name, cn, c, pn, p, columns, referred in rows
    ]


def asked(session: Session, there: Sequence[Found], owed: Sequence[Reference], placed: Sequence[Placed]) -> list[Found]:
    """Return every foreign key with its number of rows without a parent; `placed` = every table of the target."""
    known = {f.ends for f in there}
    missing = [f for f in map(_of, owed) if f.ends not in known]
    lenient = {f.ends for f in map(_of, planned(placed, placed)) if f.not_valid}
    return [_with_orphans(session, replace(f, not_valid=f.ends in lenient)) for f in (*there, *missing)]


def ends(reference: Reference) -> Ends:
    """Return the ends of a foreign key that VENUS makes."""
    return _of(reference).ends


def _of(reference: Reference) -> Found:
    child, parent, key = reference.placed, reference.referred, reference.key
    return Found(
        name=reference.name,
        child=(child.namespace, child.name),
        parent=(parent.namespace, parent.name),
        columns=tuple(child.fold(c) for c in key.columns),
        referred=tuple(parent.fold(c) for c in (key.referred_columns or parent.schema.key)),
        not_valid=key.not_valid,
    )


def _with_orphans(session: Session, found: Found) -> Found:
    mine = [f"c.{quoted(c)}" for c in found.columns]
    text = sql(
        "orphans",
        child=".".join(map(quoted, found.child)),
        parent=".".join(map(quoted, found.parent)),
        child_columns=", ".join(mine),
        all_set=" AND ".join(f"{c} IS NOT NULL" for c in mine),
        match=" AND ".join(f"p.{quoted(r)} = {c}" for r, c in zip(found.referred, mine, strict=True)),
    )
    row = session.row(text)
    count, example = row if row is not None else (0, None)
    return replace(found, orphans=int(count), example=example or "")


def put_in_force(
    session: Session, there: Sequence[Found], owed: Sequence[Reference], invalid: Collection[str], *, acting: bool
) -> list[str]:
    """Recreate VENUS's foreign keys with or without the source's actions, and validate them.

    `invalid` names those that rows violate: these hold for new rows only. Return what the target refused.
    """
    named = {f.ends: f.name for f in there}
    warnings = []
    for reference in owed:
        name = named.get(_of(reference).ends, reference.name)
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


def unvalidated_checks(session: Session, placed: Sequence[Placed]) -> list[tuple[str, str]]:
    """Return table and name of the check constraints that are not validated for every row."""
    return [(t, n) for t, n in session.rows(sql("unvalidated_checks"), {"tables": [p.sql for p in placed]})]
