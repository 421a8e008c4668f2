"""The contract of a target; every kind of target passes the same conformance suite (tests/conformance/targets).

A target is loaded once, at a cut of the broker's full data, and then follows the increments after that cut. A target
applies whole cuts only, each together with the offset that follows the cut. After a crash, the next process continues
with no gap and no overlap. A target acknowledges an offset at the broker only when the changes below it are durable.
Each kind of target decides how it stores rows, the offset and operators' requests (PostgreSQL: tables; Parquet: a
manifest).

`TargetCapabilities` lists what only some kinds can do. A caller checks a capability with `require_capability`, never
the name of a kind. Verification also needs the offset that each table of a target has reached (`TargetReader`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from venus.adapters.dialects.verify_contract import Reader, Subject
from venus.adapters.targets.views import TargetView
from venus.errors import ConfigError
from venus.model import Finding, TableSchema

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide
    from venus.process.runners import Runner
    from venus.rpc.conditions import LastComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """A table of a target: its version, its predicate, and what prevents a comparison."""

    schema: TableSchema
    obstacle: str = ""
    predicate: str = ""  # selects the rows that it gets; empty = every row


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedOffset:
    """The offset up to which a table has its changes; `held` says why that is below the target's offset."""

    offset: int
    held: str = ""


