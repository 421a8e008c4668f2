"""Enums and domains of the application's, as the tables that use them carry them (VENUS 3.4).

A target is PostgreSQL too: they are made there before the tables. What of them needs a function of the application's
own is listed with the reason, as for tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from venus.adapters.dialects.postgresql.connection import Connection, Row
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.postgresql.types import PgType, logical
from venus.errors import UnsupportedType
from venus.model import Check, LeftOut, OwnType


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An own type, and what of it no target gets."""

    type: OwnType
    left_out: tuple[LeftOut, ...] = ()


def read(connection: Connection, oids: Sequence[int], types: Mapping[int, PgType]) -> dict[int, Found]:
    """Return the own types below the columns of these tables, by oid."""
    rows = connection.rows(statement("structure", "own_types"), {"tables": list(oids)})
    return {row[0]: found for row in rows if (found := _found(row, types)) is not None}


def _found(row: Row, types: Mapping[int, PgType]) -> Found | None:
    oid, namespace, name, spelled, sort, not_null, default, uses, collation, labels, checks = row
    made = OwnType(namespace=namespace, name=name, spelled=spelled)
    if sort == "e":
        return Found(type=replace(made, labels=tuple(labels)))
    try:
        base = logical(oid, -1, spelled, types)
    except UnsupportedType:
        return None  # said of its columns
    left = [_left("check constraint", f"{spelled}.{n}", text, needs) for n, text, needs in checks if needs]
    if default and uses:
        left.append(_left("default of domain", spelled, default, uses))
    if collation:
        why = "the target sorts by its own default"
        left.append(LeftOut(what="collation of domain", name=spelled, definition=collation, reason=why))
    made = replace(
        made,
        base=base,
        base_spelled=types[oid].base_spelled,
        not_null=not_null,
        default_sql="" if uses else default,
        checks=tuple(
            Check(name=n, sql=_bare(text), not_valid=text.endswith(" NOT VALID"))
            for n, text, needs in checks
            if not needs
        ),
    )
    return Found(type=made, left_out=tuple(left))


def _left(what: str, name: str, definition: str, uses: str) -> LeftOut:
    return LeftOut(what=what, name=name, definition=definition, reason=f"it needs {uses}, which is not carried")


def _bare(definition: str) -> str:
    return definition.removesuffix(" NOT VALID").removeprefix("CHECK (").removesuffix(")")


def not_carried(columns: Iterable[Row], own: Mapping[int, Found], types: Mapping[int, PgType]) -> list[LeftOut]:
    """Say which columns are of a type that is neither PostgreSQL's own nor made here; `columns` as for `used_by`."""
    found = []
    for row in columns:
        oid = row[3]
        while types[oid].sort == "d" or types[oid].is_array:
            oid = types[oid].element if types[oid].is_array else types[oid].base
        if types[oid].namespace != "pg_catalog" and oid not in own:
            found.append(LeftOut(what="type of column", name=row[2], definition=row[5], reason=_way(types[oid])))
    return found


def _way(found: PgType) -> str:
    """Say how a target comes by a type that VENUS does not make."""
    if found.extension:
        return f"of an extension: make it at the target before (CREATE EXTENSION {found.extension})"
    return "neither an enum nor a domain: make it at the target before (CREATE TYPE)"


def used_by(columns: Iterable[Row], own: Mapping[int, Found], types: Mapping[int, PgType]) -> list[Found]:
    """Return what the columns of one table need, each behind what it stands on; `columns`: the dictionary's rows."""
    depths: dict[int, int] = {}
    for row in columns:
        oid, chain = row[3], []
        while oid:
            chain += [oid] if oid in own else []
            oid = types[oid].element if types[oid].is_array else types[oid].base
        for depth, each in enumerate(reversed(chain)):
            depths[each] = max(depth, depths.get(each, 0))
    return [own[oid] for oid in sorted(depths, key=lambda oid: (depths[oid], own[oid].type.spelled))]
