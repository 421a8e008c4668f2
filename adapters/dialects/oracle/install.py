"""The plan of an installation or a removal; executing.py runs it step by step.

Oracle commits with every DDL statement, so an installation can be interrupted anywhere. Therefore the row of a table in
the registry comes first and names the unfinished installation. VENUS creates the triggers disabled, checks them in the
dictionary and enables them; the row becomes ACTIVE only after the fence. If any step fails, VENUS removes the triggers
of the table, so that the application can continue (capture.md 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.keyforms import another_form
from venus.adapters.dialects.oracle import ddl, inline, names, overrides, ownership, registry, segments
from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.ddl import Style
from venus.adapters.dialects.oracle.dictionary import Dictionary
from venus.adapters.dialects.oracle.driver import Options
from venus.adapters.dialects.oracle.ownership import Owned
from venus.adapters.dialects.oracle.refresh import Present, as_installed, triggers, wrong_triggers
from venus.adapters.dialects.oracle.registry import Captured
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.tables import Listed, Table, chosen, described, with_id
from venus.adapters.dialects.oracle.versions import Version
from venus.adapters.dialects.releasing import (
    RELEASED,
    RELEASING,
    TRIGGERS_GONE,
    is_leaving,
    places_of,
    refuse_written,
)
from venus.errors import Refused
from venus.model import TableSchema

#: The prefix of a step that records which objects belong to VENUS.
RECORD = "record of"
_MADE_AGAIN = "changes may have been missed, its triggers were created again: read the table again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One statement, with the data needed to run it."""

    shown: InstallStep
    kind: str  # run, make, check, widen
    name: str = ""  # the trigger that is created or checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """VENUS's own objects in the dictionary."""

    kinds: dict[str, str]
    triggers: dict[str, Present]
    indexes: frozenset[str]
    owned: Owned
    #: The declared types of the key columns of the log tables.
    widths: dict[str, dict[str, str]]
    fixed: frozenset[str]  # tables whose statistics are locked
    columns: Mapping[str, AbstractSet[str]]


def objects(session: Session) -> Objects:
    """Read VENUS's own objects, which its installation has recorded."""
    owned = ownership.read(session)
    found = session.rows(statement("dictionary", "own_objects"))
    status = {name: state for name, kind, state in found if kind == "TRIGGER"}
    texts: dict[str, str] = {}
    for name, text in session.rows(statement("dictionary", "source")):
        texts[name] = texts.get(name, "") + text
    rows = session.rows(statement("dictionary", "triggers"))
    triggers = {
        name: Present(
            enabled=state == "ENABLED",
            valid=status.get(name) == "VALID",
            on=f"{owner}.{table}",
            text=texts.get(name, ""),
        )
        for name, state, owner, table in rows
        if owned.has(name, "TRIGGER")
    }
    columns: dict[str, set[str]] = {}
    for name, column in session.rows(statement("dictionary", "own_columns")):
        columns.setdefault(name, set()).add(column)
    return Objects(
        kinds={name: kind for kind, name in owned.ours},
        triggers=triggers,
        indexes=frozenset(name for name, kind, _ in found if kind == "INDEX"),
        owned=owned,
        widths=ownership.read_widths(session) if owned.ours else {},
        fixed=frozenset(row[0] for row in session.rows(statement("dictionary", "fixed_statistics"))),
        columns=columns,
    )


