"""An Oracle database as one of two between which the application switches (`venus cutover --fall-back`).

Triggers on each table reject writes according to this database's record. The triggers are created before the step that
needs them, because DDL ends its transaction; each statement may be repeated. VENUS waits for transactions that have
already written, first when the record begins to reject writes and again before it seals capture. Neither TRUNCATE nor a
direct path load fires a trigger.

While a database follows the other one, it keeps its capture triggers, which do not log changes by VENUS. No single
session can switch off foreign keys and the application's triggers, so they are disabled. The statements that enable
foreign keys and triggers again are stored first, and run before the database accepts writes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace

from venus.adapters.dialects.contract import RegisteredTable, SourceState
from venus.adapters.dialects.handover_rules import CaptureHandover
from venus.adapters.dialects.oracle.dictionary import ownership
from venus.adapters.dialects.oracle.dictionary.tables import OracleTable
from venus.adapters.dialects.oracle.installation.handover import (
    plan_handover,
    plan_quiet_triggers,
    position_sql,
    read_registered_versions,
    run_statements,
    waiting_tables,
)
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.source import OracleSource, open_source
from venus.adapters.dialects.oracle.sql import applying_mark, literal
from venus.adapters.dialects.oracle.sql import statement as dialect_statement
from venus.adapters.dialects.registry_rules import source_state
from venus.adapters.targets.cutover_contract import (
    ColumnLimits,
    CutoverObstacle,
    FollowStart,
    NewSideObject,
    SideLimits,
    SideOpening,
)
from venus.adapters.targets.oracle.application import DIALECT
from venus.adapters.targets.oracle.application_types import find_loss
from venus.adapters.targets.oracle.cutover.limits import limit_column
from venus.adapters.targets.oracle.database import OracleTargetDatabase, cutover_sql, side_sql
from venus.adapters.targets.oracle.ddl import quote
from venus.adapters.targets.oracle.rowsql import statement
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.relational.own_tables import to_moment
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.relational.sides import (
    LOCK_TIMEOUT_MS,
    RelationalSide,
    put_record,
    rename_table,
)
from venus.adapters.targets.relational.stepped_database import try_all
from venus.adapters.targets.switching import SideRecord, SideState, SwitchPosition
from venus.adapters.targets.way_back import COUNTED_MAX
from venus.config import Settings
from venus.errors import DatabaseUnavailable, LockTimeout
from venus.model import TableSchema

logger = logging.getLogger(__name__)

_EVENTS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}
_CREATED = re.compile(r"CREATE (TABLE|SEQUENCE) IF NOT EXISTS (VENUS_\w+)")
_OWN_BLOCKS = ("create", "create_cutover", "create_switched_off")
_SECONDS = str(LOCK_TIMEOUT_MS // 1000)


def open_side(session: OracleTargetSession, opening: SideOpening) -> None:
    """Make the database capture and accept writes as soon as the caller's transaction commits."""
    for text in opening.statements:
        session.run(text)
    at = opening.position
    session.run(position_sql(epoch=at.epoch, next_sequence=at.next_sequence, last_batch=at.last_batch))
    put_record(session, side_sql("put"), opening.record)


