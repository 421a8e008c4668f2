"""The interface of a source database; every dialect implements it and passes the same conformance suite.

Capture works the same way everywhere: triggers log the key of each changed row, a snapshot reads the log together with
the current rows, and an exact delete consumes the log. A `Cut` is one snapshot. Capture ships the sections of a cut as
half messages while the snapshot is open. `Cut.commit` is the local transaction: atomically, it checks the epoch,
writes the batch rows, advances the checkpoint row and removes exactly the log rows that the snapshot saw. To remove
log rows, PostgreSQL uses the snapshot's transaction, SQLite moves a watermark, the others delete by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from venus.codec.batch import TableChanges
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, Finding, Sequence, SourceIdentity, TableSchema
from venus.rpc.conditions import COMPARED


class SchemaChanged(SourceError):
    """A captured table no longer matches the registry. The caller refreshes the schemas, then opens the cut again."""

    retryable = True


class SnapshotLost(DatabaseUnavailable):
    """The snapshot can no longer be read. The caller rolls the cut back and opens another, smaller one."""


class TableHalted(SourceError):
    """A row of a captured table cannot be carried. The caller rolls back, halts the table and opens a new cut."""

    def __init__(self, table: TableSchema, why: str, *, hint: str = "") -> None:
        super().__init__(
            f"{table.qualified_name}: {why}",
            hint=hint
            or f"correct the row, exclude its column in [source.columns], or `venus pause {table.qualified_name}`",
        )
        self.table = table
        #: The key, the column and the problem.
        self.why = why


class Option(Enum):
    """A feature that only some dialects support; the package of a dialect lists its own in `OPTIONS`."""

    INLINE = "the paper's own columns in the application's tables"
    TYPE_MAP = "columns that are carried as another type than the default one"
    COLUMNS = "columns that are not carried"
    ADOPT = "an installation that a DBA has run as a script"
    LOG_ROWS_MAX = "a limit of a log in rows"
    LOG_BYTES_MAX = "a limit of a log in bytes"
    LOG_TABLESPACE = "a tablespace for the logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCapabilities:
    """Named differences between databases. Code asks for a capability, never for the name of the database."""

    transactional_ddl: bool  # DDL takes part in a transaction: a script applies completely or not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The checkpoint row at the source: producer epoch, next Sequence, last batch."""

    epoch: Epoch
    next_sequence: Sequence
    last_batch: BatchNo

    @property
    def is_sealed(self) -> bool:
        """Whether another database has taken over the capture of this business."""
        return self.epoch < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FillState:
    """The progress of the fill of one table. Only the dialect can interpret `cursor`.

    The caller writes the markers of a sweep. When the caller starts a sweep (`sweep_from` is not 0 and the cursor is
    empty), it stores the Sequence of the SWEEP_BEGIN marker in `sweep_from`. The dialect only stores `sweep_from`, and
    sets it to 1 or more when a table that was filled before has to be read again.
    """

    table_id: int
    sweep_from: Sequence  # 0 = no sweep: a first fill; else the Sequence of its SWEEP_BEGIN
    cursor: bytes  # empty = at the start
    rows_done: int
    rows_estimate: int
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTable:
    """A captured table as the registry at the source describes it.

    ACTIVE: captured. PAUSED: the table's log rows wait and cuts skip them, because an operator paused the table or a
    row that cannot be carried halted it (`SourceRegistry.halt`). RESYNC: changes were missed, and `reason` names the
    cause; VENUS still captures what it can, but only a new fill makes the copy complete, and the operator decides
    when. RELEASING: an operator is taking the table out of capture; its triggers are gone or about to be dropped, its
    log is still captured. RELEASED: no longer captured; the registry row stays, so that number and version continue if
    the table is captured again.
    """

    schema: TableSchema
    state: str  # ACTIVE, PAUSED, RESYNC, RELEASING, RELEASED
    reason: str
    fill: FillState

    @property
    def is_compared(self) -> bool:
        """Whether the fill, which has read no row yet, ships only rows that differ from the broker's full data."""
        fill = self.fill
        return self.state == "ACTIVE" and not (fill.done or fill.cursor) and self.reason.startswith(COMPARED)

    @property
    def is_read(self) -> bool:
        """Whether the fill is complete, or no longer needed because an operator takes the table out of capture."""
        return self.fill.done or self.state in ("RELEASING", "RELEASED")


