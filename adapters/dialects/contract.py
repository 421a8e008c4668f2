"""What a database must offer to be a source of VENUS; every dialect passes the same conformance suite.

Capture is the same everywhere (capture.md: dirty-key log, read in one snapshot with the current row, consumed by
exact delete). A `Cut` is one snapshot: its sections are shipped as half messages while it is open, and its
`commit` is the paper's local transaction: it checks the epoch, writes the batch rows, advances the checkpoint row
and removes exactly the log rows that the snapshot saw, atomically. How that is done is each dialect's own affair
(PostgreSQL deletes inside the snapshot's own transaction, SQLite moves a watermark, others delete by number).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from venus.codec.changes import TableChanges
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, Finding, Sequence, TableSchema


class SchemaChanged(SourceError):
    """A captured table is not what the registry says any more: refresh the schemas, then open the cut again."""

    retryable = True


class SnapshotLost(DatabaseUnavailable):
    """The snapshot cannot be read any further: take the cut back and open another, which the dialect makes smaller."""


class TableHalts(SourceError):
    """A row of a captured table cannot be carried: take the cut back, `halt` the table, open the cut again."""

    def __init__(self, table: TableSchema, why: str, *, hint: str = "") -> None:
        super().__init__(
            f"{table.qualified}: {why}",
            hint=hint or f"correct the row, exclude its column in [source.columns], or `venus pause {table.qualified}`",
        )
        self.table = table
        #: Key, column and what is wrong with it.
        self.why = why


class Option(Enum):
    """What an operator may ask of some dialects only; a dialect's package lists those that it has in `OPTIONS`."""

    INLINE = "the paper's own columns in the application's tables"
    TYPE_MAP = "columns that travel in another way than their usual one"
    COLUMNS = "columns that do not travel"
    ADOPT = "an installation that somebody else has run as a script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What differs between databases, by name: code asks these, never `if name == ...`."""

    transactional_ddl: bool  # DDL takes part in a transaction: a script of it is all there or not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The checkpoint row."""

    epoch: Epoch
    next_sequence: Sequence
    last_batch: BatchNo


@dataclass(frozen=True, slots=True, kw_only=True)
class FillState:
    """How far the first fill of one table has come. `cursor` is opaque to everyone but the dialect.

    The caller makes the sweep's markers: when it starts one (`sweep_from` is not 0, the cursor is empty) it puts the
    Sequence of its SWEEP_BEGIN into `sweep_from`; the dialect only keeps that number and sets it to 1 or more when a
    table that was filled before is to be read again.
    """

    table_id: int
    sweep_from: Sequence  # 0 = no sweep: a first fill; else the Sequence of its SWEEP_BEGIN
    cursor: bytes  # empty = at the start
    rows_done: int
    rows_estimate: int
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTable:
    """A captured table as the registry at the source has it.

    ACTIVE: captured. PAUSED: its log rows wait and cuts leave them, because an operator or a row that cannot be
    carried halted it (`Source.halt`). RESYNC: changes were missed (`reason` says why);
    what can still be captured of it is, but only a new fill makes it whole, and that is an operator's decision.
    RELEASING: an operator takes it out of capture; its triggers are gone or going, its log is still captured.
    RELEASED: it is not captured any more. Its row stays, so that number and version go on should it come back.
    """

    schema: TableSchema
    state: str  # ACTIVE, PAUSED, RESYNC, RELEASING, RELEASED
    reason: str
    fill: FillState

    @property
    def is_read(self) -> bool:
        """Whether no rows of before its triggers are to be read any more."""
        return self.fill.done or self.state in ("RELEASING", "RELEASED")


