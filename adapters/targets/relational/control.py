"""Operators' commands for a target: status, pause, resume, resync, comparisons, quarantine.

A command is one transaction that first locks the row of the applied offset, so a command never runs in the middle of a
cut. It increments `control`, so that the apply loop reads the states again before its next transaction. A command works
whether an apply loop is running or not. Further commands list, retry and skip quarantined changes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from venus.adapters.targets.contract import QuarantineRow, RetryReport
from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.predicates import predicate_text
from venus.adapters.targets.relational.catalogue import displayed_state
from venus.adapters.targets.relational.database import RelationalDatabase, open_database, refuse_if_cut_over
from venus.adapters.targets.relational.session import Refusal, RelationalSession, transaction
from venus.adapters.targets.relational.states import (
    ACCOUNT,
    ACTIVE,
    CATCHUP,
    HALTED,
    LOADING,
    PAUSED,
    RESYNC,
    TableState,
    TargetPosition,
    format_mark_time,
)
from venus.adapters.targets.relational.verdicts import PARKED
from venus.adapters.targets.views import TargetTable, TargetView, age_s
from venus.adapters.under.row_changes import RowChanges
from venus.codec.packed import PackedBytes
from venus.config import Settings
from venus.errors import Refused
from venus.masking.projection import describe_masks
from venus.model import TableSchema
from venus.predicates.ranges import is_same
from venus.rpc.conditions import LastComparison, TableCondition, decode_comparison, encode_comparison


@contextmanager
def open_control_session(target: RelationalDatabase) -> Iterator[RelationalSession]:
    """Open a session for one command; roll back an open transaction at the end."""
    session = target.connect("control")
    try:
        yield session
    finally:
        session.rollback()
        session.close()


@contextmanager
def command_transaction(
    target: RelationalDatabase, *, writes_rows: bool = False
) -> Iterator[tuple[RelationalSession, TargetPosition]]:
    """Open a transaction that excludes the apply loop. `writes_rows`: disable foreign keys and triggers if allowed."""
    with open_control_session(target) as session:
        if not target.is_installed(session):
            raise target.not_loaded_error
        if writes_rows:
            target.try_disable_constraints(session)  # a refusal would end the transaction
        with transaction(session):
            refuse_if_cut_over(target, session)
            target.run_own(session, "hold_position")
            position = target.read_position(session)
            if position is None:
                raise target.not_loaded_error
            yield session, position
            target.run_own(session, "raise_control")


def find_tables(target: RelationalDatabase, session: RelationalSession, patterns: Sequence[str]) -> list[TableState]:
    """Return the tables that match the patterns, by source name, target name or bare name."""
    states = target.read_tables(session)
    found = [t for t in states if any(_is_named(t, pattern) for pattern in patterns)]
    for pattern in patterns:
        if not any(_is_named(t, pattern) for t in states):
            known = ", ".join(t.source_name for t in states)
            raise Refused(f"target {target.name} has no table {pattern}", hint=f"its tables: {known}")
    loading = [t.source_name for t in found if t.state == LOADING]
    if loading:
        raise Refused(f"{', '.join(loading)}: being loaded", hint=f"venus migrate --target {target.name}")
    return found


def _is_named(state: TableState, pattern: str) -> bool:
    names = (state.source_name, f"{state.namespace}.{state.name}", state.name)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProgress:
    """Everything that `status` shows of a target."""

    target: str
    group: str
    #: Database and host.
    place: str = ""
    position: TargetPosition | None
    #: Number of rows that an unfinished load has loaded so far; None if no load is unfinished.
    loading_rows: int | None = None
    tables: tuple[TableState, ...]
    #: Refused changes that wait for a decision, by table.
    refused: dict[int, int]
    constraints: str = ""
    #: Changes below the applied offset that are neither applied nor quarantined, skipped or held.
    unaccounted: int = 0
    #: Tables that are being made equal to the full data.
    resyncing: tuple[str, ...] = ()
    #: The mark of the target's cut-over; None = the target follows.
    cut_over: CutoverMark | None = None
    #: The configured predicate of each table by its name at the source; empty = every row.
    wanted: dict[str, str] = field(default_factory=dict)
    #: Tables whose changes wait for a lock of another session.
    waiting: tuple[TableCondition, ...] = ()
    #: The time of this snapshot by the target's own clock.
    now_us: int
    #: Indexes, checks and foreign keys that differ from the source's, by the table's name there.
    differing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The columns that are masked, renamed or dropped, in words, by the table's number.
    columns: dict[int, str] = field(default_factory=dict)


def read_progress(settings: Settings, name: str) -> TargetProgress:
    """Read the progress of a target; also works before it was loaded."""
    target = open_database(settings, name)
    with open_control_session(target) as session:
        found = read_progress_in(target, session)
        follows = found.position is not None and found.cut_over is None
        return replace(
            found,
            constraints=target.constraints_text(is_deferred=not target.try_disable_constraints(session)),
            differing=target.find_differences(session) if follows else {},
        )


def read_progress_in(target: RelationalDatabase, session: RelationalSession) -> TargetProgress:
    """Read the progress in an existing session without changing its settings; `constraints` therefore stays empty."""
    installed = target.is_installed(session)
    tables = tuple(target.read_tables(session)) if installed else ()
    sweeps = target.read_own_rows(session, "sweeps") if installed else []
    resyncing = {table_id for table_id, purpose, _ in sweeps if purpose == RESYNC}
    loading = target.read_own_rows(session, "loading_rows") if installed else []
    schemas = {(s.table_id, s.version): s for s in target.read_schemas(session)} if installed else {}
    return TargetProgress(
        target=target.name,
        group=target.group,
        place=target.description,
        position=target.read_position(session) if installed else None,
        loading_rows=next((rows for (rows,) in loading), None),
        tables=tables,
        refused=dict(target.read_own_rows(session, "open_by_table")) if installed else {},
        unaccounted=(target.count_unaccounted(session) or 0) if installed else 0,
        resyncing=tuple(t.source_name for t in tables if t.table_id in resyncing),
        cut_over=target.read_mark(session),
        wanted={t.source_name: predicate_text(target.config.where, t.source_name) for t in tables},
        waiting=tuple(target.find_lock_waits(session, {t.table_id: t for t in tables})),
        now_us=int(target.read_own_rows(session, "clock")[0][0]),
        columns={
            t.table_id: describe_masks(schema)
            for t in tables
            if (schema := schemas.get((t.table_id, t.schema_version))) is not None
        },
    )


def read_table_states(settings: Settings, name: str) -> list[TableState]:
    """Return the state of every table at a target."""
    return list(read_progress(settings, name).tables)


def pause(settings: Settings, name: str, tables: Sequence[str] = (), *, reason: str = "") -> list[TableState]:
    """Stop applying to these tables (patterns) or to the whole target; no change is lost, the backlog grows."""
    target = open_database(settings, name)
    with command_transaction(target) as (session, position):
        if not tables:
            target.run_own(session, "set_paused", paused=True)
            return target.read_tables(session)
        for state in find_tables(target, session, tables):
            if state.state == ACTIVE:
                target.set_state(session, state.table_id, PAUSED, held_from=position.offset, reason=reason)
            elif state.state == CATCHUP:
                target.set_state(session, state.table_id, PAUSED, held_from=state.held_from, reason=reason)
        return target.read_tables(session)


def resume(settings: Settings, name: str, tables: Sequence[str] = ()) -> list[TableState]:
    """Resume these tables or the whole target: each table reads its backlog in order, then it joins the stream."""
    target = open_database(settings, name)
    with command_transaction(target) as (session, _):
        if not tables:
            target.run_own(session, "set_paused", paused=False)
            return target.read_tables(session)
        for state in find_tables(target, session, tables):
            if state.state in (PAUSED, HALTED):
                target.set_state(session, state.table_id, CATCHUP, held_from=state.held_from)
        return target.read_tables(session)


def record_comparison(settings: Settings, name: str, compared: LastComparison) -> None:
    """Store the outcome of `venus verify`, unless an older VENUS has installed the target."""
    target = open_database(settings, name)
    with open_control_session(target) as session:
        if target.is_installed(session) and target.read_own_rows(session, "is_newest")[0][0]:
            with transaction(session):
                target.run_own(session, "set_compared", compared=encode_comparison(compared))


def read_row_counts(settings: Settings, name: str) -> dict[int, int]:
    """Return the approximate row count of each table of a target, by number."""
    target = open_database(settings, name)
    with open_control_session(target) as session:
        return target.read_row_counts(session) if target.is_installed(session) else {}


def request_resync(settings: Settings, name: str, table: str) -> list[TableState]:
    """Request that these tables (a pattern) be made equal to the broker's full data while others stream."""
    target = open_database(settings, name)
    with command_transaction(target) as (session, _):
        found = find_tables(target, session, [table])
        for state in found:
            target.run_own(session, "put_sweep", table_id=state.table_id, purpose=RESYNC, offset=-1)
        if len(found) == len(target.read_tables(session)):
            missing = target.count_unaccounted(session) or 0
            target.run_own(session, "put_sweep", table_id=0, purpose=ACCOUNT, offset=missing)
        return found


