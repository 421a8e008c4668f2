"""Schema changes that the stream brings: a step of its own in front of the rows, in the same transaction (VENUS 3.4).

The rows that came before a change must be in the table before it is carried out; the caller sees to that. Behind it,
rows are written by the new version's statements. What cannot be followed halts the table.
"""

from __future__ import annotations

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.rows.verdicts import RowsRefused, guarded
from venus.adapters.targets.postgresql.schema import evolve, existing
from venus.adapters.targets.postgresql.schema.own_types import add_labels, label_steps
from venus.adapters.targets.postgresql.schema.tables import new_table
from venus.adapters.targets.postgresql.session import Session
from venus.model import TableSchema


def keep_version(target: PostgresTarget, session: Session, schema: TableSchema, known: TableSchema | None) -> None:
    """Keep a table version: a batch names it only once. Labels that its enums lack are added before, durably.

    `known` = the newest version of the table that the target has.
    """
    if known is not None and schema.types:
        add_labels(target.place(schema), lambda: target.connect("labels"), known)
    target.put_schema(session, schema)


def step_to(
    target: PostgresTarget,
    session: Session,
    catalogue: Catalogue,
    schema: TableSchema,
    *,
    rekeying: bool = False,
) -> evolve.Step:
    """Return the way from the version that a table has at the target to this one; `rekeying` is `evolve.step`'s."""
    known = catalogue.newest(schema.table_id)
    old, new = target.place(known), target.place(schema)
    versions = [one for (table_id, _), one in catalogue.schemas.items() if table_id == schema.table_id]
    earlier = [one for one in versions if one.version <= known.version]
    present = {c.name: c.own or c.type for c in existing.columns(session, old)}
    kept = evolve.kept_columns(earlier, known)
    labels = label_steps(session, old, new, target.name) if schema.types else evolve.NO_LABELS
    return evolve.step(old, new, labels, present=present, kept=kept, target=target.name, rekeying=rekeying)


class SchemaChanges:
    """The schema changes of one transaction, which starts at offset `start`."""

    def __init__(self, target: PostgresTarget, session: Session, catalogue: Catalogue, start: int) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._start = start
        #: Whether anything was done that the rest of the process has not read.
        self.changed = False

    def keep(self, schema: TableSchema) -> None:
        """Keep a table version, unless this target has met it."""
        key = (schema.table_id, schema.version)
        if key in self._catalogue.schemas:
            return
        known = self._catalogue.newest(schema.table_id) if schema.table_id in self._catalogue.tables else None
        keep_version(self._target, self._session, schema, known)
        self._catalogue.schemas[key] = schema
        self.changed = True

    def create(self, schema: TableSchema) -> None:
        """Make a table that the target does not have; one that cannot be had is halted."""
        new_table(self._target, self._session, schema, self._start)
        self._look_again()

    def evolve(self, schema: TableSchema) -> None:
        """Bring a table to this version. Raises RowsRefused with the reason if that cannot be done."""
        table_id = schema.table_id
        known = self._catalogue.tables[table_id]
        if schema.version < known.schema_version:
            raise RowsRefused(
                table_id, f"a change of schema version {schema.version} came behind {known.schema_version}", []
            )
        step = step_to(self._target, self._session, self._catalogue, schema)
        if step.refused:
            raise RowsRefused(table_id, step.refused, [])
        for text in step.statements:
            guarded(self._session, table_id, text)
        self._target.own(
            self._session, "set_version", table_id=table_id, version=schema.version, reason="; ".join(step.remarks)
        )
        self._look_again()

    def _look_again(self) -> None:
        self._catalogue.tables = {t.table_id: t for t in self._target.tables(self._session)}
        self.changed = True
