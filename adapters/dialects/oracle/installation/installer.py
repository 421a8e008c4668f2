"""The installation of capture in an Oracle database: reads its dictionary, creates the objects of VENUS, removes them.

A DBA uses this part of a source before capture begins and after it has ended (VENUS 3.1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

import tenacity

from venus.adapters.dialects.contract import InstallStep, SourceInstaller
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary.reader import OracleDatabase
from venus.adapters.dialects.oracle.dictionary.tables import choose_tables
from venus.adapters.dialects.oracle.installation.check import check, raise_blocking_finding
from venus.adapters.dialects.oracle.installation.install import RECORD, OracleInstallPlanner, OracleStep
from venus.adapters.dialects.oracle.installation.installed_objects import describe_limits, read_objects
from venus.adapters.dialects.oracle.installation.row_checks import find_large_values
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.language.ddl import build_script
from venus.adapters.dialects.oracle.registry import INSTALLING
from venus.adapters.dialects.oracle.session.connection import OracleBusy, OracleSession
from venus.adapters.dialects.oracle.sql import log_key_columns, log_table_name, statement
from venus.adapters.dialects.registry_rules import BY_SCRIPT
from venus.adapters.dialects.rows import find_large_rows
from venus.errors import Refused, SourceError, VenusError
from venus.model import Finding

logger = logging.getLogger(__name__)

#: The number of attempts for a statement that a lock or an open transaction blocks.
ATTEMPTS = 10


def run_steps(session: OracleSession, steps: Seq[OracleStep]) -> None:
    """Run the steps of an installation. If a step fails, remove the triggers of its table, and nothing else."""
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
    """Run the steps that complete an installation by script. Raises Refused if a step of the script was not run."""
    missing = [s.shown for s in steps if not s.shown.exists and not s.shown.adopted]
    if missing:
        first = next((s for s in missing if not s.what.startswith(RECORD)), missing[0])  # not a record
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
            raise Refused(f"{known.schema.qualified_name}: {log} has no column {min(missing)}", hint=hint)


def _run_step(session: OracleSession, step: OracleStep) -> None:
    """Run one step, with retries while a lock blocks it, and commit."""
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
        hint = "grants must be direct: a trigger does not have its owner's privileges through roles"
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
    """Record why a table is not, or no longer, captured; a new table waits for the next installation."""
    if "VENUS_CAPTURED_TABLE" not in read_objects(session).kinds:
        return
    for table_id, known in registry.read_tables(session).items():
        if known.schema.qualified_name != table:
            continue
        if known.is_unfinished:
            registry.set_state(session, table_id, registry.PAUSED, f"{INSTALLING}: {why}")
        else:
            reason = f"changes are missed, its triggers could not be created again: {why}"
            registry.set_state(session, table_id, registry.RESYNC, reason)
    session.commit()


class OracleInstaller(SourceInstaller):
    """The part of an Oracle source that installs capture and removes it."""

    def __init__(self, database: OracleDatabase, on_change: Callable[[], None]) -> None:
        """`on_change`: called after a change of the objects or of the registry."""
        self._database = database
        self._on_change = on_change

    def request_types(self, type_map: Mapping[str, str], include: Seq[str], exclude: Seq[str]) -> None:
        """Request types of columns that override the configuration; `install` records them at the source.

        Raises ConfigError for an unknown column, for a key that cannot have the type, or for an impossible type.
        """
        dictionary = self._database.dictionary
        dictionary.requested = type_map
        dictionary.resolve_requests(choose_tables(dictionary.list_tables(), include, exclude))
        self._database.writer.rollback()

    def _planner(self) -> OracleInstallPlanner:
        version, dictionary = self._database.version, self._database.dictionary
        return OracleInstallPlanner(self._database.writer, dictionary, version, self._database.options)

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        """Return what is missing or cannot be carried."""
        version, dictionary = self._database.version, self._database.dictionary
        return list(check(self._database.writer, dictionary, version, self._database.options, include, exclude))

    def find_large_rows(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        listed = choose_tables(self._database.dictionary.list_tables(), include, exclude)
        tables = map(self._database.dictionary.read_table, listed)
        found = list(find_large_rows(find_large_values(self._database.writer, tables)))
        self._database.writer.rollback()
        return found

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation."""
        raise_blocking_finding(self.check(include, exclude))
        steps = self._planner().plan(include, exclude)
        self._database.writer.rollback()
        return [step.shown for step in steps]

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install the missing objects. Oracle commits each step; a failing step removes its table's triggers again."""
        raise_blocking_finding(self.check(include, exclude))
        steps = self._planner().plan(include, exclude)
        run_steps(self._database.writer, steps)
        self._database.writer.rollback()  # ends the transaction of the reading steps
        self._on_change()
        return [step.shown for step in steps]

    def adopt(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Check an installation that a DBA has run as a script, and make it ready for capture.

        Creates nothing. Raises Refused for an object that is missing or differs from the script.
        """
        steps = self._planner().plan(include, exclude)
        adopt_steps(self._database.writer, steps)
        self._database.writer.rollback()
        self._on_change()
        return [step.shown for step in steps]

    def as_script(self, steps: Seq[InstallStep], *, removal: bool) -> str:
        """Return the remaining steps as a script for SQL*Plus and SQLcl."""
        version, dictionary = self._database.version, self._database.dictionary
        remarks = [] if removal else describe_limits(self._database.options.log, dictionary.user)
        return build_script(steps, removal=removal, user=dictionary.user, version=version.name, remarks=remarks)

    def plan_uninstall(self) -> list[InstallStep]:
        """Return every statement of the removal."""
        return [step.shown for step in self._planner().plan_removal()]

    def uninstall(self) -> list[InstallStep]:
        """Restore the dictionary to its state before the installation."""
        self._database.reader.rollback()
        steps = self._planner().plan_removal()
        run_steps(self._database.writer, steps)
        self._on_change()
        return [step.shown for step in steps]

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Return every statement that takes these tables out of capture."""
        planner = self._planner()
        steps = planner.plan_release(table_ids) + planner.plan_log_removal(
            dict.fromkeys(table_ids, BY_SCRIPT), planned=True
        )
        self._database.writer.rollback()
        return [step.shown for step in steps]

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Remove the triggers of these tables."""
        return self._run_removal(self._planner().plan_release(table_ids))

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of these tables."""
        return self._run_removal(self._planner().plan_log_removal(reasons))

    def _run_removal(self, steps: Seq[OracleStep]) -> list[InstallStep]:
        self._database.reader.rollback()
        run_removal(self._database.writer, steps)
        self._on_change()
        return [step.shown for step in steps]