@dataclass(frozen=True, slots=True, kw_only=True)
class UncapturedTable:
    """A table that the patterns choose and the registry does not have: made or renamed since, detached, or refused.

    `obstacle` says why it cannot be captured as it is; empty = the next installation captures it.
    """

    name: str
    obstacle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLack:
    """One of VENUS's own tables that its user may not use as it must, and the statement that changes that."""

    table: str
    grant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallStep:
    """One statement of an installation; `exists` = it is there already, unchanged."""

    table: str
    what: str  # e.g. "trigger venus_i_00001"
    sql: str
    exists: bool = False
    #: VENUS runs it itself, also after somebody else has run the script.
    adopted: bool = False
    #: Part of the script that somebody else can run.
    by_hand: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """A counter at the source: of a table's column, or a sequence of its own (`table` and `column` empty)."""

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
    """Something of the application's that is no table: VENUS does not carry it, and says so."""

    kind: str  # view, trigger, procedure, ...
    name: str


class Cut(Protocol):
    """One snapshot of the log tables and the source tables."""

    @property
    def captured_at_us(self) -> int:
        """The source's clock when the snapshot was opened, Unix microseconds."""
        ...

    def sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        """Stream the changes, each section within the limits (one larger row travels alone).

        Each key appears once per cut; a TRUNCATE marker comes before its table's changes, and where keys can be
        equal without being the same text (1.0 and 1.00), the tombstones come before the rows. Every log row that
        these sections account for is removed by `commit`, so the iterator must be consumed to its end before it.

        Raises TableHalts at a row that cannot be carried. What came before may have left already, and a target that
        got it would show half a transaction of that table: the caller takes all of it back.
        """
        ...

    def fill_chunk(self, fill: FillState, *, rows_max: int, bytes_max: int) -> tuple[list[TableChanges], FillState]:
        """Read the next key range of a table being filled, in this same snapshot.

        Returns changes only (no markers), together about within the limits, each section within `bytes_max`. Called
        after the sections have been consumed. The fill ends at the greatest key of its first chunk's snapshot
        (fillplace.py): what comes behind it is in the log. Raises TableHalts, as `sections` does.
        """
        ...

    def commit(
        self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], forget_batches_below: BatchNo
    ) -> None:
        """Run the local transaction, durably. Raises Fenced if another instance has raised the epoch."""
        ...

    def rollback(self) -> None:
        """Close the snapshot and leave everything as it was."""
        ...