class TargetReader(Reader, Protocol):
    """A session that reads a target for a comparison."""

    def read_reached_offset(self, subject: Subject) -> ReachedOffset:
        """Return the offset that a table has reached in the snapshot. Raises TargetError if it was never loaded."""
        ...

    def read_parked_rows(self, subject: Subject) -> dict[bytes, str]:
        """Return the reasons why changes of single rows were not applied, by record id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCapabilities:
    """Differences between kinds of targets. Code checks capabilities, never the kind; by default, a kind has none."""

    #: The kind in messages: "a PostgreSQL database".
    kind: str
    pauses_tables: bool = False  # single tables can be paused; otherwise only the whole target
    quarantines: bool = False  # it may refuse a row: then that row or its table waits, and other tables continue
    prints_ddl: bool = False  # it can show beforehand what a load would create
    loads_by_runner: bool = False  # the tasks of a load may run elsewhere, on Spark
    loads_while_read: bool = False  # its first load may overlap the first read of the source
    follows_by_runner: bool = False  # tasks that run elsewhere may apply increments
    verifies: bool = False  # its rows can be compared with those of the source and the full data
    filters: bool = False  # its tables may have predicates: [targets.NAME.where]
    masks: bool = False  # its columns may be masked, dropped and renamed: [targets.NAME.columns]
    cuts_over: bool = False  # it can become the application's own database
    falls_back: bool = False  # after a cut-over, the old source can follow it, if both are of one kind


#: Message for a target that lacks a capability, after "target NAME is KIND: ".
UNSUPPORTED_TEXTS = {
    "pauses_tables": "it can be paused as a whole only",
    "quarantines": "it refuses no row, so that there is no quarantine",
    "prints_ddl": "there is no DDL to print",
    "loads_by_runner": "Spark cannot load it",
    "loads_while_read": "it is loaded after the first read of the source",
    "follows_by_runner": "Spark cannot write to it",
    "verifies": "only databases can be compared",
    "filters": "it gets every row, and no rows can be chosen for it",
    "masks": "its columns cannot be masked, dropped or renamed",
    "cuts_over": "it lacks numbering, checks and defaults, on which an application relies, so it cannot be cut over",
    "falls_back": "the source cannot follow it after a cut-over",
}


#: The hint of such a message.
_WAYS_OUT = {"cuts_over": "load a PostgreSQL target, and cut that one over"}


class _HasCapabilities(Protocol):
    """A target, or another object that states what its kind of target can do."""

    name: str
    capabilities: TargetCapabilities


def require_capability(target: _HasCapabilities, capability: str, hint: str = "") -> None:
    """Raise ConfigError if the target lacks this capability; the message names the kind and what it cannot do."""
    if not getattr(target.capabilities, capability):
        raise ConfigError(
            f"target {target.name} is {target.capabilities.kind}: {UNSUPPORTED_TEXTS[capability]}",
            hint=hint or _WAYS_OUT.get(capability, ""),
        )


# -- what a target reports ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The outcome of an operator's command."""

    table: str | None  # its name at the source; None = all
    states: dict[str, str]  # the present states, by table
    #: Step that has to happen before the command takes effect, as a sentence; empty = none.
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """Progress of a load."""

    phase: str  # planning, loading, indexing, done
    rows: int = 0
    rows_estimate: int = 0
    splits: int = 0
    splits_total: int = 0
    table: str = ""
    #: Note about an interrupted load, reported once: it continues, or why it begins again.
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Result of a load."""

    target: str
    offset: int
    rows: dict[str, int]
    parked: int = 0
    seconds: float = 0.0
    #: The target was loaded before; nothing was done.
    already: bool = False
    #: Splits that an earlier, interrupted run had loaded.
    resumed_splits: int = 0
    warnings: tuple[str, ...] = ()
    #: Objects of the source that the target did not get, one line each, with the reason.
    left_out: tuple[str, ...] = ()
    #: Tables that a change halted during a first load, one line each, with the reason.
    halted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowReport:
    """Report of the apply loop to its caller, about twice a second; kinds of targets add fields."""

    target: str
    offset: int
    rows: int  # applied by this process
    transactions: int
    error: str = ""  # the transient error that the loop waits out


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRow:
    """A change that the target refused, or that waits behind a refused one."""

    id: int
    table_id: int
    table: str
    schema_version: int
    record_id: bytes
    key: str
    offset: int
    sequence: int
    sqlstate: str
    message: str
    row_message: bytes
    is_deleted: bool
    state: str
    reason: str
    created_at: datetime
    decided_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryReport:
    """Result of a retry or skip."""

    applied: int = 0
    still_refused: int = 0
    #: Tables that read their changes again from the offset at which they halted.
    resumed: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDdl:
    """The objects that a load would create."""

    text: str  # as a file that a DBA can read and run
    statements: tuple[str, ...]
    #: Statements of the cut-over, which do not run before it.
    later: tuple[str, ...]
    #: What is not created, one line each, with the reason.
    left_out: tuple[str, ...]


# -- optional parts ----------------------------------------------------------------------------------------------------


class Quarantine(Protocol):
    """Changes that the target refused (capability `quarantines`)."""

    def list(self, *, everything: bool = False) -> list[QuarantineRow]:
        """Return the changes that wait in quarantine, in order; `everything` adds those already decided."""
        ...

    def retry(self, ids: Seq[int] = (), tables: Seq[str] = ()) -> RetryReport:
        """Apply these changes in quarantine again, or all if none is named; a halted table reads its changes again."""
        ...

    def skip(self, ids: Seq[int], *, reason: str) -> RetryReport:
        """Discard changes in quarantine permanently. Raises Refused without a reason or without ids."""
        ...

    def schemas(self) -> Seq[TableSchema]:
        """Return every table version in which the refused rows may be encoded."""
        ...


class ScaledApply(Protocol):
    """Apply by many tasks, for example of Spark: each applies a range of the queue (capability `follows_by_runner`)."""

    def start(self) -> tuple[int, int]:
        """Prepare the apply; return the target's applied offset and its epoch."""
        ...

    def apply_up_to(self, end: int) -> None:
        """Apply every change below an offset exactly once, however often this is called."""
        ...

    def report_switch(self) -> None:
        """Report to the broker that a switch of the application is unfinished or has ended, while no changes arrive."""
        ...


# -- the target --------------------------------------------------------------------------------------------------------

LoadReporter = Callable[[LoadProgress], None]
FollowReporter = Callable[[FollowReport], None]
#: Chooses the runner of a load's tasks by the estimated number of rows.
RunnerChooser = Callable[[int], "Runner"]
#: Returns the offset after the first read of the source; None while that read is in progress.
FillEnd = Callable[[], int | None]