@dataclass(frozen=True, slots=True, kw_only=True)
class UncapturedTable:
    """A table that the patterns choose and the registry does not contain: new, renamed, detached or refused.

    `obstacle` is the reason why the table cannot be captured as it is; empty = the next installation captures it.
    """

    name: str
    obstacle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGrant:
    """A privilege that the user of VENUS lacks on one of VENUS's own tables, and the statement that grants it."""

    table: str
    grant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallStep:
    """One statement of an installation or a removal; `exists`: its object exists already, unchanged."""

    table: str
    what: str  # e.g. "trigger venus_i_00001"
    sql: str
    exists: bool = False
    #: VENUS runs it itself, even after a DBA has run the script.
    adopted: bool = False
    #: Part of the script that a DBA can run.
    by_hand: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """A counter that numbers rows: of a table's column, or an independent sequence (`table` and `column` empty)."""

    namespace: str
    next_value: int
    name: str = ""  # of the sequence, where it has one
    table: str = ""
    column: str = ""
    increment: int = 1
    minimum: int | None = None
    maximum: int | None = None
    cycle: bool = False
    #: GENERATED ALWAYS: the application may not number rows itself.
    always: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherObject:
    """An object of the application other than a table; VENUS reports it and does not copy it to a target."""

    kind: str  # view, trigger, procedure, ...
    name: str


class Cut(Protocol):
    """One snapshot of the log tables and the source tables."""

    @property
    def captured_at_us(self) -> int:
        """The source's clock when the snapshot was opened, Unix microseconds."""

    def read_sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        """Stream the changes of the snapshot in sections within the limits; a larger row is a section of its own.

        Each key appears once per cut. A TRUNCATE marker precedes the changes of its table. Where keys can be equal
        without being the same text (1.0 and 1.00), the tombstones precede the rows. `commit` removes every log row that
        these sections account for, so the caller must exhaust the iterator before it calls `commit`.

        Raises TableHalted at a row that cannot be carried. After TableHalted the caller takes back all sections of the
        cut, even those already sent: a target that applied them would show half a transaction of the halted table.
        """

    def read_fill_chunk(
        self, fill: FillState, *, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], FillState]:
        """Read the next key range of a table being filled, in this same snapshot.

        Returns only changes, no markers: at most about `rows_max` rows, in sections within `bytes_max` each. The caller
        must have exhausted `read_sections`. The fill ends at the greatest key that its first snapshot showed
        (rows.py): rows after that key are in the log. Raises TableHalted, as `read_sections` does.
        """

    def commit(
        self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], forget_batches_below: BatchNo
    ) -> None:
        """Commit the local transaction, which records the batches and removes the log rows that were read.

        Raises Fenced if another instance has raised the epoch.
        """

    def rollback(self) -> None:
        """Close the snapshot and change nothing."""


class SourceDictionary(Protocol):
    """The tables and other objects of the application."""

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        """Read the schemas of the chosen tables from the dictionary; the table id of an uncaptured table is 0."""

    def read_table_names(self) -> list[str]:
        """Return every table of the application as `namespace.table`, including those that cannot be captured."""

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        """Return the tables that these patterns choose and whose names the registry does not contain.

        Empty if VENUS is not installed. Omits tables that an operator took out of capture: the registry contains them.
        Reads the dictionary, never rows; one statement lists all names, and only uncaptured tables are described
        further.
        """

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        """Return the patterns that choose no table; reads the dictionary once for all of them."""

    def read_numberings(self) -> list[Numbering]:
        """Return the counters that number rows: those of table columns, and other sequences. Reads only."""

    def read_other_objects(self) -> list[OtherObject]:
        """Return the objects of the application that are neither tables nor sequences. Reads only."""


