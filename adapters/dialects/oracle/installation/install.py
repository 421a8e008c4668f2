"""The plan of an installation or a removal; installer.py runs it step by step.

Oracle commits with every DDL statement, so an installation can be interrupted anywhere. Therefore VENUS first stores
the table's row in the registry, which marks the installation as unfinished. VENUS creates the triggers disabled,
checks them in the dictionary and enables them; the row becomes ACTIVE only after the fence, which waits for earlier
writers. If any step fails, VENUS removes the triggers of the table, so that the application can continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.canonical_text import changed_key_column
from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import overrides, ownership, segments
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary
from venus.adapters.dialects.oracle.dictionary.tables import (
    ListedTable,
    OracleTable,
    choose_tables,
    heartbeat_table,
    with_id,
)
from venus.adapters.dialects.oracle.installation.installed_objects import (
    OracleObjects,
    give_room_back,
    read_follower_removals,
    read_planned_objects,
    valve_steps,
)
from venus.adapters.dialects.oracle.installation.table_comparison import build_triggers, find_wrong_triggers
from venus.adapters.dialects.oracle.language import ddl, inline
from venus.adapters.dialects.oracle.language.ddl import CaptureStyle
from venus.adapters.dialects.oracle.registry import OracleRegistryEntry
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import DDL_TRIGGER, HEARTBEAT, log_table_name, statement
from venus.adapters.dialects.registry_rules import (
    LOG_FULL,
    RELEASED,
    RELEASING,
    TRIGGERS_GONE,
    is_being_released,
    qualified_names,
    refuse_if_written,
)
from venus.errors import Refused
from venus.model import TableSchema

#: The prefix of a step that records which objects belong to VENUS.
RECORD = "record of"
_MADE_AGAIN = "changes may have been missed, its triggers were created again: read the table again"


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleStep:
    """One statement of an installation or a removal, and how to run it."""

    shown: InstallStep
    kind: str  # run, make, check, widen
    name: str = ""  # the trigger that is created or checked


class OracleInstallPlanner:
    """Planner of the steps that install capture at one database, remove it, or release tables."""

    def __init__(
        self, session: OracleSession, dictionary: OracleDictionary, version: Version, options: OracleOptions
    ) -> None:
        self._session = session
        self._dictionary = dictionary
        self._version = version
        self._options = options

    # -- the plan ------------------------------------------------------------------------------------------------

    def plan(self, include: Seq[str], exclude: Seq[str]) -> list[OracleStep]:
        """Return every step of the installation, in order. Raises Refused for a table that cannot be carried."""
        here = read_planned_objects(self._session, self._version)
        captured, out = self._read_registry(here)
        listed = self._dictionary.list_tables()
        by_name = {(t.owner, t.name): t for t in listed}
        steps = [
            *self._record_steps(here),
            *self._own_object_steps(here),
            *self._type_map_steps(here, choose_tables(listed, include, exclude)),
        ]
        lines = []
        for known in captured.values():
            lines.append(self._build_log_view_line(known.schema))
            if at := by_name.get((known.schema.namespace, known.schema.name)):
                steps += self._known_table_steps(known, at, here)
        next_id = self._next_free_id(max(captured | out, default=0) + 1, here)
        taken = {(c.schema.namespace, c.schema.name) for c in captured.values()}
        outside = {(c.schema.namespace, c.schema.name): c for c in out.values()}
        heartbeat = by_name.get((self._dictionary.user, HEARTBEAT))
        heartbeat = heartbeat or ListedTable(
            owner=self._dictionary.user, name=HEARTBEAT, partitioned=False, rows=1, is_own=True
        )
        for at in [heartbeat, *choose_tables(listed, include, exclude)]:
            if (known_out := outside.get((at.owner, at.name))) is not None:
                steps += self._recapture_steps(known_out, at, here)
                lines.append(self._build_log_view_line(known_out.schema))
            elif (at.owner, at.name) not in taken:
                table = with_id(self._describe_table(at), next_id)
                steps += self._new_table_steps(table, at, here)
                lines.append(self._build_log_view_line(table.schema, table.keyed.style))
                next_id = self._next_free_id(next_id + 1, here)
        is_new = len(lines) > len(captured) or "VENUS_LOG" not in here.kinds
        steps.append(_sql_step("VENUS", "view VENUS_LOG", ddl.log_view(lines), exists=not is_new))
        steps += [
            _sql_step("VENUS", what, sql, exists=done) for what, sql, done in valve_steps(self._options.log, here)
        ]
        return [_adapt_to_version(self._version, step) for step in steps]

    def _read_registry(
        self, here: OracleObjects
    ) -> tuple[dict[int, OracleRegistryEntry], dict[int, OracleRegistryEntry]]:
        """Return the captured tables, and those that are RELEASED or RELEASING."""
        if ownership.REGISTRY not in here.kinds:
            return {}, {}
        known = registry.read_tables(self._session)
        leaving = {t: c for t, c in known.items() if is_being_released(c.table)}
        released = registry.read_tables(self._session, released=True)
        return {t: c for t, c in known.items() if t not in leaving}, leaving | released

    def _recapture_steps(
        self, known: OracleRegistryEntry, at: ListedTable, here: OracleObjects
    ) -> Iterator[OracleStep]:
        """Yield the steps that capture a released table again; the registry then treats it like a new one."""
        table = self._dictionary.read_table(at, known.schema, known.number_max)
        if table.refusals:
            raise Refused(f"{table.schema.qualified_name}: {table.refusals[0]}", hint="`venus check` lists the choices")
        if table.schema.key != known.schema.key or changed_key_column(table.schema, known.schema):
            was = ", ".join(known.schema.key)
            hint = "`venus uninstall-triggers` without a table, then `venus install-triggers`"
            raise Refused(f"{table.schema.qualified_name}: its key was ({was}) when it was released", hint=hint)
        if segments.TABLE in here.kinds:
            forget = registry.forget_segments_statement(known.schema.table_id)
            yield _sql_step(table.schema.qualified_name, "rows of VENUS_SEGMENT", forget)
        yield _sql_step(
            table.schema.qualified_name,
            "row of VENUS_CAPTURED_TABLE",
            registry.recapture_statement(known.schema.table_id),
        )
        yield from self._table_object_steps(table, here, resync=False)

    def _build_log_view_line(self, schema: TableSchema, style: CaptureStyle | None = None) -> str:
        at = (schema.namespace, schema.name)
        if style is CaptureStyle.INLINE or (style is None and at in self._dictionary.read_inline_tables()):
            return inline.inline_view_line(*at)
        return ddl.log_view_table(schema.qualified_name, schema.table_id)

    @staticmethod
    def _next_free_id(table_id: int, here: OracleObjects) -> int:
        """Return the next number for which no other object has the name of the log table or of a trigger."""
        while here.owned.names_in_use(ownership.table_objects(table_id)):
            table_id += 1
        return table_id

    def _record_steps(self, here: OracleObjects) -> Iterator[OracleStep]:
        """Yield the steps that record VENUS's objects before they are created. Raises Refused for a name in use."""
        made = [*ddl.build_own_objects(self._version)]
        made += inline.build_inline_objects() if self._options.inline else []
        made += [overrides.type_map_table(self._version)] if self._dictionary.requested else []
        wanted = [(m.kind, m.name) for m in made] + [("TRIGGER", DDL_TRIGGER), ("VIEW", "VENUS_LOG")]
        own = ownership.owned_table()
        here.owned.refuse_names_in_use([(own.kind, own.name), *wanted])
        yield _sql_step("VENUS", f"table {own.name}", own.sql, exists=own.name in here.kinds)
        older = sorted(here.owned.ours - {(own.kind, own.name)})
        if older and not here.owned.recorded:
            yield _sql_step("VENUS", f"{RECORD} {len(older)} objects", ownership.record_statement(older, adopted=True))
        yield _record_step("VENUS", wanted, here)

    def _own_object_steps(self, here: OracleObjects) -> Iterator[OracleStep]:
        """Yield the steps that create VENUS's sequence, its tables and the DDL trigger."""
        for made in ddl.build_own_objects(self._version):
            yield _sql_step("VENUS", f"{made.kind.lower()} {made.name}", made.sql, exists=made.name in here.kinds)
        if self._options.inline:
            for made in inline.build_inline_objects():
                yield _sql_step("VENUS", f"table {made.name}", made.sql, exists=made.name in here.kinds)
        if here.has_ordered_sequence:
            yield _sql_step("VENUS", "order of VENUS_SEQ", statement("own", "sequence_order"))
        if "VENUS_DDL" in here.kinds and "SQL_TEXT" not in here.columns.get("VENUS_DDL", ()):
            yield _sql_step("VENUS", "column SQL_TEXT of VENUS_DDL", statement("own", "ddl_text"))
        for name, sql in ddl.initial_rows():
            yield _sql_step("VENUS", f"row of {name}", sql, exists=name in here.kinds)
        made = ddl.ddl_trigger(owner=self._dictionary.user, whole_database=self._options.watch_database)
        there = here.triggers.get(made.name)
        exists = there is not None and there.is_like(made, there.on) and made.name not in here.editioned
        if made.name in here.editioned:
            yield _sql_step("VENUS", f"older trigger {made.name}", ddl.drop_object("TRIGGER", made.name))
        yield OracleStep(
            shown=_install_step("VENUS", f"trigger {made.name}", made.sql, exists), kind="make", name=made.name
        )
        yield from _check_and_enable_steps("VENUS", {made.name: exists})

    def _type_map_steps(self, here: OracleObjects, included: Seq[ListedTable]) -> Iterator[OracleStep]:
        """Yield the steps that record the types that this command requests, before a table is registered."""
        if not self._dictionary.requested:
            return
        made = overrides.type_map_table(self._version)
        yield _sql_step("VENUS", f"table {made.name}", made.sql, exists=made.name in here.kinds)
        before = {r.name: r.to for r in self._dictionary.read_recorded_types()}
        for recorded in self._dictionary.resolve_requests(included):
            for what, sql in overrides.record_statements(recorded):
                yield _sql_step(
                    f"{recorded.owner}.{recorded.table}", what, sql, exists=before.get(recorded.name) == recorded.to
                )

    def _new_table_steps(self, table: OracleTable, at: ListedTable, here: OracleObjects) -> Iterator[OracleStep]:
        if table.keyed.style is CaptureStyle.INLINE:
            for what, sql in inline.initial_inline_rows(table.keyed):
                yield _sql_step(table.schema.qualified_name, what, sql)
        elif "VENUS_POLLED" in here.kinds:
            yield _sql_step(
                table.schema.qualified_name, "no row of VENUS_POLLED", inline.delete_polled_row(at.owner, at.name)
            )
        registered = registry.register_statement(table.schema, at.rows)
        yield _sql_step(table.schema.qualified_name, "row of VENUS_CAPTURED_TABLE", registered)
        yield from self._table_object_steps(table, here, resync=False)

    def _describe_table(self, at: ListedTable) -> OracleTable:
        if at.is_own and at.name == HEARTBEAT:
            return heartbeat_table(at)
        table = self._dictionary.read_table(at, as_inline=self._options.inline)
        if table.refusals:
            raise Refused(f"{table.schema.qualified_name}: {table.refusals[0]}", hint="`venus check` lists the choices")
        return table

    def _known_table_steps(self, known: OracleRegistryEntry, at: ListedTable, here: OracleObjects) -> list[OracleStep]:
        """Return the steps of a registered table, which create its missing objects again."""
        table = self._dictionary.read_table(at, known.schema, known.number_max)
        unfinished = known.is_unfinished
        if table.refusals or table.schema.key != known.schema.key:
            return []  # refresh_schemas reports the reason
        is_inline = table.keyed.style is CaptureStyle.INLINE
        if (
            not unfinished
            and not find_wrong_triggers(table, here.triggers)
            and not self._removals(table, here)
            and (is_inline or _log_name(table) in here.kinds)
        ):
            every = (
                []
                if is_inline
                else [self._log_step(table, True), *_widening_steps(table, here), _statistics_step(table, here)]
            )
            every += [_trigger_step(table, made, True) for made in build_triggers(table.keyed, table.schema.table_id)]
            return every
        log = [] if is_inline else self._room_steps(known, table, here)
        return [*log, *self._table_object_steps(table, here, resync=not unfinished)]

    def _log_step(self, table: OracleTable, exists: bool) -> OracleStep:
        made = ddl.log_object(table.keyed, table.schema.table_id, self._options.log.tablespace)
        return _sql_step(table.schema.qualified_name, f"table {made.name}", made.sql, exists=exists)

    @staticmethod
    def _room_steps(known: OracleRegistryEntry, table: OracleTable, here: OracleObjects) -> list[OracleStep]:
        """Return the step that frees the space of a log that was at its limit, if no trigger writes to it."""
        if not known.table.reason.startswith(LOG_FULL) or any(
            name in here.triggers and here.triggers[name].enabled
            for name in _existing_triggers(table.schema.table_id, here)
        ):
            return []
        log = _log_name(table)
        return [
            _sql_step(table.schema.qualified_name, f"room of {log}", give_room_back(log), exists=log not in here.kinds)
        ]

    def _table_object_steps(self, table: OracleTable, here: OracleObjects, *, resync: bool) -> Iterator[OracleStep]:
        """Yield the steps that create a table's log and triggers; `resync`: the table becomes RESYNC first."""
        is_inline = table.keyed.style is CaptureStyle.INLINE
        every = build_triggers(table.keyed, table.schema.table_id)
        wanted = [*([] if is_inline else [("TABLE", _log_name(table))]), *((m.kind, m.name) for m in every)]
        here.owned.refuse_names_in_use(wanted)
        yield _record_step(table.schema.qualified_name, wanted, here)
        if resync:  # before its triggers exist again: changes missed until then stay missed
            yield _state_step(table, registry.RESYNC, _MADE_AGAIN)
        if is_inline:
            has_columns = self._dictionary.has_inline_columns(table.listed)
            for what, sql in inline.inline_columns(table.keyed, table.schema.table_id, self._version):
                there = what.removeprefix("index ") in here.indexes or (what == "columns" and has_columns)
                yield _sql_step(table.schema.qualified_name, what, sql, exists=there)
        else:
            yield self._log_step(table, _log_name(table) in here.kinds)
            yield from _widening_steps(table, here)
            yield _statistics_step(table, here)
        removals = self._removals(table, here)
        wrong = {m.name for m in find_wrong_triggers(table, here.triggers, valid=not resync)} | removals.keys()
        for name, sql in removals.items():
            yield _sql_step(table.schema.qualified_name, f"older trigger {name}", sql)
        for made in every:
            yield _trigger_step(table, made, made.name not in wrong)
        yield from _check_and_enable_steps(table.schema.qualified_name, {m.name: m.name not in wrong for m in every})
        fence = _install_step(table.schema.qualified_name, "fence", ddl.fence_block(table.keyed))
        yield OracleStep(shown=replace(fence, adopted=True), kind="run")
        for what, sql in inline.after_fence_steps(table.keyed, table.schema.table_id) if is_inline else ():
            shown = _install_step(
                table.schema.qualified_name, what, sql, what.removeprefix("constraint ") in here.indexes
            )
            # an UPDATE is harmless a second time, and nothing shows that it was executed
            yield OracleStep(shown=replace(shown, adopted=sql.startswith("UPDATE")), kind="run")
        if not resync:
            active = _state_step(table, registry.ACTIVE, None)
            yield replace(active, shown=replace(active.shown, adopted=True, by_hand=False))

    @staticmethod
    def _removals(table: OracleTable, here: OracleObjects) -> dict[str, str]:
        """Return the triggers that must be dropped before a table gets its own, with the statements.

        A trigger must be dropped if it is on another table, because the table was renamed or redefined (ORA-04095), if
        it belongs to an edition, which a replacement would keep, or if it has come back from the recycle bin.
        """
        on = f"{table.keyed.owner}.{table.keyed.name}"
        made = [m.name for m in build_triggers(table.keyed, table.schema.table_id) if m.name in here.triggers]
        found = {n: ddl.drop_object("TRIGGER", n) for n in made if here.triggers[n].on != on or n in here.editioned}
        strays = here.find_strays("VENUS_TABLE_LOG" if table.keyed.style is CaptureStyle.INLINE else _log_name(table))
        return found | {s.name: s.drop for s in strays if s.on == on or s.log == _log_name(table)}

    # -- uninstallation ------------------------------------------------------------------------------------------

    def plan_removal(self) -> list[OracleStep]:
        """Return every statement that removes VENUS from the schema: triggers first, the record of objects last."""
        here = read_planned_objects(self._session, self._version)
        kinds = here.kinds
        self._dictionary.list_tables()  # the cached state of the dictionary may be outdated
        order = {"TRIGGER": 0, "VIEW": 1, "TABLE": 2, "SEQUENCE": 3}
        ours = sorted(kinds, key=lambda n: (n == ownership.TABLE, order[kinds[n]], n))
        steps = [_sql_step("VENUS", f"{kinds[n].lower()} {n}", ddl.drop_object(kinds[n], n)) for n in ours]
        before = [_sql_step(stray.on, f"trigger {stray.name}", stray.drop) for stray in here.strays]
        before += [_sql_step("VENUS", what, sql) for what, sql in read_follower_removals(self._session, kinds)]
        if here.valve:
            before.append(_sql_step("VENUS", f"job {ownership.VALVE}", statement("valve", "drop_job")))
        given_back = [
            _sql_step(f"{owner}.{name}", "columns", inline.drop_inline_columns(owner, name))
            for owner, name in sorted(self._dictionary.read_inline_tables())
        ]
        behind_triggers = sum(kinds[n] == "TRIGGER" for n in ours)
        return before + steps[:behind_triggers] + given_back + steps[behind_triggers:]

    # -- release of single tables --------------------------------------------------------------------------------

    def plan_release(self, table_ids: Seq[int]) -> list[OracleStep]:
        """Return the removal of the triggers of these tables. Raises Refused for a table captured inline.

        The registry is updated first, so that a running capture does not treat the missing triggers as an accident.
        """
        here = read_planned_objects(self._session, self._version)
        captured, out = self._read_registry(here)
        places = qualified_names((c.table for c in (captured | out).values()), table_ids)
        inline_tables = {f"{owner}.{name}" for owner, name in self._dictionary.read_inline_tables()}
        steps = []
        for table_id, place in places.items():
            if place in inline_tables:
                hint = "`venus uninstall-triggers` without a table takes all of them out"
                raise Refused(f"{place} is captured inline and cannot be taken out alone", hint=hint)
            if table_id not in out or is_being_released(out[table_id].table):
                sql = registry.installed_state_statement(table_id, RELEASING, TRIGGERS_GONE)
                steps.append(_sql_step(place, f"state {RELEASING}", sql))
            steps += [_sql_step(place, f"trigger {n}", sql) for n, sql in _existing_triggers(table_id, here).items()]
        return steps

    def plan_log_removal(self, reasons: Mapping[int, str], *, planned: bool = False) -> list[OracleStep]:
        """Return the removal of the logs of these tables; the view of all logs no longer contains them.

        Raises Refused for a log that a trigger writes to, unless its removal is only `planned`.
        """
        here = read_planned_objects(self._session, self._version)
        captured, out = self._read_registry(here)
        places = qualified_names((c.table for c in (captured | out).values()), reasons)
        if not planned:
            refuse_if_written(places, (table_id for table_id in reasons if _existing_triggers(table_id, here)))
        lines = [self._build_log_view_line(c.schema) for t, c in captured.items() if t not in reasons]
        steps = [
            _sql_step(
                place, f"state {RELEASED}", registry.installed_state_statement(table_id, RELEASED, reasons[table_id])
            )
            for table_id, place in places.items()
        ]
        logs = {log: place for i, place in places.items() if (log := log_table_name(i)) in here.kinds}
        if logs and "VENUS_LOG" in here.kinds:
            steps.append(_sql_step("VENUS", "view VENUS_LOG", ddl.log_view(lines)))
        return steps + [_sql_step(place, f"table {log}", ddl.drop_object("TABLE", log)) for log, place in logs.items()]


