"""Operators' commands for the quarantine: list, retry, skip (features 2.16, scenario 32)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from venus.adapters.targets.contract import QuarantineRow, RetryReport
from venus.adapters.targets.postgresql.control import command_transaction, find_tables, open_control_session
from venus.adapters.targets.postgresql.database import CATCHUP, HALTED, PostgresDatabase
from venus.adapters.targets.postgresql.rows.verdicts import PARKED
from venus.adapters.targets.postgresql.rowsql import RowSql, keyed_statements
from venus.adapters.targets.postgresql.session import Refusal, TargetSession
from venus.adapters.under.row_changes import RowChanges
from venus.codec.layout import Layout
from venus.codec.packed import PackedBytes
from venus.config import Settings
from venus.errors import Refused
from venus.model import TableSchema


def list_quarantine(settings: Settings, name: str, *, everything: bool = False) -> list[QuarantineRow]:
    """Return the waiting changes in order; `everything` adds the decided ones."""
    target = PostgresDatabase(settings, name)
    with open_control_session(target) as session:
        if not target.is_installed(session):
            return []
        return _read_quarantine(target, session, everything=everything)


def retry_quarantine(settings: Settings, name: str, ids: Sequence[int] = (), tables: Sequence[str] = ()) -> RetryReport:
    """Retry parked changes now, key by key in order, and let halted tables read their changes again; default: all."""
    target = PostgresDatabase(settings, name)
    with command_transaction(target, writes_rows=True) as (session, _):
        rows = _choose_rows(target, session, ids, tables)
        concerned = {q.table_id for q in rows}
        if not ids:  # a table may halt as a whole, without a row
            concerned |= {
                t.table_id for t in (find_tables(target, session, tables) if tables else target.read_tables(session))
            }
        return _apply_and_resume(target, session, rows, concerned)


def skip_quarantine(settings: Settings, name: str, ids: Sequence[int], *, reason: str) -> RetryReport:
    """Skip these changes permanently and apply those that waited for them."""
    if not reason.strip():
        raise Refused("a change is only skipped for a reason", hint="give one with --reason")
    if not ids:
        raise Refused("no change to skip was named", hint="venus quarantine list shows their ids")
    target = PostgresDatabase(settings, name)
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
    target: PostgresDatabase, session: TargetSession, rows: list[QuarantineRow], concerned: set[int]
) -> RetryReport:
    """Apply parked changes and let the halted tables among these read their changes again."""
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
    target: PostgresDatabase, session: TargetSession, chain: list[QuarantineRow], schema: TableSchema
) -> str:
    """Apply the net change of one key; return the target's refusal, or an empty text."""
    last = chain[-1]
    rows = RowChanges(
        record_ids=PackedBytes.of([last.record_id]),
        rows=PackedBytes.of([last.row_message[len(last.record_id) :]]),
        is_deleted=np.array([last.is_deleted]),
        offsets=np.array([last.offset]),
    )
    session.run("SAVEPOINT venus_retry")
    try:
        session.run(keyed_statements(session, RowSql(target.place(schema), target.group), Layout.of(schema), rows))
    except Refusal as refusal:
        session.run("ROLLBACK TO SAVEPOINT venus_retry")
        return f"{last.table} {last.key}: {refusal} ({refusal.sqlstate})"
    session.run("RELEASE SAVEPOINT venus_retry")
    target.run_own(session, "decide_quarantine", ids=[q.id for q in chain], state="APPLIED", reason="retry")
    counted = sum(q.offset >= 0 for q in chain)  # rows of the full load do not count as changes
    target.run_own(session, "count", table_id=last.table_id, applied=counted, quarantined=-counted, skipped=0, held=0)
    return ""


def _read_quarantine(
    target: PostgresDatabase, session: TargetSession, *, everything: bool = False
) -> list[QuarantineRow]:
    return [_parse_row(row) for row in target.read_own_rows(session, "list_quarantine", everything=everything)]


def _parse_row(row: tuple[Any, ...]) -> QuarantineRow:
    values = (bytes(value) if isinstance(value, memoryview) else value for value in row)
    fields: dict[str, Any] = dict(zip(QuarantineRow.__slots__, values, strict=True))
    return QuarantineRow(**fields)


def _choose_rows(
    target: PostgresDatabase, session: TargetSession, ids: Sequence[int], tables: Sequence[str]
) -> list[QuarantineRow]:
    waiting = _read_quarantine(target, session)
    if missing := sorted(set(ids) - {q.id for q in waiting}):
        raise Refused(f"no change {', '.join(map(str, missing))} waits in quarantine", hint="venus quarantine list")
    wanted = {t.table_id for t in find_tables(target, session, tables)} if tables else set()
    if not ids and not tables:
        return waiting
    chosen = set(ids)
    return [q for q in waiting if q.id in chosen or q.table_id in wanted]