class Target(Protocol):
    """One target of the configuration. The object opens nothing before a method is called, and leaves nothing open."""

    name: str
    capabilities: TargetCapabilities

    # -- before anything is written ------------------------------------------------------------------------------------

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        """Check that the target can be reached and can hold these tables; reads only.

        An unreachable target is a finding, not an error.
        """
        ...

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        """Raise Refused with one line for each obstacle to creating these tables at the target."""
        ...

    def build_ddl(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> TargetDdl:
        """Return what a load would create, without a database connection (capability `prints_ddl`)."""
        ...

    # -- load and follow -----------------------------------------------------------------------------------------------

    def load(
        self,
        report: LoadReporter | None = None,
        *,
        choose: RunnerChooser | None = None,
        empty_meanwhile: bool = False,
        fill_end: FillEnd | None = None,
    ) -> LoadReport:
        """Load all tables at a cut of the full data, unless the target can continue from its offset.

        Resumes an interrupted load. `choose` returns the runner of the tasks (capability `loads_by_runner`). With
        `fill_end` the source is still being read, and the load ends at the offset that it returns (capability
        `loads_while_read`). Raises Refused if another process works on the target. Also raises Refused if readers of a
        loaded target would see empty tables during the load, unless `empty_meanwhile` accepts that.
        """
        ...

    #: What to do about an unfinished switch of the application, as text; empty = nothing. `follow` reports it.
    describe_switch: Callable[[], str]

    def follow(self, stop: threading.Event, report: FollowReporter | None = None) -> None:
        """Apply increments in whole cuts until `stop`, and wait out transient errors.

        If the broker no longer has the next increments, the target continues from the full data; readers keep their
        rows until then. Raises Refused if the target was never loaded or another process works on it. Raises Diverged
        if the broker has another history at that offset; a `resync` of all tables is the remedy.
        """
        ...

    def open_scaled_apply(
        self, runner: Runner, stop: threading.Event, report: FollowReporter | None = None
    ) -> AbstractContextManager[ScaledApply]:
        """Open a scale-out apply, whose tasks run on `runner` (capability `follows_by_runner`)."""
        ...

    # -- operators -----------------------------------------------------------------------------------------------------

    def read_view(self) -> TargetView:
        """Return the current state of the target. Never raises a VenusError: the view contains the error."""
        ...

    def read_row_counts(self) -> dict[int, int]:
        """Return the approximate row count of each table by its number, where known without reading the rows."""
        ...

    def pause(self, table: str | None, reason: str) -> CommandResult:
        """Stop applying to one table (capability `pauses_tables`) or to all.

        No change is lost, because changes wait at the broker. The command works whether an apply loop is running or
        not. Raises ConfigError for an unknown table or an ambiguous name.
        """
        ...

    def resume(self, table: str | None) -> CommandResult:
        """Continue to apply, also to a table that has halted."""
        ...

    def resync(self, table: str | None) -> CommandResult:
        """Request that a table, or all tables, be made equal to the full data while the others continue."""
        ...

    def open_quarantine(self) -> Quarantine:
        """Return the refused changes (capability `quarantines`)."""
        ...

    # -- verification --------------------------------------------------------------------------------------------------

    def read_loaded_tables(self) -> dict[int, LoadedTable] | None:
        """Return every table by its number; None if the target was never loaded (capability `verifies`)."""
        ...

    def open_reader(self) -> TargetReader:
        """Open a session for a comparison (capability `verifies`)."""
        ...

    def record_comparison(self, compared: LastComparison) -> None:
        """Store the outcome of the last comparison at the target (capability `verifies`)."""
        ...

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        """Open a session that hands the target over to the application (capability `cuts_over`)."""
        ...

    def open_side(self) -> FallBackSide:
        """Open the database as one of the two between which the application can switch (capability `falls_back`)."""
        ...