def build_view(found: TargetProgress) -> TargetView:
    """Return the progress of a relational target in the form that all kinds of targets share."""
    position = found.position
    if position is None:
        return TargetView(
            name=found.target,
            group=found.group,
            place=found.place,
            constraints=found.constraints,
            loading_rows=found.loading_rows,
        )
    return _build_loaded_view(found, position)


def _build_loaded_view(found: TargetProgress, position: TargetPosition) -> TargetView:
    """Return the view of a target that has an applied offset."""
    heartbeat_us = moment_us(position.heartbeat_at)
    return TargetView(
        name=found.target,
        group=found.group,
        place=found.place,
        loaded=True,
        compared=decode_comparison(position.compared),
        paused=position.paused,
        offset=position.offset,
        applied_sequence=position.last_sequence,
        applied_age_s=age_s(moment_us(position.applied_at), found.now_us),
        heartbeat_age_s=age_s(heartbeat_us, found.now_us),
        heartbeat_at_us=heartbeat_us,
        open_quarantine=sum(found.refused.values()),
        unaccounted_rows=found.unaccounted,
        constraints=found.constraints,
        note=position.note,
        cut_over=format_mark_time(found.cut_over),
        committed_at_cut=committed_at_cut(found.cut_over),
        waiting=found.waiting,
        tables=tuple(
            build_table_view(
                t,
                refused=found.refused.get(t.table_id, 0),
                resyncing=t.source_name in found.resyncing,
                wanted=found.wanted.get(t.source_name),
                differs=found.differing.get(t.source_name, ()),
                columns=found.columns.get(t.table_id, ""),
            )
            for t in found.tables
        ),
    )