class OracleSide(RelationalSide):
    """An Oracle database as one of two databases between which the application can switch."""

    _target: OracleTargetDatabase
    _session: OracleTargetSession

    def __init__(self, settings: Settings, name: str) -> None:
        target = OracleTargetDatabase(settings, name)
        assert target.application is not None
        super().__init__(target, target.connect("switch"))
        self._settings = settings
        self._tables = target.application

    def sql(self, block: str, **parts: str) -> str:
        return side_sql(block, **parts)

    @property
    def remove_mark_sql(self) -> str:
        return cutover_sql("remove_mark")

    @property
    def _owner(self) -> str:
        return self._session.schema

    def read(self) -> SideRecord | None:
        record = super().read()
        if record is None or record.changed_at is None:
            return record
        return replace(record, changed_at=to_moment(int(str(record.changed_at))))

    def _open_source(self) -> OracleSource:
        """Connect as capture does."""
        return open_source(self._target.source_settings)

    # -- obstacles -------------------------------------------------------------------------------------------------

    def find_obstacles(self, tables: Seq[TableSchema]) -> list[CutoverObstacle]:
        return list(self._find_obstacles([s for s in tables if not s.is_heartbeat]))

    def _find_obstacles(self, schemas: Seq[TableSchema]) -> Iterator[CutoverObstacle]:
        place, names = self._target.description, {schema.name for schema in schemas}
        for schema in schemas:
            for line in self._table_differences(schema):
                yield CutoverObstacle(what=f"{place}: {line}: changes could not come back")
        own = {"owner": self._owner}
        with closing(self._open_source()) as source:
            version = source.database.version
            granted = {
                str(p) for (p,) in source.database.writer.fetch_rows(dialect_statement("dictionary", "privileges"))
            }
        for table, owner, trigger in self._find_triggers():
            if table in names and owner != self._owner:
                yield CutoverObstacle(
                    what=f"{place}: trigger {owner}.{trigger} of {table} would fire for changes of VENUS",
                    remedy=f"ALTER TRIGGER {quote(owner)}.{quote(trigger)} DISABLE; enable it after `venus fallback`",
                )
        if "CREATE TRIGGER" not in granted:
            yield CutoverObstacle(
                what=f"{place}: {self._owner} may not create triggers, which reject writes",
                remedy=f"GRANT CREATE TRIGGER TO {quote(self._owner)}",
            )
        if version.invisible_identity:
            for table, column in self._session.rows(side_sql("always_identities"), own):
                if table in names:
                    yield CutoverObstacle(
                        what=f"{place}: {table}.{column} is GENERATED ALWAYS and takes no number of another database",
                        remedy=f"ALTER TABLE {quote(table)} MODIFY ({quote(column)} GENERATED BY DEFAULT AS IDENTITY)",
                    )

    def _table_differences(self, schema: TableSchema) -> Iterator[str]:
        """Yield the reasons why VENUS could not write to a table of the application, one line each."""
        if schema.namespace != self._owner:
            yield f"{schema.qualified_name} is in another schema than that of VENUS's user"
            return
        table = self._tables.find(schema.name)
        if table is None:
            yield f"{schema.name} does not exist"
            return
        yield from (f"{schema.name}: {line}" for line in table.refusals)
        sent = {c.name for c in schema.columns}
        yield from (f"{schema.name} has no column {name}" for name in sorted(sent - set(table.readings)))
        for name, reading in table.readings.items():
            if name in sent and (why := find_loss(reading)):
                yield f"{schema.name}.{name}: {why}"
        yield from self._unfilled_columns(schema, table, sent)

    def _unfilled_columns(self, schema: TableSchema, table: OracleTable, sent: Collection[str]) -> Iterator[str]:
        """Yield the columns that make VENUS's rows impossible: virtual, or NOT NULL without a default and not sent."""
        for column in self._target.read_columns(self._session, schema.name):
            if column.name in sent and column.is_virtual:
                yield f"{schema.name}.{column.name} is virtual and cannot be written"
            elif column.name not in sent and column.not_null and not column.has_default and not column.is_virtual:
                yield f"{schema.name}.{column.name} is NOT NULL without a default, and does not travel"

    # -- values and objects that could not come back ---------------------------------------------------------------

    def read_own_limits(self, tables: Seq[TableSchema]) -> SideLimits:
        found: dict[tuple[str, str], ColumnLimits] = {}
        with closing(self._open_source()) as source:
            sets = source.database.dictionary.character_sets
        for schema in tables:
            table = None if schema.is_heartbeat else self._tables.find(schema.name)
            for column in table.schema.columns if table is not None else ():
                assert table is not None
                found[schema.qualified_name, column.name] = limit_column(column, table.readings[column.name], sets)
        return found

    def find_objects_beside(self, tables: Seq[TableSchema], others: Collection[str]) -> list[NewSideObject]:
        known = {schema.name: schema for schema in tables if not schema.is_heartbeat}
        found: list[NewSideObject] = []
        for table in self._tables.read_all():
            name, schema = table.schema.name, known.get(table.schema.name)
            if schema is None:
                if table.schema.qualified_name not in others:
                    found.append(NewSideObject(table=table.schema.qualified_name, rows=self._count(name, "1 = 1")))
                continue
            columns = {c.name for c in schema.columns}
            for column in table.readings.keys() - columns:
                rows = self._count(name, f"{quote(column)} IS NOT NULL")
                found.append(NewSideObject(table=schema.qualified_name, column=column, rows=rows))
        return found

    def rename(self, schema: TableSchema) -> TableSchema:
        return schema if schema.is_heartbeat else rename_table(schema, self._target.place(schema))

    def rename_tables(self, names: Collection[str], tables: Seq[TableSchema]) -> Collection[str]:
        """Return these names of the other database in the form of this one; an unknown name stays."""
        rule = self._target.other_names
        there = [one.schema for one in self._tables.read_all()]
        known = {
            f"{rule.namespace(s.namespace, DIALECT)}.{rule.fold(s.name, DIALECT)}": s.qualified_name for s in there
        }
        return {known.get(name, name) for name in names}

    def _count(self, table: str, condition: str) -> int:
        """Count the rows that meet a condition, up to a limit."""
        query = side_sql("count_rows", table=quote(table), condition=condition, most=str(COUNTED_MAX))
        return int(self._session.rows(query)[0][0])

    # -- the steps -------------------------------------------------------------------------------------------------

    def install(self) -> None:
        texts = [side_sql(block) for block in _OWN_BLOCKS]
        created = [statement("install", block) for block in statement.blocks("install")]
        names = [found for text in (*created, *texts) for found in _CREATED.findall(text)]
        self._session.run(ownership.record_statement(names))
        self._target.install()
        for text in (*texts, side_sql("create_row")):
            self._session.run(text)

    def reject_writes(self, record: SideRecord, tables: Seq[TableSchema]) -> None:
        captured = [schema for schema in tables if not schema.is_heartbeat]
        self._create_triggers(captured)
        self._change_record(record)
        try:
            self._wait_for_writers(captured)
        except LockTimeout:
            self._change_record(replace(record, state=SideState.OPEN, switch=record.switch - 1))
            raise

    def describe_open_transactions(self) -> str:
        with closing(self._open_source()) as source:
            return source.capture.describe_blockers()

    def _change_record(self, record: SideRecord) -> None:
        """Store the record; wait for a process that is changing it."""
        with transaction(self._session):
            self._session.run(side_sql("hold", seconds=_SECONDS))
            self.put_record(record)

    def _create_triggers(self, schemas: Seq[TableSchema]) -> None:
        """Create the missing triggers that reject writes; first record each as an object of VENUS."""
        there = {name for name, status in self._session.rows(side_sql("rejecting")) if status == "ENABLED"}
        wanted = {
            f"VENUS_REJ_{letter}_{schema.table_id:05}": (event, quote(schema.name))
            for schema in schemas
            for letter, event in _EVENTS.items()
        }
        missing = {name: on for name, on in wanted.items() if name not in there}
        if not missing:
            return
        mark = literal(applying_mark(self._owner))
        with closing(self._open_source()) as source:
            version = source.database.version
            statements = [ownership.record_statement([("TRIGGER", name) for name in missing])]
            for name, (event, table) in missing.items():
                text = side_sql("reject", trigger=name, event=event, table=table, mark=mark)
                statements += [ddl.statement_for(version, text), ddl.check_trigger(name), ddl.enable_trigger(name)]
            run_statements(source.database.writer, statements)

    def _wait_for_writers(self, schemas: Seq[TableSchema]) -> None:
        """Wait for the transactions that have written to the tables. Raises DatabaseUnavailable."""
        for schema in schemas:
            table = f"{quote(schema.namespace)}.{quote(schema.name)}"
            message = literal(f"VENUS: a transaction that has written to {schema.qualified_name} is still open")
            parts = {"tables": literal(table), "seconds": _SECONDS, "message": message}
            self._session.run(dialect_statement("triggers", "fence", **parts))

    def registry_sql(self, block: str, **parts: str) -> str:
        return dialect_statement("registry", block, **parts)

    def seal(self, record: SideRecord, epoch: int, tables: Seq[TableSchema]) -> SwitchPosition:
        """End capture here permanently after the writers' transactions have ended, and store the record."""
        self._wait_for_writers([schema for schema in tables if not schema.is_heartbeat])
        return super().seal(record, epoch, tables)

    def read_capture(self, tables: Seq[TableSchema]) -> tuple[SourceState, Seq[str]]:
        with closing(self._open_source()) as source:
            writer = source.database.writer
            state = source_state(writer.fetch_row(dialect_statement("registry", "state")))
            return state, waiting_tables(writer, tables)

    def reopen(self, record: SideRecord) -> None:
        session = self._session
        with transaction(session):
            session.run(dialect_statement("registry", "unseal"))
            self.put_record(record)
        self.tidy()

    def tidy(self) -> None:
        try:
            for name, _ in self._session.rows(side_sql("rejecting")):
                self._session.run(ddl.drop_object("TRIGGER", str(name)))
        except DatabaseUnavailable as error:
            logger.info("%s keeps triggers that do nothing: %s", self.name, error)

    def plan_own_handover(self, tables: Seq[RegisteredTable], released: Seq[RegisteredTable]) -> CaptureHandover:
        with closing(self._open_source()) as source:
            plan = plan_handover(source.database, tables, released)
        switch_on = [str(text) for _, _, text, _ in self._session.rows(side_sql("switched_off"))] if self.read() else []
        return replace(plan, preparation=(*plan.preparation, *switch_on))

    def read_registered_versions(self) -> Mapping[int, TableSchema]:
        with closing(self._open_source()) as source:
            return read_registered_versions(source.database.writer)

    def follow(self, record: SideRecord, start: FollowStart) -> None:
        with closing(self._open_source()) as source:
            run_statements(source.database.writer, plan_quiet_triggers(source.database))
        self._switch_off({self.rename(schema).name for schema in start.schemas})
        super().follow(record, start)

    # -- foreign keys and triggers, which stay off for every session -----------------------------------------------

    def _switch_off(self, tables: Collection[str]) -> None:
        """Disable foreign keys and triggers of these tables; first store the statements that enable them again."""
        session, own = self._session, {"owner": self._owner}
        for child, name, validated, parent in session.rows(side_sql("foreign_keys"), own):
            if child in tables or parent in tables:
                parts = {"table": quote(str(child)), "name": quote(str(name))}
                check = side_sql("validate_key", **parts) if validated == "VALIDATED" else ""
                self._record_switched_off(
                    str(name), side_sql("disable_key", **parts), side_sql("enable_key", **parts), check
                )
        for table, owner, name in self._find_triggers():
            if table in tables:
                parts = {"name": f"{quote(owner)}.{quote(name)}"}
                where = f"{owner}.{name}"
                self._record_switched_off(
                    where, side_sql("disable_trigger", **parts), side_sql("enable_trigger", **parts)
                )
        self.keep_following()

    def _record_switched_off(self, name: str, switch_off: str, switch_on: str, check_on: str = "") -> None:
        """Record an object to be disabled, with the statements that disable, enable and validate it."""
        values = {"name": name, "switch_off": switch_off, "switch_on": switch_on, "check_on": check_on}
        self._session.run(side_sql("note_switched_off"), values)

    def _find_triggers(self) -> list[tuple[str, str, str]]:
        """Return table, owner and name of the application's enabled triggers."""
        with closing(self._open_source()) as source:
            is_own = source.database.dictionary.is_own
            found = self._session.rows(side_sql("application_triggers"), {"owner": self._owner})
            return [
                (str(table), str(owner), str(name))
                for table, owner, name in found
                if not is_own(str(owner), "TRIGGER", str(name))
            ]

    def list_switched_off(self) -> list[str]:
        if self.read() is None:
            return []
        return [str(switch_off) for _, switch_off, *_ in self._session.rows(side_sql("switched_off"))]


def check_switched_on(session: OracleTargetSession) -> list[str]:
    """Validate the foreign keys that were enabled again; return those that the database rejects, one line each."""
    rejected = []
    for name, _, _, check in session.rows(side_sql("switched_off")):
        rejected += try_all(session, [str(check)] if check else [])
        session.run(side_sql("forget_switched_off"), {"name": name})
    return rejected
