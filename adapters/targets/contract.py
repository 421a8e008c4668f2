"""What a target must offer; every kind of target passes the same conformance suite (tests/conformance/targets).

A target is loaded once at a cut of the broker's full data, and follows the increments behind it: whole cuts only, each
together with the offset behind it, so that whatever is killed, the next process reads on with no gap and no overlap.
It acknowledges an offset at the broker when the changes below it are safe, and never before. How rows, the offset and
the operator's wishes are kept is each target's own affair (PostgreSQL: tables of its own; Parquet: a manifest).

What only some kinds can do stands in `Capabilities`. A caller asks with `require`, never by a kind's name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from venus.adapters.targets.views import TargetView
from venus.errors import ConfigError
from venus.model import Finding, TableSchema

if TYPE_CHECKING:
    from venus.adapter_figures import Comparison
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.running import Runner
    from venus.adapters.targets.cutting import CutoverTarget


from venus.adapters.dialects.verifying import Reader, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """A table as a target has it: its version and its rows there, and what keeps it from being compared."""

    schema: TableSchema
    obstacle: str = ""
    predicate: str = ""  # which of its rows it gets; empty = every row


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Up to which offset changes are in a table's rows; `held` says why that is less than the target's."""

    offset: int
    held: str = ""


class TargetReader(Reader, Protocol):
    """A session that is compared."""

    def reached(self, subject: Subject) -> Reached:
        """Return how far this table is, in the snapshot of `begin`. Raises TargetError if it was never loaded."""
        ...

    def parked(self, subject: Subject) -> dict[bytes, str]:
        """Return why changes of single rows were not applied, by record id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What differs between kinds of targets, by name: code asks these, never `if kind == ...`. A new kind has none."""

    #: What such a target is, in messages: "a PostgreSQL database".
    kind: str
    pauses_tables: bool = False  # else it is paused as a whole only
    quarantines: bool = False  # it may refuse a row: that row or its table waits, the other tables go on
    prints_ddl: bool = False  # what a load would create can be shown before
    loads_by_runner: bool = False  # a load's tasks may run elsewhere: on Spark
    follows_by_runner: bool = False  # increments may be laid down by tasks that run elsewhere
    verifies: bool = False  # its rows can be compared with the source's and the full data's
    filters: bool = False  # its tables may have predicates: [targets.NAME.where]
    cuts_over: bool = False  # it can become the application's own database


#: What is said of a target that lacks a capability, behind "target NAME is KIND: ".
WITHOUT = {
    "pauses_tables": "it can be paused as a whole only",
    "quarantines": "it refuses no row, so that there is no quarantine",
    "prints_ddl": "there is no DDL to print",
    "loads_by_runner": "Spark is not what loads it",
    "follows_by_runner": "Spark is not what writes to it",
    "verifies": "only databases can be compared",
    "filters": "it gets every row, and no rows can be chosen for it",
    "cuts_over": "an application cannot use it as its database, so it cannot be cut over",
}


class _Able(Protocol):
    name: str
    capabilities: Capabilities


def require(target: _Able, capability: str, hint: str = "") -> None:
    """Raise ConfigError if the target lacks this capability; the message says what it is and what it cannot do."""
    if not getattr(target.capabilities, capability):
        raise ConfigError(f"target {target.name} is {target.capabilities.kind}: {WITHOUT[capability]}", hint=hint)


