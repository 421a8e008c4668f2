"""Oracle as a source: the dialect contract over two sessions (VENUS 3.1).

The reader holds the snapshot of a cut; the writer does everything else in short transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.contract import (
    Capabilities,
    FillState,
    InstallStep,
    Numbering,
    OtherObject,
    OwnLack,
    RegisteredTable,
    SchemaChanged,
    SourceState,
    UncapturedTable,
)
from venus.adapters.dialects.halting import Halts, is_halted, reason_of, state_before
from venus.adapters.dialects.oracle import claiming, executing, inline, registry, sampling, segments, structure, survey
from venus.adapters.dialects.oracle.bounds import Bounds, Limits
from venus.adapters.dialects.oracle.check import check, refuse_blocked
from venus.adapters.dialects.oracle.claiming import Polls
from venus.adapters.dialects.oracle.columns import Columns
from venus.adapters.dialects.oracle.connection import Row, Session
from venus.adapters.dialects.oracle.cut import OracleCut
from venus.adapters.dialects.oracle.dictionary import Dictionary, open_dictionary
from venus.adapters.dialects.oracle.driver import Driver, Options, RotatingDriver, driver_of
from venus.adapters.dialects.oracle.following import compare_all, follow
from venus.adapters.dialects.oracle.install import Installer, Step, objects
from venus.adapters.dialects.oracle.reading import Access, access_to
from venus.adapters.dialects.oracle.refresh import Comparison
from venus.adapters.dialects.oracle.registry import Captured
from venus.adapters.dialects.oracle.script import script
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.tables import Listed, application, chosen, unmatched
from venus.adapters.dialects.oracle.versions import Version
from venus.adapters.dialects.releasing import BY_SCRIPT
from venus.config import Settings
from venus.errors import Fenced, NotInstalled, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, Finding, TableSchema


def open_source(settings: Settings) -> OracleSource:
    """Connect to the database that the settings name."""
    url = settings.source.url.get_secret_value()
    driver, options = driver_of(url)
    if settings.source.password_file or settings.source.password_command:
        driver = RotatingDriver(driver, url)
    capture = settings.capture
    limits = Limits(rows_max=capture.cut_rows_max, bytes_max=capture.cut_bytes_max, read_s=capture.cut_read_s)
    inline_mode = settings.source.mode == "inline"
    columns = Columns(settings.source.columns.include, settings.source.columns.exclude)
    asked = replace(options, inline=inline_mode, type_map=settings.source.type_map, limits=limits, columns=columns)
    return OracleSource(driver, asked)


class OracleSource:
    """One Oracle database, used by one thread."""

    name = "oracle"
    capabilities = Capabilities(transactional_ddl=False)

    def __init__(self, driver: Driver, options: Options | None = None) -> None:
        self._options = options or Options()
        self._reader = Session(driver)
        self._writer = Session(driver)
        self._place = driver.place
        self._known: tuple[Version, Dictionary] | None = None
        self._accesses: dict[int, Access] = {}
        self._mark: Row | None = None
        self._sees_blockers = True
        self._fingerprints: dict[int, str] = {}
        self._halts = Halts()
        self._bounds = Bounds(self._options.limits)
        self._polls = Polls()
        #: The tables that `refresh_schemas` has listed, until `uncaptured_tables` uses them.
        self._listed: Seq[Listed] | None = None

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    # -- dictionary and installation ---------------------------------------------------------------------

    def ask(self, type_map: Mapping[str, str], include: Seq[str], exclude: Seq[str]) -> None:
        """Request types of columns that override the configuration; `install` records them at the source.

        Raises ConfigError for an unknown column, for a key that cannot have the type, or for an impossible type.
        """
        dictionary = self._database()[1]
        dictionary.asked = type_map
        dictionary.to_record(chosen(dictionary.listed(), include, exclude))
        self._writer.rollback()

    def _database(self) -> tuple[Version, Dictionary]:
        if self._known is None:
            options = self._options
            self._known = open_dictionary(self._writer, options.schemas, options.type_map, options.columns)
        return self._known

    def _installer(self) -> Installer:
        version, dictionary = self._database()
        return Installer(self._writer, dictionary, version, self._options)

    def tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        """Read the dictionary."""
        dictionary = self._database()[1]
        known = {(c.schema.namespace, c.schema.name): c.schema for c in self._captured().values()}
        listed = chosen(dictionary.listed(), include, exclude)
        return [dictionary.table(at, known.get((at.owner, at.name))).schema for at in listed]

    def table_names(self) -> list[str]:
        """Return every table of the captured schemas."""
        return [at.qualified for at in application(self._database()[1].listed())]

    def uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        """Return the tables that the patterns choose and the registry does not contain.

        Reuses the list of tables that `refresh_schemas` has just read.
        """
        dictionary, listed = self._database()[1], self._listed
        self._listed = None
        if not self._is_installed():
            self._writer.rollback()
            return []
        listed = dictionary.listed() if listed is None else listed
        known = {(row[0], row[1]) for row in self._writer.rows(statement("registry", "known_names"))}
        found = [
            UncapturedTable(
                name=at.qualified, obstacle=next(iter(dictionary.table(at, as_inline=self._options.inline).refused), "")
            )
            for at in chosen(listed, include, exclude)
            if (at.owner, at.name) not in known
        ]
        self._writer.rollback()
        return found

    def unmatched(self, patterns: Seq[str]) -> list[str]:
        """Return the patterns that choose no table."""
        return unmatched(self._database()[1].listed(), patterns)

    def numberings(self) -> list[Numbering]:
        """Return the sequences of the captured schemas."""
        dictionary = self._database()[1]
        return structure.numberings(self._writer, dictionary.schemas, dictionary.structures, dictionary.is_own)

    def other_objects(self) -> list[OtherObject]:
        """Return the objects of the captured schemas that are neither tables nor sequences."""
        dictionary = self._database()[1]
        return structure.others(self._writer, dictionary.schemas, dictionary.is_own)

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        """Return what is missing or cannot be carried."""
        version, dictionary = self._database()
        return list(check(self._writer, dictionary, version, self._options, include, exclude))

    def install_plan(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation."""
        refuse_blocked(self.check(include, exclude))
        steps = self._installer().plan(include, exclude)
        self._writer.rollback()
        return [step.shown for step in steps]

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install what is missing. Oracle commits each step; a failing step removes its table's triggers again."""
        refuse_blocked(self.check(include, exclude))
        steps = self._installer().plan(include, exclude)
        executing.run(self._writer, steps)
        self._writer.rollback()  # ends the transaction of the reading steps
        self._mark = None
        return [step.shown for step in steps]

    def adopt(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Check an installation that a DBA has run as a script, and make it ready for capture.

        Creates nothing. Raises Refused for an object that is missing or differs from the script.
        """
        steps = self._installer().plan(include, exclude)
        executing.adopt(self._writer, steps)
        self._writer.rollback()
        self._mark = None
        return [step.shown for step in steps]

    def as_script(self, steps: Seq[InstallStep], *, removal: bool) -> str:
        """Return the remaining steps as a script for SQL*Plus and SQLcl."""
        version, dictionary = self._database()
        return script(steps, removal=removal, user=dictionary.user, version=version.name)

    def uninstall_plan(self) -> list[InstallStep]:
        """Return every statement of the removal."""
        return [step.shown for step in self._installer().removal()]

    def uninstall(self) -> list[InstallStep]:
        """Restore the dictionary to its state before the installation."""
        self._reader.rollback()
        steps = self._installer().removal()
        executing.run(self._writer, steps)
        self._mark = None
        return [step.shown for step in steps]

    def release_plan(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Return every statement that takes these tables out of capture."""
        installer = self._installer()
        steps = installer.release(table_ids) + installer.drop_logs(dict.fromkeys(table_ids, BY_SCRIPT), planned=True)
        self._writer.rollback()
        return [step.shown for step in steps]

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Remove the triggers of these tables."""
        return self._removed(self._installer().release(table_ids))

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of these tables."""
        return self._removed(self._installer().drop_logs(reasons))

    def _removed(self, steps: Seq[Step]) -> list[InstallStep]:
        self._reader.rollback()
        executing.remove(self._writer, steps)
        self._mark = None
        return [step.shown for step in steps]

    # -- the registry and the checkpoint row ---------------------------------------------------------------

    def _is_installed(self) -> bool:
        return "VENUS_CAPTURED_TABLE" in objects(self._writer).kinds

    def _captured(self, *, released: bool = False) -> dict[int, Captured]:
        found = registry.read_tables(self._writer, released=released) if self._is_installed() else {}
        self._writer.rollback()
        return found

    def registered(self) -> list[RegisteredTable]:
        return [c.table for c in self._captured().values()]

    def released(self) -> list[RegisteredTable]:
        return [c.table for c in self._captured(released=True).values()]

    def row_counts(self) -> dict[int, int]:
        found = survey.row_counts(self._writer, [t.schema for t in self.registered()])
        self._writer.rollback()
        return found

    def registry_sign(self) -> str:
        found = repr(self._writer.rows(statement("registry", "sign")))
        self._writer.rollback()
        return found

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        with self._writer.transaction():
            if not registry.set_state(self._writer, table_id, state, reason):
                raise _unknown(table_id)

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        with self._writer.transaction():
            registry.lock_epoch(self._writer, epoch)
            captured = registry.read_tables(self._writer).get(table_id)
            if captured is None:
                raise _unknown(table_id)
            if captured.table.state != registry.PAUSED:
                registry.set_state(self._writer, table_id, registry.PAUSED, reason_of(captured.table, why))

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table; if its triggers are in order, this also ends RESYNC."""
        how = next((c for c in self._compare_all() if c.captured.schema.table_id == table_id), None)
        if how is None:
            raise _unknown(table_id)
        with self._writer.transaction():
            self._writer.run(statement("registry", "restart_fill"), {"table_id": table_id})
            if how.captured.table.state == registry.RESYNC and not how.reason and not how.lack:
                registry.set_state(self._writer, table_id, registry.ACTIVE, "")

    def start_over(self, table_id: int, version: int) -> None:
        if registry.read_tables(self._writer)[table_id].is_unfinished:
            return  # VENUS has shipped nothing of it
        self.restart_fill(table_id)
        with self._writer.transaction():
            registry.start_over(self._writer, table_id, version)
        self._mark, self._fingerprints = None, {}  # `_accesses` has the earlier version

    def state(self) -> SourceState:
        if not self._is_installed():
            raise NotInstalled(
                f"source {self._place}: VENUS is not installed here", hint="run `venus install-triggers`"
            )
        found = registry.state_of(self._writer.row(statement("registry", "state")))
        self._writer.rollback()
        return found

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        """Fence older instances; the row's lock waits for their local transaction."""
        with self._writer.transaction():
            held = registry.lock(self._writer)
            if held.epoch > epoch:
                raise Fenced(f"the source is at epoch {held.epoch}, this adapter at {epoch}")
            self._writer.run(statement("registry", "raise_epoch"), {"epoch": epoch})
        return replace(held, epoch=epoch)

    def batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        """Read batches under the lock of the checkpoint row, which excludes an unfinished local transaction."""
        with self._writer.transaction():
            registry.lock(self._writer)
            return registry.read_batches(self._writer, numbers)

    def beat(self) -> None:
        with self._writer.transaction():
            now = {"beat_at": registry.read_clock(self._writer)}
            if not self._writer.run(statement("registry", "beat"), now):
                self._writer.run(statement("registry", "beat_again"), now)

    def own_lacking(self) -> list[OwnLack]:
        return []  # the tables are in the user's own schema, whose privileges cannot be revoked

    def locked(self) -> dict[str, str]:
        return {}

    def blocked_by(self) -> str:
        """Describe the oldest open transaction on a log table, or the grants needed to see it."""
        found = sampling.holder(self._writer, self._database()[1].user)
        self._writer.rollback()
        return found

    def backlog(self) -> dict[int, tuple[int, int]]:
        """Return the number of waiting log rows and, if this user may see it, the age of the oldest transaction."""
        found = claiming.read_backlog(self._writer, self._database()[1].inline_tables(), self._ages())
        self._writer.rollback()
        return found

    def _ages(self) -> dict[str, int]:
        ages = sampling.blockers(self._writer) if self._sees_blockers else None
        self._sees_blockers = ages is not None  # a refusal is not asked for again
        return ages or {}

    # -- capture ---------------------------------------------------------------------------------------------

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare the dictionary with the registry; store the changes."""
        self._reader.rollback()
        self._retry_halted()
        follow(self._writer, self._database()[1])
        known = {(a.layout.schema.table_id, a.layout.schema.version) for a in self._accesses.values()}
        self._adopt(self._compare_all())
        self._listed = self._database()[1].found
        now = [a.layout.schema for a in self._accesses.values()]
        return [s for s in now if (s.table_id, s.version) not in known]

    def _compare_all(self) -> list[Comparison]:
        return compare_all(self._writer, self._database()[1])

    def _retry_halted(self) -> None:
        """Resume tables that halted at a row and have been written to since: the row may have been corrected."""
        halted = [c.table for c in registry.read_tables(self._writer).values() if is_halted(c.table)]
        waiting = self._extents() if halted else {}
        for table in halted:
            table_id = table.schema.table_id
            if self._halts.may_go_on(table_id, waiting[table_id]):
                self.set_table_state(table_id, *state_before(table))
        self._writer.rollback()

    def _extents(self) -> dict[int, int]:
        """Return the present `extent` of every table, as a claim would have it."""
        found = {table_id: rows for table_id, (rows, _) in self.backlog().items()}
        if self._database()[1].inline_tables():
            found |= {table_id: polled.highest for table_id, polled in inline.claimed(self._writer).items()}
        return found

    def _adopt(self, found: Seq[Comparison]) -> None:
        """Use this state of the dictionary for the next cuts."""
        tables = [c.table for c in found if c.table is not None]
        self._accesses = {t.schema.table_id: access_to(t) for t in tables}
        self._fingerprints = {table_id: mark for table_id, (_, mark) in registry.states(self._writer).items()}
        self._mark = None
        self._polls.forget()
        self._writer.rollback()

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        return False

    def open_cut(self, fills: Seq[FillState]) -> OracleCut | None:
        """Open a snapshot, unless it has nothing to read."""
        if not fills and self._polls.finds_nothing(self._reader):
            self._polls.tidy(self._writer)
            return None
        self._reader.rollback()
        if any(a.archived for a in self._accesses.values()):
            self._reader.run(statement("cut", "see_archived"))
        self._reader.run(statement("cut", "begin"))
        try:
            cut = self._cut(fills)
        except BaseException:
            self._reader.rollback()
            raise
        if cut is None:
            self._reader.rollback()
        return cut

    def _cut(self, fills: Seq[FillState]) -> OracleCut | None:
        captured_at_us = registry.read_clock(self._reader)
        states = registry.states(self._reader)
        self._accept_dictionary(states)
        noted = self._reader.rows(statement("registry", "ddl_rows"))
        if what := claiming.unfollowed(noted, self._accesses):
            self._mark = None
            raise SchemaChanged(f"source {self._place}: {what}")
        self._polls.forget()
        readable = {t: a for t, a in self._accesses.items() if states.get(t, ("PAUSED",))[0] != registry.PAUSED}
        truncated = claiming.truncations(noted, self._accesses, readable)
        claims = claiming.claims(self._reader, self._bounds, readable, truncated.tables)
        filling = {f.table_id: (f, readable[f.table_id]) for f in fills if f.table_id in readable}
        self._polls.prepare(self._accesses, self._accesses.keys() - readable.keys())
        if not claims and not filling:
            self._polls.nothing_in_cut(noted)
            return None
        return OracleCut(
            reader=self._reader,
            writer=self._writer,
            captured_at_us=captured_at_us,
            claims=claims,
            ddl_numbers=truncated.numbers,
            fills=filling,
            halts=self._halts,
            bounds=self._bounds,
            deleted=self._polls.deleted,
            watches_segments=bool(truncated.tables) and segments.TABLE in objects(self._writer).kinds,
        )

    def _accept_dictionary(self, states: dict[int, tuple[str, str]]) -> None:
        """Use the present dictionary if the registry agrees with it. Raises SchemaChanged if it does not."""
        count, newest, recent = self._reader.row(statement("dictionary", "mark"))
        fingerprints = {table_id: mark for table_id, (_, mark) in states.items()}
        if self._mark == (count, newest) and fingerprints == self._fingerprints:
            return
        found = self._compare_all()
        if any(c.differs for c in found):
            raise SchemaChanged(f"source {self._place}: the dictionary no longer matches the registry")
        self._adopt(found)
        if self._fingerprints != fingerprints:
            raise SchemaChanged(f"source {self._place}: the registry has changed in the meantime")
        # the dictionary's times are whole seconds: a second change within the same one must not be missed
        self._mark = None if recent else (count, newest)


def _unknown(table_id: int) -> SourceError:
    return SourceError(f"table {table_id} is not captured", hint="`venus status` lists the tables")