class SourceInstaller(Protocol):
    """The installation of capture and its removal."""

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        """Return findings about missing privileges, and tables or values that cannot be captured. Reads only."""

    def find_large_rows(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        """Count the rows that are larger than a message. Reads rows, for a limited time (rows.py)."""

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation, in order. Raises Refused if a finding blocks."""

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install the missing objects. Idempotent. A trigger that had vanished marks its table RESYNC.

        A chosen table that was taken out of capture is captured again, in its present version, and is read completely.
        """

    def plan_uninstall(self) -> list[InstallStep]: ...

    def uninstall(self) -> list[InstallStep]:
        """Restore the catalogue to its state before the installation."""

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Return every statement that takes these tables out of capture: those of `release`, then of `drop_logs`."""

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Remove the triggers of these tables. The tables become RELEASING; their logs are still captured.

        Idempotent: another call completes an interrupted release. A RELEASED table stays RELEASED.
        """

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of tables whose triggers are gone. The tables become RELEASED, each with its reason.

        A row that is still in a dropped log is never captured: the caller has waited for capture, or reports the loss.
        """

    def as_script(self, steps: Seq[InstallStep], *, removal: bool) -> str:
        """Return the steps that remain to be done as a script for the database's own client.

        Raises Refused for a name that no script can contain.
        """


class SourceRegistry(Protocol):
    """The registry of captured tables, the checkpoint row and the batch table."""

    def read_registered_tables(self) -> list[RegisteredTable]:
        """Return the captured tables: every table of the registry that is not RELEASED."""

    def read_released_tables(self) -> list[RegisteredTable]:
        """Return the RELEASED tables."""

    def read_registry_fingerprint(self) -> str:
        """Return a text that changes with the result of `read_registered_tables`. Cheap even for many tables."""

    def set_table_state(self, table_id: int, state: str, reason: str) -> None: ...

    def begin_comparison(self, table_id: int, reason: str) -> bool:
        """Turn the fill of an ACTIVE table into a comparison: it ships only rows that differ from the full data.

        Return False if the table is not ACTIVE, or its fill has read rows already. `reason` identifies the request. Any
        other request for a fill, or change of the state, ends the comparison.
        """

    def advance_comparison(self, table_id: int, before: str, after: str, rows_done: int, *, done: bool) -> bool:
        """Store the progress of the comparison that has the reason `before`, and its new reason `after`.

        An empty `after` ends the comparison: the fill is complete if `done`, else the fill ships all rows of the
        table. Return False if the comparison has ended already.
        """

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        """Exclude a table from later cuts because a row cannot be carried; its log rows and its fill stay as they are.

        `SourceCapture.refresh_schemas` resumes the table after the application has written to it. A table that is
        already PAUSED keeps its reason. Raises Fenced if another instance has raised the epoch.
        """

    def read_state(self) -> SourceState:
        """Return the checkpoint row."""

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        """Store a higher producer epoch, which fences older instances. Raises Fenced if the stored epoch is higher."""

    def read_identity(self) -> SourceIdentity | None:
        """Return the facts that distinguish this database from its copies. Reads only.

        None if copies cannot be distinguished, or if an installation of an older version cannot store the facts.
        """
        return None

    def store_identity(self, facts: Mapping[str, str]) -> None:
        """Store at the source the facts that identify this database, in place of earlier ones."""
        return

    def read_batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        """Return those of these batches that the batch table records, so that the adapter can answer reviews.

        Waits for a local transaction that is committing, so that the absence of a batch of an older epoch is final.
        """

    def read_row_counts(self) -> dict[int, int]:
        """Return the approximate row count of each captured table by table_id, if the database has statistics.

        Runs one statement, which reads no row of the application except in a small SQLite file.
        """


class SourceCapture(Protocol):
    """Reading of changes: fills, cuts, and what delays them."""

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare the dictionary with the registry; store and return new versions of changed tables.

        Also returns tables that another process has registered since. A table whose key has changed or that is gone
        becomes RESYNC; the statements of the application do not fail. A new column restarts the table's fill. A table
        that `registry.halt` excluded is resumed if it has been written to since.
        """

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        """Wait until there may be changes to capture, at most one second; check every `pause_s`.

        `rest_s`: how long the caller has nothing else to do. A source may wait within the next `open_cut` instead.
        Return False if the source cannot wait at all, or cannot wait now.
        """
        return False

    def open_cut(self, fills: Seq[FillState]) -> Cut | None:
        """Open a snapshot; return None if the log is empty and no table has to be filled.

        Also returns None while a statement of the application holds a table exclusively (TRUNCATE, ALTER TABLE): VENUS
        gives way. Raises SchemaChanged instead of reading a table in another version than the registry's.
        """

    def restart_fill(self, table_id: int) -> None:
        """Make the next cuts read the whole table again (with a sweep if it was filled before)."""

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        """Make the next cuts read the whole table again, always with a sweep, in at least this version.

        For a source that is behind its broker: the broker has rows of the table that this source does not know of,
        perhaps in versions from the lost part of the history. A higher registered version stays.
        """

    def write_heartbeat(self) -> None:
        """Update the heartbeat row; it is captured like any other row."""

    def limit_lock_waits(self) -> None:
        """Set a short lock timeout if this database needs one; a longer wait for a lock then raises LockTimeout."""

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        """Return by table_id how many log rows wait, and the age in seconds of the oldest blocking transaction."""

    def limit_logs(self) -> None:
        """Stop capturing the tables whose logs are above the limits of the settings; they become RESYNC.

        Does nothing without limits, before an installation, and where the triggers themselves enforce the limits.
        """
        return

    def find_missing_grants(self) -> list[MissingGrant]:
        """Return the privileges that VENUS's user lacks on VENUS's own tables; without them nothing can be captured.

        Log tables are not included. The result is empty if VENUS is not installed, and in databases where such
        privileges cannot be revoked. Costs a few round trips.
        """
        return []

    def find_blocking_locks(self) -> dict[str, str]:
        """Return by table a description of the sessions whose table locks have delayed cuts for seconds."""
        return {}

    def describe_blockers(self) -> str:
        """Name the sessions whose open transactions delay captured tables, as far as this database shows them."""
        return ""


class Source(Protocol):
    """One source database, used by one thread."""

    name: str
    capabilities: SourceCapabilities

    @property
    def dictionary(self) -> SourceDictionary: ...

    @property
    def installer(self) -> SourceInstaller: ...

    @property
    def registry(self) -> SourceRegistry: ...

    @property
    def capture(self) -> SourceCapture: ...

    def close(self) -> None: ...
