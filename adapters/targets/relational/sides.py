"""A relational database as one of two between which the application can switch (adapters/cutover).

The record of the database's role is in VENUS's own table `side`; the SQL blocks in side.sql have the same names for
every kind of database. Each kind of database adds how it rejects writes, and how it takes over capture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from venus.adapters.dialects.contract import RegisteredTable, SourceState
from venus.adapters.dialects.handover_rules import CaptureHandover, version_to_follow
from venus.adapters.targets.cutover_contract import CutoverObstacle, FollowStart, NewSideObject, SideLimits
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.own_tables import TablePlace
from venus.adapters.targets.relational.session import RelationalSession, transaction
from venus.adapters.targets.relational.states import ACTIVE, rows_to_text
from venus.adapters.targets.switching import SideRecord, SideState, SwitchPosition
from venus.errors import Fenced, Refused
from venus.model import TableSchema

#: How long a statement of a switch waits for transactions of other sessions.
LOCK_TIMEOUT_MS = 10_000
#: How long a statement that is not urgent waits: the application's statements queue behind it.
TIDY_TIMEOUT_MS = 1_000


class RelationalSide(ABC):
    """A relational database as one of the two between which the application can switch.

    `target` represents this database as a target, while it follows the other database.
    """

    def __init__(self, target: RelationalDatabase, session: Any) -> None:
        self.name = target.name
        self._target = target
        self._session: Any = session

    @abstractmethod
    def sql(self, block: str, **parts: str) -> str:
        """Return a block of side.sql."""

    @abstractmethod
    def registry_sql(self, block: str, **parts: str) -> str:
        """Return a block of the registry.sql of the kind's dialect."""

    @abstractmethod
    def read_capture(self, tables: Seq[TableSchema]) -> tuple[SourceState, Seq[str]]:
        """In the transaction of `seal`, return the checkpoint and the tables with changes that capture has not read."""

    @property
    @abstractmethod
    def remove_mark_sql(self) -> str:
        """The statement that removes the mark of a cut-over."""

    @abstractmethod
    def read_registered_versions(self) -> Mapping[int, TableSchema]:
        """Return the registered version of each table, by its number."""

    @abstractmethod
    def describe_open_transactions(self) -> str:
        """Describe transactions of other sessions, which may hold a lock; empty if none is visible."""

    @abstractmethod
    def plan_own_handover(self, tables: Seq[RegisteredTable], released: Seq[RegisteredTable]) -> CaptureHandover:
        """Plan how capture passes to this database; `tables` have the names that they have here."""

    @abstractmethod
    def read_own_limits(self, tables: Seq[TableSchema]) -> SideLimits:
        """Read the limits of the columns of tables that have the names of this database."""

    @abstractmethod
    def find_objects_beside(self, tables: Seq[TableSchema], others: Collection[str]) -> list[NewSideObject]:
        """Find columns and tables that only this database has; all names are those of this database."""

    def list_capture_drops(self) -> Seq[str]:
        """Return the statements by which `follow` ends capture; none if capture can recognise what VENUS applies."""
        return ()

    def list_switched_off(self) -> Seq[str]:
        """Return statements that disable foreign keys and triggers, which a prepared handover may have enabled."""
        return ()

    def keep_following(self) -> None:
        for text in self.list_switched_off():
            self._session.run(text)

    def seal(self, record: SideRecord, epoch: int, tables: Seq[TableSchema]) -> SwitchPosition:
        with transaction(self._session):
            if not self._session.run(self.registry_sql("seal", epoch=str(epoch))):
                raise fenced_error(self.name)
            state, waiting = self.read_capture(tables)
            if waiting:
                raise waiting_error(self.name, waiting)
            self.put_record(record)
        return SwitchPosition(
            offset=record.offset, epoch=epoch, next_sequence=state.next_sequence, last_batch=state.last_batch
        )

    def close(self) -> None:
        self._session.rollback()
        self._session.close()

    def read(self) -> SideRecord | None:
        found = self._session.row(self.sql("exists"))
        return parse_record(self._session.row(self.sql("read"))) if found and found[0] else None

    def put_record(self, record: SideRecord) -> None:
        """Store the record in the caller's transaction."""
        put_record(self._session, self.sql("put"), record)

    # -- names of the other database -------------------------------------------------------------------------------

    def rename(self, schema: TableSchema) -> TableSchema:
        """Return a version with the names that its table has in this database; in most pairs the names are the same."""
        return schema

    def plan_handover(self, tables: Seq[RegisteredTable], released: Seq[RegisteredTable]) -> CaptureHandover:
        captured, left = ([replace(t, schema=self.rename(t.schema)) for t in some] for some in (tables, released))
        return self.plan_own_handover(captured, left)

    def read_limits(self, tables: Seq[TableSchema]) -> SideLimits:
        own = [self.rename(schema) for schema in tables]
        limits = self.read_own_limits(own)
        return {
            (schema.qualified_name, column.name): limits[place]
            for schema, here in zip(tables, own, strict=True)
            for column, own_column in zip(schema.columns, here.columns, strict=True)
            if (place := (here.qualified_name, own_column.name)) in limits
        }

    def find_own_objects(self, tables: Seq[TableSchema], others: Collection[str]) -> list[NewSideObject]:
        own = [self.rename(schema) for schema in tables]
        return self.find_objects_beside(own, self.rename_tables(others, own))

    def rename_tables(self, names: Collection[str], tables: Seq[TableSchema]) -> Collection[str]:
        """Return qualified table names of the other database in the form of this one."""
        return names

    def read_start(self) -> FollowStart:
        target, session = self._target, self._session
        position = target.read_position(session)
        if position is None:
            raise target.not_loaded_error
        known = {(s.table_id, s.version): s for s in target.read_schemas(session)}
        at_cut = [known[t.table_id, t.schema_version] for t in target.read_tables(session)]
        present = self.read_registered_versions()
        beats = [schema for schema in (*known.values(), *present.values()) if schema.is_heartbeat]
        return FollowStart(
            offset=position.offset,
            epoch=position.epoch,
            last_sequence=position.last_sequence,
            rows=position.rows,
            schemas=(*(version_to_follow(self.rename(was), present.get(was.table_id)) for was in at_cut), *beats),
        )

    def follow(self, record: SideRecord, start: FollowStart) -> None:
        target, session = self._target, self._session
        with transaction(session):
            for text in self.list_capture_drops():
                session.run(text)
            created = {t.table_id for t in target.read_tables(session) if t.created}
            target.run_own(
                session,
                "set_position",
                offset=start.offset,
                epoch=start.epoch,
                sequence=start.last_sequence,
                rows=rows_to_text(start.rows),
            )
            target.run_own(session, "forget_tables")
            for schema in start.schemas:
                target.put_schema(session, schema)
                if not schema.is_heartbeat:
                    is_own = schema.table_id in created
                    target.put_table(session, target.place(schema), ACTIVE, start.offset, created=is_own)
            session.run(self.remove_mark_sql, {"group": target.group})
            target.run_own(session, "set_paused", paused=False)
            self.put_record(record)