class Installer:
    """Planner of the installation at one database."""

    def __init__(self, session: Session, dictionary: Dictionary, version: Version, options: Options) -> None:
        self._session = session
        self._dictionary = dictionary
        self._version = version
        self._options = options

    # -- the plan ------------------------------------------------------------------------------------------------

    def plan(self, include: Seq[str], exclude: Seq[str]) -> list[Step]:
        """Return every step of the installation, in order. Raises Refused for a table that cannot be carried."""
        here = objects(self._session)
        captured, out = self._registered(here)
        listed = self._dictionary.listed()
        by_name = {(t.owner, t.name): t for t in listed}
        steps = [
            *self._record(here),
            *self._own(here),
            *self._asked(here, chosen(listed, include, exclude)),
        ]
        lines = []
        for known in captured.values():
            lines.append(self._view_line(known.schema))
            if at := by_name.get((known.schema.namespace, known.schema.name)):
                steps += self._again(known, at, here)
        next_id = self._free(max(captured | out, default=0) + 1, here)
        taken = {(c.schema.namespace, c.schema.name) for c in captured.values()}
        outside = {(c.schema.namespace, c.schema.name): c for c in out.values()}
        heartbeat = by_name.get((self._dictionary.user, names.HEARTBEAT))
        heartbeat = heartbeat or Listed(
            owner=self._dictionary.user, name=names.HEARTBEAT, partitioned=False, rows=1, is_own=True
        )
        for at in [heartbeat, *chosen(listed, include, exclude)]:
            if (known_out := outside.get((at.owner, at.name))) is not None:
                steps += self._take_up(known_out, at, here)
                lines.append(self._view_line(known_out.schema))
            elif (at.owner, at.name) not in taken:
                table = with_id(self._described(at), next_id)
                steps += self._first(table, at, here)
                lines.append(self._view_line(table.schema, table.keyed.style))
                next_id = self._free(next_id + 1, here)
        is_new = len(lines) > len(captured) or "VENUS_LOG" not in here.kinds
        return [*steps, _run("VENUS", "view VENUS_LOG", ddl.log_view(lines), exists=not is_new)]

    def _registered(self, here: Objects) -> tuple[dict[int, Captured], dict[int, Captured]]:
        """Return the captured tables, and those that are RELEASED or RELEASING."""
        if ownership.REGISTRY not in here.kinds:
            return {}, {}
        known = registry.read_tables(self._session)
        leaving = {t: c for t, c in known.items() if is_leaving(c.table)}
        released = registry.read_tables(self._session, released=True)
        return {t: c for t, c in known.items() if t not in leaving}, leaving | released

    def _take_up(self, known: Captured, at: Listed, here: Objects) -> Iterator[Step]:
        """Yield the steps that capture a released table again; the registry then treats it like a new one."""
        table = self._dictionary.table(at, known.schema, known.number_max)
        if table.refused:
            raise Refused(f"{table.schema.qualified}: {table.refused[0]}", hint="`venus check` lists the choices")
        if table.schema.key != known.schema.key or another_form(table.schema, known.schema):
            was = ", ".join(known.schema.key)
            hint = "`venus uninstall-triggers` without a table, then `venus install-triggers`"
            raise Refused(f"{table.schema.qualified}: its key was ({was}) when it was released", hint=hint)
        if self._options.compound and table.keyed.style is Style.ROWS:
            table = replace(table, keyed=replace(table.keyed, style=Style.COMPOUND))
        if segments.TABLE in here.kinds:
            forget = registry.forget_segments(known.schema.table_id)
            yield _run(table.schema.qualified, "rows of VENUS_SEGMENT", forget)
        yield _run(table.schema.qualified, "row of VENUS_CAPTURED_TABLE", registry.take_up(known.schema.table_id))
        yield from self._objects(table, here, resync=False)

    def _view_line(self, schema: TableSchema, style: Style | None = None) -> str:
        at = (schema.namespace, schema.name)
        if style is Style.INLINE or (style is None and at in self._dictionary.inline_tables()):
            return inline.log_view_table(*at)
        return ddl.log_view_table(schema.qualified, schema.table_id)

    @staticmethod
    def _free(table_id: int, here: Objects) -> int:
        """Return the next number for which no other object has the name of the log table or of a trigger."""
        while here.owned.taken(ownership.of_table(table_id)):
            table_id += 1
        return table_id

    def _record(self, here: Objects) -> Iterator[Step]:
        """Record the objects of every installation before they are created. Raises Refused for a name in use."""
        made = [*ddl.own_objects(self._version, cluster=self._options.cluster)]
        made += inline.own_objects() if self._options.inline else []
        made += [overrides.own_table(self._version)] if self._dictionary.asked else []
        wanted = [(m.kind, m.name) for m in made] + [("TRIGGER", names.DDL_TRIGGER), ("VIEW", "VENUS_LOG")]
        own = ownership.own_table()
        here.owned.refuse_taken([(own.kind, own.name), *wanted])
        yield _run("VENUS", f"table {own.name}", own.sql, exists=own.name in here.kinds)
        older = sorted(here.owned.ours - {(own.kind, own.name)})
        if older and not here.owned.recorded:
            yield _run("VENUS", f"{RECORD} {len(older)} objects", ownership.record(older, adopted=True))
        yield _recorded("VENUS", wanted, here)

    def _own(self, here: Objects) -> Iterator[Step]:
        for made in ddl.own_objects(self._version, cluster=self._options.cluster):
            yield _run("VENUS", f"{made.kind.lower()} {made.name}", made.sql, exists=made.name in here.kinds)
        if self._options.inline:
            for made in inline.own_objects():
                yield _run("VENUS", f"table {made.name}", made.sql, exists=made.name in here.kinds)
        if "VENUS_DDL" in here.kinds and "SQL_TEXT" not in here.columns.get("VENUS_DDL", ()):
            yield _run("VENUS", "column SQL_TEXT of VENUS_DDL", statement("own", "ddl_text"))
        for name, sql in ddl.own_rows():
            yield _run("VENUS", f"row of {name}", sql, exists=name in here.kinds)
        made = ddl.ddl_trigger(owner=self._dictionary.user, whole_database=self._options.watch_database)
        there = here.triggers.get(made.name)
        exists = there is not None and there.is_like(made, there.on)
        yield Step(shown=_step("VENUS", f"trigger {made.name}", made.sql, exists), kind="make", name=made.name)
        yield from _checked_and_enabled("VENUS", {made.name: exists})

    def _asked(self, here: Objects, included: Seq[Listed]) -> Iterator[Step]:
        """Record the types that this command requests, before the table is registered."""
        if not self._dictionary.asked:
            return
        made = overrides.own_table(self._version)
        yield _run("VENUS", f"table {made.name}", made.sql, exists=made.name in here.kinds)
        before = {r.name: r.to for r in self._dictionary.recorded()}
        for recorded in self._dictionary.to_record(included):
            for what, sql in overrides.rows_of(recorded):
                yield _run(
                    f"{recorded.owner}.{recorded.table}", what, sql, exists=before.get(recorded.name) == recorded.to
                )

    def _first(self, table: Table, at: Listed, here: Objects) -> Iterator[Step]:
        if table.keyed.style is Style.INLINE:
            for what, sql in inline.rows_of(table.keyed):
                yield _run(table.schema.qualified, what, sql)
        elif "VENUS_POLLED" in here.kinds:
            yield _run(table.schema.qualified, "no row of VENUS_POLLED", inline.forgotten(at.owner, at.name))
        registered = registry.registration(table.schema, at.rows)
        yield _run(table.schema.qualified, "row of VENUS_CAPTURED_TABLE", registered)
        yield from self._objects(table, here, resync=False)

    def _described(self, at: Listed) -> Table:
        if at.is_own and at.name == names.HEARTBEAT:
            return heartbeat_table(at)
        table = self._dictionary.table(at, as_inline=self._options.inline)
        if table.refused:
            raise Refused(f"{table.schema.qualified}: {table.refused[0]}", hint="`venus check` lists the choices")
        if self._options.compound and table.keyed.style is Style.ROWS:
            return replace(table, keyed=replace(table.keyed, style=Style.COMPOUND))
        return table

    def _again(self, known: Captured, at: Listed, here: Objects) -> list[Step]:
        """Return the steps for a registered table: objects that have vanished are created again."""
        table = self._dictionary.table(at, known.schema, known.number_max)
        table = replace(table, keyed=as_installed(table.keyed, known.schema.table_id, here.triggers))
        unfinished = known.is_unfinished
        if table.refused or table.schema.key != known.schema.key:
            return []  # refresh_schemas reports the reason
        is_inline = table.keyed.style is Style.INLINE
        if not unfinished and not wrong_triggers(table, here.triggers) and (is_inline or _log(table) in here.kinds):
            every = [] if is_inline else [_log_step(table, True), *_wider(table, here), _fixed_step(table, here)]
            every += [_make(table, made, True) for made in triggers(table.keyed, table.schema.table_id)]
            return every
        return list(self._objects(table, here, resync=not unfinished))

    def _objects(self, table: Table, here: Objects, *, resync: bool) -> Iterator[Step]:
        is_inline = table.keyed.style is Style.INLINE
        every = triggers(table.keyed, table.schema.table_id)
        wanted = [*([] if is_inline else [("TABLE", _log(table))]), *((m.kind, m.name) for m in every)]
        here.owned.refuse_taken(wanted)
        yield _recorded(table.schema.qualified, wanted, here)
        if resync:  # before its triggers exist again: changes missed until then stay missed
            yield _state(table, registry.RESYNC, _MADE_AGAIN)
        if is_inline:
            has_columns = self._dictionary.has_inline_columns(table.listed)
            for what, sql in inline.columns_of(table.keyed, table.schema.table_id, self._version):
                there = what.removeprefix("index ") in here.indexes or (what == "columns" and has_columns)
                yield _run(table.schema.qualified, what, sql, exists=there)
        else:
            yield _log_step(table, _log(table) in here.kinds)
            yield from _wider(table, here)
            yield _fixed_step(table, here)
        wrong = {made.name for made in wrong_triggers(table, here.triggers)}
        for made in every:
            yield _make(table, made, made.name not in wrong)
        yield from _checked_and_enabled(table.schema.qualified, {m.name: m.name not in wrong for m in every})
        fence = _step(table.schema.qualified, "fence", ddl.fence(table.keyed))
        yield Step(shown=replace(fence, adopted=True), kind="run")
        for what, sql in inline.after_fence(table.keyed, table.schema.table_id) if is_inline else ():
            shown = _step(table.schema.qualified, what, sql, what.removeprefix("constraint ") in here.indexes)
            # an UPDATE is harmless a second time, and nothing shows that it was executed
            yield Step(shown=replace(shown, adopted=sql.startswith("UPDATE")), kind="run")
        if not resync:
            active = _state(table, registry.ACTIVE, None)
            yield replace(active, shown=replace(active.shown, adopted=True, by_hand=False))

    # -- uninstallation ------------------------------------------------------------------------------------------

    def removal(self) -> list[Step]:
        """Return every statement that removes VENUS from the schema: triggers first, the record of objects last."""
        kinds = objects(self._session).kinds
        self._dictionary.listed()  # its cached state may be outdated
        order = {"TRIGGER": 0, "VIEW": 1, "TABLE": 2, "SEQUENCE": 3}
        ours = sorted(kinds, key=lambda n: (n == ownership.TABLE, order[kinds[n]], n))
        steps = [_run("VENUS", f"{kinds[n].lower()} {n}", ddl.drop(kinds[n], n)) for n in ours]
        given_back = [
            _run(f"{owner}.{name}", "columns", inline.drop_columns(owner, name))
            for owner, name in sorted(self._dictionary.inline_tables())
        ]
        behind_triggers = sum(kinds[n] == "TRIGGER" for n in ours)
        return steps[:behind_triggers] + given_back + steps[behind_triggers:]

    # -- release of single tables --------------------------------------------------------------------------------

    def release(self, table_ids: Seq[int]) -> list[Step]:
        """Return the removal of the triggers of these tables. Raises Refused for one that is captured inline.

        The registry is updated first, so that a running capture does not treat the missing triggers as an accident.
        """
        here = objects(self._session)
        captured, out = self._registered(here)
        places = places_of((c.table for c in (captured | out).values()), table_ids)
        inline_tables = {f"{owner}.{name}" for owner, name in self._dictionary.inline_tables()}
        steps = []
        for table_id, place in places.items():
            if place in inline_tables:
                hint = "`venus uninstall-triggers` without a table takes all of them out"
                raise Refused(f"{place} is captured inline and cannot be taken out alone", hint=hint)
            if table_id not in out or is_leaving(out[table_id].table):
                sql = registry.installed(table_id, RELEASING, TRIGGERS_GONE)
                steps.append(_run(place, f"state {RELEASING}", sql))
            steps += [_run(place, f"trigger {n}", ddl.drop("TRIGGER", n)) for n in _triggers(table_id, here)]
        return steps

    def drop_logs(self, reasons: Mapping[int, str], *, planned: bool = False) -> list[Step]:
        """Return the removal of the logs of these tables; the view of all logs no longer contains them.

        Raises Refused for a log that a trigger writes to, unless its removal is only `planned`.
        """
        here = objects(self._session)
        captured, out = self._registered(here)
        places = places_of((c.table for c in (captured | out).values()), reasons)
        if not planned:
            refuse_written(places, (table_id for table_id in reasons if _triggers(table_id, here)))
        lines = [self._view_line(c.schema) for t, c in captured.items() if t not in reasons]
        steps = [
            _run(place, f"state {RELEASED}", registry.installed(table_id, RELEASED, reasons[table_id]))
            for table_id, place in places.items()
        ]
        logs = {log: place for i, place in places.items() if (log := names.log_table(i)) in here.kinds}
        if logs and "VENUS_LOG" in here.kinds:
            steps.append(_run("VENUS", "view VENUS_LOG", ddl.log_view(lines)))
        return steps + [_run(place, f"table {log}", ddl.drop("TABLE", log)) for log, place in logs.items()]


