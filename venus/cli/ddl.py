"""`venus migrate --ddl-only`: what a target would get, as a file for a DBA and for psql; changes nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from venus.errors import Refused, VenusError

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.targets.contract import Conversion, Target
    from venus.cli.invocation import Invocation
    from venus.config import Settings
    from venus.model import TableSchema


def show_ddl(run: Invocation, target: Target) -> int:
    """Print what would be created, from the source's dictionary, or from the broker if the source is away."""
    from venus.adapters.targets.contract import require

    require(target, "prints_ddl")
    found = conversion(run.settings, target)
    document = {
        "target": target.name,
        "statements": found.statements,
        "left_out": found.left_out,
        "at_cutover": found.later,
    }
    if run.json:
        run.out.answer(document)
    else:
        sys.stdout.write(run.redactor(found.text))  # a file: nothing is folded to the width of a terminal
    return 0


def conversion(settings: Settings, target: Target) -> Conversion:
    """Return every table as the target gets it, and what it does not get."""
    return target.conversion(*known_schemas(settings))


def known_schemas(settings: Settings) -> tuple[list[TableSchema], list[Numbering], list[OtherObject]]:
    """Return the newest version of every captured table, the sequences, and what there is besides."""
    from venus.cli.install import opened_source

    try:
        with opened_source(settings) as source:
            try:
                tables = [t.schema for t in source.registered()]
            except Refused:  # nothing is installed yet
                tables = []
            if not tables:
                tables = source.tables(settings.source.tables, settings.source.exclude)
            return tables, source.numberings(), source.other_objects()
    except VenusError as source_error:
        try:
            return schemas_at_broker(settings), [], []
        except VenusError:
            raise source_error from None


def schemas_at_broker(settings: Settings) -> list[TableSchema]:
    """Open the full data for a moment to read its table versions."""
    from venus.codec.schema import from_wire
    from venus.rpc.address import broker_of
    from venus.rpc.snapshots import Snapshots

    snapshots = Snapshots(broker_of(settings))
    try:
        snapshot = snapshots.open(settings.business.name, splits=1, holder="venus migrate --ddl-only")
        snapshots.close(snapshot.snapshot_id)
    finally:
        snapshots.close()
    versions = [from_wire(schema) for schema in snapshot.schemas]
    newest = {schema.table_id: schema for schema in sorted(versions, key=lambda schema: schema.version)}
    return list(newest.values())
