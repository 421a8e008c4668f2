"""What `venus check` says of the targets: can they be reached, and can they have the tables? Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.errors import Refused, VenusError
from venus.model import Finding

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.model import TableSchema


def check_targets(settings: Settings, schemas: list[TableSchema]) -> list[Finding]:
    """Ask every target about these tables; what cannot be reached is a finding, not a failure."""
    from venus.cli.lakes import is_lake

    found = []
    for name in settings.targets:
        try:
            found += check_lake(settings, name, schemas) if is_lake(settings, name) else fits(settings, name, schemas)
        except VenusError as error:
            found.append(unreached(name, error))
    return found


def unreached(target: str, error: VenusError) -> Finding:
    """Say why a target could not be asked. A server that is down may come back, an address that is wrong stays so."""
    return Finding(where=f"target {target}", message=str(error), remedy=error.hint, blocks=not error.retryable)


def fits(settings: Settings, target: str, schemas: list[TableSchema]) -> list[Finding]:
    """Ask a database."""
    from venus.adapters.under.command import one_session
    from venus.adapters.under.control import progress
    from venus.adapters.under.fitness import obstacles
    from venus.adapters.under.target import PostgresTarget

    where = f"target {target}"
    names = names_at(settings, target, schemas)
    try:
        seen = progress(settings, target)
        found = [*names, Finding(where=where, message=f"reachable; {seen.constraints}")]
        if any(name.blocks for name in names):
            return found
        with one_session(PostgresTarget(settings, target)) as session:
            more = obstacles(PostgresTarget(settings, target), session, schemas)
    except VenusError as error:
        return [*names, unreached(target, error)]
    return [*found, *(Finding(where=o.where, message=o.message, remedy=o.remedy, blocks=True) for o in more)]


def names_at(settings: Settings, target: str, schemas: list[TableSchema]) -> list[Finding]:
    """Say which names a target cannot have, and which it gets shortened."""
    from venus.adapters.under.naming import place_all

    where = f"target {target}"
    try:
        placed = place_all(schemas, settings, target)
    except Refused as refused:
        return [
            Finding(where=where, message=line, remedy=refused.hint, blocks=True) for line in str(refused).split("\n")
        ]
    return [
        Finding(where=where, message=f"{one.schema.qualified}: the name {long} is too long and becomes {short}")
        for one in placed
        for long, short in one.shortened
    ]


def check_lake(settings: Settings, target: str, schemas: list[TableSchema]) -> list[Finding]:
    """Ask a folder of Parquet files."""
    from venus.adapters.targets.parquet.folder import LakeTarget
    from venus.cli.lakes import look_at

    where = f"target {target}"
    LakeTarget(settings, target).check_folder()
    seen = look_at(settings, target)
    found = [Finding(where=where, message=seen.error or "a folder of Parquet files", blocks=bool(seen.error))]
    return [*found, *texts_at(where, schemas)]


def texts_at(where: str, schemas: list[TableSchema]) -> list[Finding]:
    """Say which columns become text in Parquet because no type there holds their values exactly."""
    from venus.codec.arrowtypes import becomes_text

    lines = [
        f"{schema.qualified}.{column.name} ({column.source_type})"
        for schema in schemas
        if not schema.is_heartbeat
        for column in schema.columns
        if becomes_text(column.type)
    ]
    if not lines:
        return []
    message = f"{len(lines)} columns become text: Parquet has no type that holds their values exactly"
    remedy = "read them as text, or change the columns' types (Oracle: --type-map)"
    return [Finding(where=where, message=message, remedy=remedy, details=tuple(lines))]