def heartbeat_table(at: Listed) -> Table:
    """Describe VENUS's heartbeat table before it exists."""
    columns = [
        (name, "NUMBER", None, 22, 0, None, digits, 0, "N", None) for name, digits in (("ID", 9), ("BEAT_AT", 18))
    ]
    return described(at, columns, [("VENUS_HEARTBEAT_PK", "P", "ID")])


def _triggers(table_id: int, here: Objects) -> list[str]:
    """Return the existing triggers with a table's number."""
    return sorted({n for kind, n in ownership.of_table(table_id) if kind == "TRIGGER"} & here.triggers.keys())


def _log(table: Table) -> str:
    return names.log_table(table.schema.table_id)


def _recorded(table: str, wanted: Seq[tuple[str, str]], here: Objects) -> Step:
    """Return the step that records objects as VENUS's, before they are created."""
    exists = here.owned.recorded and here.owned.ours >= set(wanted)
    return _run(table, f"{RECORD} {len(wanted)} objects", ownership.record(wanted), exists=exists)


def _log_step(table: Table, exists: bool) -> Step:
    made = ddl.log_ddl(table.keyed, table.schema.table_id)
    return _run(table.schema.qualified, f"table {made.name}", made.sql, exists=exists)


def _wider(table: Table, here: Objects) -> Iterator[Step]:
    for column, to in ownership.narrower(table.keyed, table.schema.table_id, here.widths):
        sql = ownership.widen(table.schema.table_id, column, to)
        yield Step(shown=_step(table.schema.qualified, f"width of {_log(table)}.{column}", sql), kind="widen")