# -- what a target says ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """What a command of an operator was about."""

    table: str | None  # its name at the source; None = all
    states: dict[str, str]  # by table, as they are now
    #: What has to happen first, as a sentence for people; empty = nothing.
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load is."""

    phase: str  # planning, loading, indexing, done
    rows: int = 0
    rows_estimate: int = 0
    splits: int = 0
    splits_total: int = 0
    table: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a load has done."""

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
    #: What the source has and the target did not get, one line each with the reason.
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowReport:
    """What the loop says of itself to whoever runs it, about twice a second; kinds of targets add to it."""

    target: str
    offset: int
    rows: int  # applied by this process
    transactions: int
    error: str = ""  # what it waits for to pass by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRow:
    """A change that the target refused, or that waits behind one."""

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
    """What became of a retry or skip."""

    applied: int = 0
    still_refused: int = 0
    #: Tables that read their changes again from where they were halted.
    resumed: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What a load would create."""

    text: str  # as a file that a DBA can read and run
    statements: tuple[str, ...]
    #: What belongs to the cut-over, and is not run before.
    later: tuple[str, ...]
    #: What is not created, one line each with the reason.
    left_out: tuple[str, ...]


# -- parts that only some kinds have -----------------------------------------------------------------------------------


class Quarantine(Protocol):
    """Changes that the target refused (capability `quarantines`)."""

    def list(self, *, everything: bool = False) -> list[QuarantineRow]:
        """Return the changes that wait, in order; `everything` = the decided ones as well."""
        ...

    def retry(self, ids: Seq[int] = (), tables: Seq[str] = ()) -> RetryReport:
        """Try these changes again, none = all; a halted table reads its changes again."""
        ...

    def skip(self, ids: Seq[int], *, reason: str) -> RetryReport:
        """Give changes up for good. Raises Refused without a reason or without ids."""
        ...

    def schemas(self) -> Seq[TableSchema]:
        """Return every table version that the refused rows may be written in."""
        ...


class ScaledApply(Protocol):
    """Applies ranges of the queue by tasks that run elsewhere (capability `follows_by_runner`)."""

    def start(self) -> tuple[int, int]:
        """Return the applied offset and its epoch."""
        ...

    def up_to(self, end: int) -> None:
        """Apply everything below an offset, exactly once however often that is asked for."""
        ...


# -- the target --------------------------------------------------------------------------------------------------------

LoadTold = Callable[[LoadProgress], None]
FollowTold = Callable[[FollowReport], None]
#: Names who runs a load's tasks on about so many rows.
Chooser = Callable[[int], "Runner"]


class Target(Protocol):
    """One target of the configuration. Nothing is opened before a method is called, and nothing is left open."""

    name: str
    capabilities: Capabilities

    # -- before anything is written ------------------------------------------------------------------------------------

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        """Say whether the target can be reached and can have these tables; reads only.

        A target that cannot be reached is a finding, not an error.
        """
        ...

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        """Raise Refused, with a line for everything that would keep a load from making these tables."""
        ...

    def conversion(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> Conversion:
        """Return what a load would create (capability `prints_ddl`). Asks no database."""
        ...

    # -- load and follow -----------------------------------------------------------------------------------------------

    def load(
        self, report: LoadTold | None = None, *, choose: Chooser | None = None, empty_meanwhile: bool = False
    ) -> LoadReport:
        """Load everything at a cut of the full data, or find that it can go on from where it is.

        Goes on after an interruption. `choose` names who runs the tasks (capability `loads_by_runner`). Raises Refused
        if another process is at work on the target, or if readers of a loaded target would see empty tables until the
        load is done, unless that is accepted by `empty_meanwhile`.
        """
        ...

    def follow(self, stop: threading.Event, report: FollowTold | None = None) -> None:
        """Apply increments until `stop`, in whole cuts, and wait for what passes by itself.

        Where the broker no longer has what comes next, the target goes on from the full data, and readers keep the rows
        they have until then. Raises Refused if the target was never loaded or another process is at work on it,
        Diverged with the way out if the broker has something else there: `resync` of all tables is that way.
        """
        ...

    def scaled(
        self, runner: Runner, stop: threading.Event, report: FollowTold | None = None
    ) -> AbstractContextManager[ScaledApply]:
        """Apply by tasks of `runner` (capability `follows_by_runner`)."""
        ...

    # -- operators -----------------------------------------------------------------------------------------------------

    def look(self) -> TargetView:
        """Say what is true of the target now. Never raises a VenusError: what is wrong is in the view."""
        ...

    def row_counts(self) -> dict[int, int]:
        """Return about how many rows each table has, by number, where that is known without reading them."""
        ...

    def pause(self, table: str | None, reason: str) -> Commanded:
        """Stop applying to one table (capability `pauses_tables`) or to all.

        Nothing is lost: changes wait at the broker. Whether a loop is running does not matter. Raises ConfigError for a
        table that is not there, or for a name of more than one.
        """
        ...

    def resume(self, table: str | None) -> Commanded:
        """Go on, also with a table that has halted."""
        ...

    def resync(self, table: str | None) -> Commanded:
        """Ask for a table, or for all, to be made equal to the full data while the others stream."""
        ...

    def quarantine(self) -> Quarantine:
        """Return the refused changes (capability `quarantines`)."""
        ...

    # -- verification --------------------------------------------------------------------------------------------------

    def loaded_tables(self) -> dict[int, LoadedTable] | None:
        """Return every table by its number, None = the target was never loaded (capability `verifies`)."""
        ...

    def open_reader(self) -> TargetReader:
        """Open a session that is compared (capability `verifies`)."""
        ...

    def record_comparison(self, compared: Comparison) -> None:
        """Keep the outcome of the last comparison, for everyone who looks at the target (capability `verifies`)."""
        ...

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def cutover(self) -> AbstractContextManager[CutoverTarget]:
        """Open a session by which the target becomes the application's own database (capability `cuts_over`)."""
        ...