class Source(Protocol):
    """One source database, used by one thread."""

    name: str
    capabilities: Capabilities

    def close(self) -> None: ...

    # -- dictionary and installation ---------------------------------------------------------------------

    def tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        """Read the dictionary; table ids are those of the registry, or 0 for tables not captured yet."""
        ...

    def table_names(self) -> list[str]:
        """Return every table of the application, `namespace.table`, also what cannot be captured."""
        ...

    def uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        """Return the tables that these patterns choose and the registry does not have, by name.

        Empty if nothing is installed. A table that an operator took out of capture is in the registry. Reads the
        dictionary, never rows; one statement says all names, and only what it finds is looked at more closely.
        """
        ...

    def unmatched(self, patterns: Seq[str]) -> list[str]:
        """Return the patterns that choose none of these tables; one reading of the dictionary for all of them."""
        ...

    def numberings(self) -> list[Numbering]:
        """Return the counters of the captured tables and the sequences beside them, as they stand now. Reads only."""
        ...

    def other_objects(self) -> list[OtherObject]:
        """Return what the application has besides tables and sequences. Reads only."""
        ...

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        """Say what is missing or cannot be carried; reads only, no DDL and no DML."""
        ...

    def install_plan(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation, in order. Raises Refused if a finding blocks."""
        ...

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install what is missing; idempotent; a trigger that had vanished marks its table RESYNC.

        A table that was taken out of capture and is chosen is captured again: in the version that it has now, and
        read as a whole.
        """
        ...

    def uninstall_plan(self) -> list[InstallStep]: ...

    def uninstall(self) -> list[InstallStep]:
        """Leave the catalogue as it was before the installation."""
        ...

    def release_plan(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Return every statement that takes these tables out of capture: those of `release`, then of `drop_logs`."""
        ...

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Take the triggers of these tables away; they become RELEASING, and their logs go on being captured.

        Idempotent: one that was cut off is finished by the next. A RELEASED table stays so.
        """
        ...

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of tables whose triggers are gone; they become RELEASED, each for its reason.

        A row that is in a log then is never captured: the caller has waited for capture, or says so.
        """
        ...

    def as_script(self, steps: Seq[InstallStep], *, removal: bool) -> str:
        """Return what of these steps is not there yet as a script for the database's own client.

        Raises Refused for a name that no script can hold.
        """
        ...

    # -- the registry and the checkpoint row ---------------------------------------------------------------

    def registered(self) -> list[RegisteredTable]:
        """Return the captured tables: every table of the registry that is not RELEASED."""
        ...

    def released(self) -> list[RegisteredTable]:
        """Return the RELEASED tables."""
        ...

    def registry_sign(self) -> str:
        """Return what is another text whenever `registered` shows anything else. Costs little for many tables."""
        ...

    def set_table_state(self, table_id: int, state: str, reason: str) -> None: ...

    def restart_fill(self, table_id: int) -> None:
        """Make the next cuts re-read the whole table (with a sweep if it was filled before)."""
        ...

    def start_over(self, table_id: int, version: int) -> None:
        """Have the whole table read again, with a sweep whatever is known here, in this version or the one it has.

        For a source that is behind its broker: that has rows of the table of which nothing here tells, perhaps in
        versions that were made in the history that is lost. The higher version is the one that counts.
        """
        ...

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        """Leave a table out of the cuts to come, log rows and fill as they are, because a row cannot be carried.

        `refresh_schemas` lets it go on when it has been written to since. A table that is PAUSED stays so for the
        reason that it has. Raises Fenced if another instance has raised the epoch.
        """
        ...

    def state(self) -> SourceState: ...

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        """Fence older instances. Raises Fenced if the source already has a higher epoch."""
        ...

    def batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        """Answer a review: which of these are in the batch table.

        Waits for a local transaction that is just committing, so that an absent batch of an older epoch is final.
        """
        ...

    def beat(self) -> None:
        """Update the heartbeat row; it is captured like any other."""
        ...

    def backlog(self) -> dict[int, tuple[int, int]]:
        """Return, per table_id, how many log rows wait and the age of the oldest blocker in seconds."""
        ...

    def row_counts(self) -> dict[int, int]:
        """Return, per table_id, about how many rows a captured table has, where the database's statistics say it.

        One statement that reads no row of the application's, except in a small SQLite file.
        """
        ...

    def own_lacking(self) -> list[OwnLack]:
        """Return what VENUS's user lacks of VENUS's own tables, other than logs: without it nothing can be captured.

        Empty if nothing is installed. Costs a few round trips.
        """
        ...

    def locked(self) -> dict[str, str]:
        """Return whose lock on which table cuts have been waiting for, by table, if that has lasted for seconds."""
        ...

    def blocked_by(self) -> str:
        """Name the sessions whose open transactions captured tables wait for, as far as this database tells."""
        ...

    # -- capture ---------------------------------------------------------------------------------------------

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare the dictionary with the registry; store and return new versions of changed tables.

        Tables that another process has registered since are returned too. A table whose key has changed or that is
        gone becomes RESYNC; the application's statements go on. A new column restarts the table's fill. A table that
        `halt` left out goes on if it has been written to since.
        """
        ...

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        """Wait until there may be something to capture, looking every `pause_s`; a second at most.

        Nothing else is due for `rest_s`. False = it did not wait: this source cannot, or not now.
        """
        ...

    def open_cut(self, fills: Seq[FillState]) -> Cut | None:
        """Open a snapshot; None if the log is empty and nothing is to be filled.

        Raises SchemaChanged instead of reading a table in another version than the registry's.

        Also None if the application has a table to itself just now (TRUNCATE, ALTER TABLE): VENUS gives way.
        """
        ...