def _existing_triggers(table_id: int, here: OracleObjects) -> dict[str, str]:
    """Return the existing triggers that write the log of the table with this number, and how to drop each."""
    own = sorted({n for kind, n in ownership.table_objects(table_id) if kind == "TRIGGER"} & here.triggers.keys())
    strays = {s.name: s.drop for s in here.find_strays(log_table_name(table_id))}
    return {n: ddl.drop_object("TRIGGER", n) for n in own} | strays


def _adapt_to_version(version: Version, step: OracleStep) -> OracleStep:
    return replace(step, shown=replace(step.shown, sql=ddl.statement_for(version, step.shown.sql)))


def _log_name(table: OracleTable) -> str:
    return log_table_name(table.schema.table_id)


def _record_step(table: str, wanted: Seq[tuple[str, str]], here: OracleObjects) -> OracleStep:
    """Return the step that records objects as VENUS's, before they are created."""
    exists = here.owned.recorded and here.owned.ours >= set(wanted)
    return _sql_step(table, f"{RECORD} {len(wanted)} objects", ownership.record_statement(wanted), exists=exists)


def _widening_steps(table: OracleTable, here: OracleObjects) -> Iterator[OracleStep]:
    for column, to in ownership.find_narrow_columns(table.keyed, table.schema.table_id, here.widths):
        sql = ownership.widen_column(table.schema.table_id, column, to)
        yield OracleStep(
            shown=_install_step(table.schema.qualified_name, f"width of {_log_name(table)}.{column}", sql), kind="widen"
        )