def rename_table(schema: TableSchema, placed: TablePlace) -> TableSchema:
    """Return a table version with the names that the table has at the target. Pure."""
    return replace(
        schema,
        namespace=placed.namespace,
        name=placed.name,
        columns=tuple(replace(c, name=placed.fold(c.name)) for c in schema.columns),
        key=tuple(map(placed.fold, schema.key)),
    )


def parse_record(row: Seq[Any] | None) -> SideRecord | None:
    """Return the record of a database's role from its row; None if there is no row."""
    if row is None:
        return None
    business, name, peer, state, switch, offset, changed_at = row
    return SideRecord(
        business=business,
        name=name,
        peer=peer,
        state=SideState(state),
        switch=switch,
        offset=offset,
        changed_at=changed_at,
    )


def put_record(session: RelationalSession, text: str, record: SideRecord) -> None:
    """Store the record of a database's role by the statement `text`."""
    values = {
        "business": record.business,
        "name": record.name,
        "peer": record.peer,
        "state": record.state.value,
        "switch": record.switch,
        "offset": record.offset,
    }
    session.run(text, values)


def fenced_error(name: str) -> Fenced:
    """Return the error for another process that has begun to capture in a later epoch."""
    return Fenced(f"{name}: another process has begun to capture", hint="run the command again")


def waiting_error(name: str, tables: Seq[str]) -> Refused:
    """Return the error for changes that capture has not read."""
    return Refused(
        f"changes of {', '.join(tables)} wait at {name}",
        hint="stop the application's writes there, and run the command again",
    )


def missing_right(place: str, role: str, right: str, table: str) -> CutoverObstacle:
    """Return the obstacle for a right that VENUS lacks on a table."""
    return CutoverObstacle(
        what=f"{place}: {role} lacks {right} on {table}", remedy=f"GRANT {right} ON {table} TO {role}"
    )


def next_number(smallest: int | None, largest: int | None, source_next: int | None, step: int) -> int:
    """Return the first free number after those in the rows and after the source's counter. Pure."""
    if step < 0:
        mine = -1 if smallest is None else smallest + step
        return mine if source_next is None else min(mine, source_next)
    mine = 1 if largest is None else max(largest, 0) + step
    return mine if source_next is None else max(mine, source_next)
