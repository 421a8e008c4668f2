"""The execution of an installation's steps, or of the steps that remain after a DBA has run them as a script.

A failing step removes the triggers of its own table again, so that the application can continue (capture.md 3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq

import tenacity

from venus.adapters.dialects.oracle import ddl, registry
from venus.adapters.dialects.oracle.connection import OracleBusy, OracleSession
from venus.adapters.dialects.oracle.install import RECORD, OracleStep, read_objects
from venus.adapters.dialects.oracle.names import log_key_columns, log_table_name
from venus.adapters.dialects.oracle.registry import INSTALLING
from venus.adapters.dialects.oracle.statements import statement
from venus.errors import Refused, SourceError, VenusError

logger = logging.getLogger(__name__)

#: The number of attempts for a statement that a lock or an open transaction blocks.
ATTEMPTS = 10


def run_steps(session: OracleSession, steps: Seq[OracleStep]) -> None:
    """Run the steps. A failing step removes the triggers of its own table again, and nothing else."""
    session.run(statement("session", "patience"))
    for step in steps:
        if step.shown.exists:
            continue
        try:
            _run_step(session, step)
        except VenusError as error:
            session.rollback()
            if step.kind == "widen":
                raise  # its triggers are unchanged
            table = step.shown.table
            _drop_triggers(session, [s.name for s in steps if s.kind == "make" and s.shown.table == table])
            _record_failure(session, table, str(error))
            raise


def run_removal(session: OracleSession, steps: Seq[OracleStep]) -> None:
    """Run the steps that take tables out of capture. After a failure the operator runs the command again."""
    session.run(statement("session", "patience"))
    for step in steps:
        try:
            _run_step(session, step)
        except VenusError:
            session.rollback()
            raise


def adopt_steps(session: OracleSession, steps: Seq[OracleStep]) -> None:
    """Complete an installation by hand: run the steps that only VENUS runs. Raises Refused for a missing step."""
    missing = [s.shown for s in steps if not s.shown.exists and not s.shown.adopted]
    if missing:
        first = next((s for s in missing if not s.what.startswith(RECORD)), missing[0])  # an object is more telling
        count = f"{len(missing)} statements of the installation have not been run"
        hint = "print the rest with `venus install-triggers --dry-run`; existing objects must be as they were printed"
        raise Refused(f"{count}, the first: {first.table}: {first.what}", hint=hint)
    _check_log_columns(session)
    for step in steps:
        if step.shown.adopted and not step.shown.exists:
            try:
                _run_step(session, step)
            except VenusError:
                session.rollback()
                raise


def _check_log_columns(session: OracleSession) -> None:
    """Raise Refused for a log table without a column that its triggers write."""
    found = read_objects(session).columns
    for table_id, known in registry.read_tables(session).items():
        log = log_table_name(table_id)
        if log in found and (missing := {"SEQ", "OP", *log_key_columns(len(known.schema.key))} - found[log]):
            hint = f"drop {log} and print the script again with `venus install-triggers --dry-run`"
            raise Refused(f"{known.schema.qualified}: {log} has no column {min(missing)}", hint=hint)


def _run_step(session: OracleSession, step: OracleStep) -> None:
    if step.kind == "check":
        _check_trigger(session, step)
    else:
        _run_with_retries(step, lambda: session.run(step.shown.sql))
    session.commit()


def _check_trigger(session: OracleSession, step: OracleStep) -> None:
    """Run the block that fails if a trigger does not compile, and report the errors of the dictionary."""
    try:
        session.run(step.shown.sql)
    except SourceError as error:
        errors = session.fetch_rows(statement("dictionary", "errors"), {"name": step.name})
        messages = "; ".join(f"line {line}: {' '.join(str(text).split())}" for _, line, _, text in errors)
        hint = "grants must be direct: a trigger does not see what its owner has through a role"
        raise SourceError(
            f"trigger {step.name} does not compile and was removed: {messages or 'no reason given'}", hint=hint
        ) from error


def _run_with_retries(step: OracleStep, run_once: Callable[[], object]) -> None:
    """Run a statement, and retry it while a lock or an open transaction blocks it."""
    for attempt in tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(OracleBusy),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random(0, 1),
        before_sleep=lambda state: logger.warning(
            "%s: %s waits: %s", step.shown.table, step.shown.what, _attempt_error(state)
        ),
        reraise=True,
    ):
        with attempt:
            run_once()


def _attempt_error(state: tenacity.RetryCallState) -> object:
    return state.outcome.exception() if state.outcome else ""


def _drop_triggers(session: OracleSession, triggers: Seq[str]) -> None:
    here = read_objects(session).triggers
    for name in triggers:
        if name in here:
            session.run(ddl.drop_object("TRIGGER", name))
            session.commit()


def _record_failure(session: OracleSession, table: str, why: str) -> None:
    """Record why a table is not captured (any more); a new table waits for the next installation."""
    if "VENUS_CAPTURED_TABLE" not in read_objects(session).kinds:
        return
    for table_id, known in registry.read_tables(session).items():
        if known.schema.qualified != table:
            continue
        if known.is_unfinished:
            registry.set_state(session, table_id, registry.PAUSED, f"{INSTALLING}: {why}")
        else:
            reason = f"changes are missed, its triggers could not be created again: {why}"
            registry.set_state(session, table_id, registry.RESYNC, reason)
    session.commit()