def _statistics_step(table: OracleTable, here: OracleObjects) -> OracleStep:
    log = _log_name(table)
    sql = ddl.log_statistics(table.schema.table_id)
    return _sql_step(table.schema.qualified_name, f"statistics of {log}", sql, exists=log in here.fixed_statistics)


def _trigger_step(table: OracleTable, made: ddl.OracleOwnObject, exists: bool) -> OracleStep:
    shown = _install_step(table.schema.qualified_name, f"trigger {made.name}", made.sql, exists)
    return OracleStep(shown=shown, kind="make", name=made.name)


def _check_and_enable_steps(table: str, triggers: Mapping[str, bool]) -> Iterator[OracleStep]:
    """Yield the steps that check and enable triggers; `triggers`: whether each exists already and is correct."""
    for name, exists in triggers.items():
        shown = _install_step(table, f"check of trigger {name}", ddl.check_trigger(name), exists)
        yield OracleStep(shown=shown, kind="check", name=name)
    for name, exists in triggers.items():
        yield _sql_step(table, f"enabling of trigger {name}", ddl.enable_trigger(name), exists=exists)


def _install_step(table: str, what: str, sql: str, exists: bool = False) -> InstallStep:
    return InstallStep(table=table, what=what, sql=sql, exists=exists)


def _sql_step(table: str, what: str, sql: str, *, exists: bool = False) -> OracleStep:
    return OracleStep(shown=_install_step(table, what, sql, exists), kind="run")


def _state_step(table: OracleTable, state: str, reason: str | None) -> OracleStep:
    sql = registry.installed_state_statement(table.schema.table_id, state, reason)
    return _sql_step(table.schema.qualified_name, "state of the table", sql)