def build_table_view(
    found: TableState,
    *,
    refused: int = 0,
    resyncing: bool = False,
    wanted: str | None = None,
    differs: tuple[str, ...] = (),
    columns: str = "",
) -> TargetTable:
    """Return the view of one table. `wanted`: the table's configured predicate; None = the one in force."""
    configured = None if wanted is None or is_same(found.predicate, wanted, ()) else wanted
    return TargetTable(
        table_id=found.table_id,
        name=found.source_name,
        state=displayed_state(found, resyncing=resyncing),
        reason=found.reason,
        held_from=found.held_from,
        rows_applied=found.rows_applied,
        quarantined=found.rows_quarantined,
        refused=refused,
        skipped=found.rows_skipped,
        held=found.rows_held,
        predicate=found.predicate,
        predicate_before=found.predicate_before,
        predicate_configured=configured,
        rows_brought=found.rows_brought,
        rows_removed=found.rows_removed,
        differs=differs,
        columns=columns,
    )


def committed_at_cut(mark: CutoverMark | None) -> dict[int, int]:
    """Return the number of changes of each table that the broker had committed at the cut-over."""
    return {int(t): int(n) for t, n in mark.certificate["committed_changes"].items()} if mark else {}


def moment_us(moment: datetime | None) -> int:
    """Return Unix microseconds, 0 for never."""
    return 0 if moment is None else int(moment.timestamp() * 1e6)


def list_quarantine(settings: Settings, name: str, *, everything: bool = False) -> list[QuarantineRow]:
    """Return the changes that wait in quarantine, in order; `everything` adds those already decided."""
    target = open_database(settings, name)
    with open_control_session(target) as session:
        if not target.is_installed(session):
            return []
        return _read_quarantine(target, session, everything=everything)


def retry_quarantine(settings: Settings, name: str, ids: Sequence[int] = (), tables: Sequence[str] = ()) -> RetryReport:
    """Retry parked changes now, key by key in order, and let halted tables read their changes again; default: all."""
    target = open_database(settings, name)
    with command_transaction(target, writes_rows=True) as (session, _):
        rows = _choose_rows(target, session, ids, tables)
        concerned = {q.table_id for q in rows}
        if not ids:  # a table may halt as a whole, without a refused row
            concerned |= {
                t.table_id for t in (find_tables(target, session, tables) if tables else target.read_tables(session))
            }
        return _apply_and_resume(target, session, rows, concerned)


