"""The installation of capture in an Oracle database: reads its dictionary, creates the objects of VENUS, removes them.

It is the part of a source that a DBA uses before capture begins and after it has ended (VENUS 3.1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

import tenacity

from venus.adapters.dialects.contract import (
    InstallStep,
    Numbering,
    OtherObject,
    UncapturedTable,
)
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import structure
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary, open_dictionary
from venus.adapters.dialects.oracle.dictionary.tables import (
    ListedTable,
    application_tables,
    choose_tables,
    find_unmatched_patterns,
)
from venus.adapters.dialects.oracle.installation.check import check, raise_blocking_finding
from venus.adapters.dialects.oracle.installation.install import RECORD, OracleInstaller, OracleStep, read_objects
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.language.script import build_script
from venus.adapters.dialects.oracle.names import log_key_columns, log_table_name
from venus.adapters.dialects.oracle.registry import INSTALLING, OracleRegistryEntry
from venus.adapters.dialects.oracle.session.connection import OracleBusy, OracleSession, Row
from venus.adapters.dialects.oracle.session.driver import Driver, OracleOptions
from venus.adapters.dialects.oracle.session.versions import Version
from venus.adapters.dialects.oracle.sql import statement
from venus.adapters.dialects.released_tables import BY_SCRIPT
from venus.errors import Refused, SourceError, VenusError
from venus.model import Finding, TableSchema

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


class OracleInstallation:
    """One Oracle database before and after capture. `open_source` in source.py adds capture itself."""

    def __init__(self, driver: Driver, options: OracleOptions | None = None) -> None:
        self._options = options or OracleOptions()
        self._reader = OracleSession(driver)
        self._writer = OracleSession(driver)
        self._known: tuple[Version, OracleDictionary] | None = None
        #: The fingerprint of the registry that was read last; None after an installation.
        self._mark: Row | None = None
        #: The tables that `refresh_schemas` has listed, until `find_uncaptured_tables` uses them.
        self._listed: Seq[ListedTable] | None = None

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def request_types(self, type_map: Mapping[str, str], include: Seq[str], exclude: Seq[str]) -> None:
        """Request types of columns that override the configuration; `install` records them at the source.

        Raises ConfigError for an unknown column, for a key that cannot have the type, or for an impossible type.
        """
        dictionary = self._dictionary_and_version()[1]
        dictionary.requested = type_map
        dictionary.resolve_requests(choose_tables(dictionary.list_tables(), include, exclude))
        self._writer.rollback()

    def _dictionary_and_version(self) -> tuple[Version, OracleDictionary]:
        if self._known is None:
            options = self._options
            self._known = open_dictionary(self._writer, options.schemas, options.type_map, options.columns)
        return self._known

    def _installer(self) -> OracleInstaller:
        version, dictionary = self._dictionary_and_version()
        return OracleInstaller(self._writer, dictionary, version, self._options)

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        """Read the dictionary."""
        dictionary = self._dictionary_and_version()[1]
        known = {(c.schema.namespace, c.schema.name): c.schema for c in self._read_registry().values()}
        listed = choose_tables(dictionary.list_tables(), include, exclude)
        return [dictionary.read_table(at, known.get((at.owner, at.name))).schema for at in listed]

    def read_table_names(self) -> list[str]:
        """Return every table of the captured schemas."""
        return [at.qualified for at in application_tables(self._dictionary_and_version()[1].list_tables())]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        """Return the tables that the patterns choose and the registry does not contain.

        Reuses the list of tables that `refresh_schemas` has just read.
        """
        dictionary, listed = self._dictionary_and_version()[1], self._listed
        self._listed = None
        if not self._is_installed():
            self._writer.rollback()
            return []
        listed = dictionary.list_tables() if listed is None else listed
        known = {(row[0], row[1]) for row in self._writer.fetch_rows(statement("registry", "known_names"))}
        found = [
            UncapturedTable(
                name=at.qualified,
                obstacle=next(iter(dictionary.read_table(at, as_inline=self._options.inline).refusals), ""),
            )
            for at in choose_tables(listed, include, exclude)
            if (at.owner, at.name) not in known
        ]
        self._writer.rollback()
        return found

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        """Return the patterns that choose no table."""
        return find_unmatched_patterns(self._dictionary_and_version()[1].list_tables(), patterns)

    def read_numberings(self) -> list[Numbering]:
        """Return the sequences of the captured schemas."""
        dictionary = self._dictionary_and_version()[1]
        return structure.read_numberings(self._writer, dictionary.schemas, dictionary.read_structure, dictionary.is_own)

    def read_other_objects(self) -> list[OtherObject]:
        """Return the objects of the captured schemas that are neither tables nor sequences."""
        dictionary = self._dictionary_and_version()[1]
        return structure.read_other_objects(self._writer, dictionary.schemas, dictionary.is_own)

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        """Return what is missing or cannot be carried."""
        version, dictionary = self._dictionary_and_version()
        return list(check(self._writer, dictionary, version, self._options, include, exclude))

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation."""
        raise_blocking_finding(self.check(include, exclude))
        steps = self._installer().plan(include, exclude)
        self._writer.rollback()
        return [step.shown for step in steps]

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install what is missing. Oracle commits each step; a failing step removes its table's triggers again."""
        raise_blocking_finding(self.check(include, exclude))
        steps = self._installer().plan(include, exclude)
        run_steps(self._writer, steps)
        self._writer.rollback()  # ends the transaction of the reading steps
        self._mark = None
        return [step.shown for step in steps]

    def adopt(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Check an installation that a DBA has run as a script, and make it ready for capture.

        Creates nothing. Raises Refused for an object that is missing or differs from the script.
        """
        steps = self._installer().plan(include, exclude)
        adopt_steps(self._writer, steps)
        self._writer.rollback()
        self._mark = None
        return [step.shown for step in steps]

    def as_script(self, steps: Seq[InstallStep], *, removal: bool) -> str:
        """Return the remaining steps as a script for SQL*Plus and SQLcl."""
        version, dictionary = self._dictionary_and_version()
        return build_script(steps, removal=removal, user=dictionary.user, version=version.name)

    def plan_uninstall(self) -> list[InstallStep]:
        """Return every statement of the removal."""
        return [step.shown for step in self._installer().plan_removal()]

    def uninstall(self) -> list[InstallStep]:
        """Restore the dictionary to its state before the installation."""
        self._reader.rollback()
        steps = self._installer().plan_removal()
        run_steps(self._writer, steps)
        self._mark = None
        return [step.shown for step in steps]

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Return every statement that takes these tables out of capture."""
        installer = self._installer()
        steps = installer.plan_release(table_ids) + installer.plan_log_removal(
            dict.fromkeys(table_ids, BY_SCRIPT), planned=True
        )
        self._writer.rollback()
        return [step.shown for step in steps]

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Remove the triggers of these tables."""
        return self._run_removal(self._installer().plan_release(table_ids))

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of these tables."""
        return self._run_removal(self._installer().plan_log_removal(reasons))

    def _run_removal(self, steps: Seq[OracleStep]) -> list[InstallStep]:
        self._reader.rollback()
        run_removal(self._writer, steps)
        self._mark = None
        return [step.shown for step in steps]

    def _is_installed(self) -> bool:
        return "VENUS_CAPTURED_TABLE" in read_objects(self._writer).kinds

    def _read_registry(self, *, released: bool = False) -> dict[int, OracleRegistryEntry]:
        found = registry.read_tables(self._writer, released=released) if self._is_installed() else {}
        self._writer.rollback()
        return found