def _fixed_step(table: Table, here: Objects) -> Step:
    log = _log(table)
    sql = ddl.log_statistics(table.schema.table_id)
    return _run(table.schema.qualified, f"statistics of {log}", sql, exists=log in here.fixed)


def _make(table: Table, made: ddl.Made, exists: bool) -> Step:
    shown = _step(table.schema.qualified, f"trigger {made.name}", made.sql, exists)
    return Step(shown=shown, kind="make", name=made.name)


def _checked_and_enabled(table: str, triggers: Mapping[str, bool]) -> Iterator[Step]:
    """Yield the steps that check and enable these triggers; those in order exist already."""
    for name, exists in triggers.items():
        shown = _step(table, f"check of trigger {name}", ddl.compiled(name), exists)
        yield Step(shown=shown, kind="check", name=name)
    for name, exists in triggers.items():
        yield _run(table, f"enabling of trigger {name}", ddl.enable(name), exists=exists)


def _step(table: str, what: str, sql: str, exists: bool = False) -> InstallStep:
    return InstallStep(table=table, what=what, sql=sql, exists=exists)


def _run(table: str, what: str, sql: str, *, exists: bool = False) -> Step:
    return Step(shown=_step(table, what, sql, exists), kind="run")


def _state(table: Table, state: str, reason: str | None) -> Step:
    sql = registry.installed(table.schema.table_id, state, reason)
    return _run(table.schema.qualified, "state of the table", sql)