def skip_quarantine(settings: Settings, name: str, ids: Sequence[int], *, reason: str) -> RetryReport:
    """Skip these changes permanently, and apply the changes that waited for them."""
    if not reason.strip():
        raise Refused("a change is only skipped for a reason", hint="give one with --reason")
    if not ids:
        raise Refused("no change to skip was named", hint="venus quarantine list shows their ids")
    target = open_database(settings, name)
    with command_transaction(target, writes_rows=True) as (session, _):
        rows = _choose_rows(target, session, ids, ())
        target.run_own(session, "decide_quarantine", ids=[q.id for q in rows], state="SKIPPED", reason=reason)
        parked = [q for q in rows if q.state == PARKED and q.offset >= 0]
        for table_id in {q.table_id for q in parked}:
            count = sum(q.table_id == table_id for q in parked)
            target.run_own(session, "count", table_id=table_id, applied=0, quarantined=-count, skipped=count, held=0)
        keys = {(q.table_id, q.record_id) for q in rows}
        behind = [
            q for q in _read_quarantine(target, session) if q.state == PARKED and (q.table_id, q.record_id) in keys
        ]
        halted = [q for q in rows if q.state == HALTED]
        return _apply_and_resume(target, session, [*behind, *halted], {q.table_id for q in (*behind, *halted)})


def _apply_and_resume(
    target: RelationalDatabase, session: RelationalSession, rows: list[QuarantineRow], concerned: set[int]
) -> RetryReport:
    """Apply the parked changes among `rows`, and let halted tables of `concerned` read their changes again."""
    applied, refused = 0, []
    schemas = {(s.table_id, s.version): s for s in target.read_schemas(session)}
    chains: dict[tuple[int, bytes], list[QuarantineRow]] = {}
    for waiting in (q for q in _read_quarantine(target, session) if q.state == PARKED):
        chains.setdefault((waiting.table_id, waiting.record_id), []).append(waiting)
    for key in dict.fromkeys((q.table_id, q.record_id) for q in rows if q.state == PARKED):
        chain = chains[key]
        message = _apply_key(target, session, chain, schemas[chain[-1].table_id, chain[-1].schema_version])
        if message:
            refused.append(message)
        else:
            applied += len(chain)
    waits = {q.table_id for q in _read_quarantine(target, session) if q.state == PARKED}
    resumed = []
    for state in target.read_tables(session):
        if state.state == HALTED and state.table_id in concerned and state.table_id not in waits:
            target.set_state(session, state.table_id, CATCHUP, held_from=state.held_from)
            resumed.append(state.source_name)
    return RetryReport(
        applied=applied, still_refused=len(refused), resumed=tuple(resumed), messages=tuple(dict.fromkeys(refused))
    )


def _apply_key(
    target: RelationalDatabase, session: RelationalSession, chain: list[QuarantineRow], schema: TableSchema
) -> str:
    """Apply the last of a key's parked changes; return the target's refusal, or an empty text."""
    last = chain[-1]
    rows = RowChanges(
        record_ids=PackedBytes.of([last.record_id]),
        rows=PackedBytes.of([last.row_message[len(last.record_id) :]]),
        is_deleted=np.array([last.is_deleted]),
        offsets=np.array([last.offset]),
    )
    session.run("SAVEPOINT venus_retry")
    try:
        target.apply_net(session, schema, rows)
    except Refusal as refusal:
        session.run("ROLLBACK TO SAVEPOINT venus_retry")
        return f"{last.table} {last.key}: {refusal} ({refusal.sqlstate})"
    session.run("RELEASE SAVEPOINT venus_retry")
    target.run_own(session, "decide_quarantine", ids=[q.id for q in chain], state="APPLIED", reason="retry")
    counted = sum(q.offset >= 0 for q in chain)  # rows of the full load do not count as changes
    target.run_own(session, "count", table_id=last.table_id, applied=counted, quarantined=-counted, skipped=0, held=0)
    return ""


def _read_quarantine(
    target: RelationalDatabase, session: RelationalSession, *, everything: bool = False
) -> list[QuarantineRow]:
    """Return the changes that wait in quarantine; `everything` adds those already decided."""
    return [_parse_row(row) for row in target.read_own_rows(session, "list_quarantine", everything=everything)]


def _parse_row(row: tuple[Any, ...]) -> QuarantineRow:
    values = (bytes(value) if isinstance(value, memoryview) else value for value in row)
    fields: dict[str, Any] = dict(zip(QuarantineRow.__slots__, values, strict=True))
    return QuarantineRow(**fields)


def _choose_rows(
    target: RelationalDatabase, session: RelationalSession, ids: Sequence[int], tables: Sequence[str]
) -> list[QuarantineRow]:
    """Return the waiting changes with these ids or of these tables; all if neither is given. Raises Refused."""
    waiting = _read_quarantine(target, session)
    if missing := sorted(set(ids) - {q.id for q in waiting}):
        raise Refused(f"no change {', '.join(map(str, missing))} waits in quarantine", hint="venus quarantine list")
    wanted = {t.table_id for t in find_tables(target, session, tables)} if tables else set()
    if not ids and not tables:
        return waiting
    chosen = set(ids)
    return [q for q in waiting if q.id in chosen or q.table_id in wanted]
