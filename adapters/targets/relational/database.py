"""A relational target and VENUS's own tables in it: its position, and the state of each table (VENUS 3.4).

`RelationalDatabase` is the interface that each kind of target implements. The apply loop, catch-ups, resyncs and
operators' commands of this package use only this interface. If a target's DDL ends the transaction, a method that needs
DDL raises `DdlNeeded`, and the DDL runs before the next transaction; other targets run DDL within the transaction.

A target that was cut over has a mark: the target belongs to the application, and VENUS must not write to it. One
transaction sets the mark and `paused` while it locks the applied offset, so no cut is applied in part.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from venus.adapters.targets.registry import target_kind
from venus.adapters.targets.relational.own_tables import OwnPlace, OwnSession, OwnSql, OwnTables, TablePlace
from venus.adapters.targets.relational.place import VersionStep
from venus.adapters.targets.relational.session import Refusal, RelationalSession
from venus.adapters.targets.relational.states import (
    TableState,
    format_mark_time,
)
from venus.config import Settings, require_target
from venus.errors import Refused, TargetError
from venus.model import TableSchema

if TYPE_CHECKING:
    from venus.adapters.targets.relational.catalogue import TargetCatalogue
    from venus.adapters.under.cut_assembler import DeliveredCut
    from venus.adapters.under.row_changes import PendingChanges, RowChanges
    from venus.codec.packed import PackedBytes
    from venus.codec.stored_rows import FullRows
    from venus.rpc.conditions import TableCondition

logger = logging.getLogger(__name__)

#: How long to wait for the server process of a killed predecessor, which holds the lock until it notices.
LOCK_WAIT_S = 30.0
_PAUSE_S = 0.1


class TableSql(Protocol):
    """The statements that change one target table, composed once for a table version."""

    @property
    def placed(self) -> TablePlace: ...

    @property
    def side(self) -> str:
        """The quoted side table of a resync."""
        ...

    def text(self, block: str, **more: str) -> str:
        """Return a block of the kind's apply.sql for this table."""
        ...


class PendingWriter(Protocol):
    """Writer of pending changes to the target, within one transaction."""

    def make_room(self, pending: PendingChanges) -> None:
        """Move changes from memory to the server. Raises MergeWhole or RowsRefused, perhaps at the next call."""
        ...

    def flush(self, pending: PendingChanges) -> None:
        """Write all pending changes to the table. Raises RowsRefused."""
        ...


class Closable(Protocol):
    """A monitor that runs until it is closed."""

    def close(self) -> None: ...


class RelationalDatabase(OwnTables):
    """A database that is target `name` of the configuration.

    Until its first load has ended, a target counts as never loaded, except in an object that has `first_load` set.
    """

    # -- sessions ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def connect(self, purpose: str = "apply") -> RelationalSession:
        """Open a session."""

    @abstractmethod
    def install(self) -> list[str]:
        """Create or upgrade VENUS's own tables; return the statements run."""

    @abstractmethod
    def is_installed(self, session: OwnSession) -> bool:
        """Return whether VENUS's own tables exist."""

    @abstractmethod
    def lock(self, session: OwnSession, stop: threading.Event) -> bool:
        """Lock the target for this session and prepare it for applying; return whether foreign keys are only deferred.

        Raises Refused if the target was never loaded or another process still works on it.
        """

    @abstractmethod
    def constraints_text(self, *, is_deferred: bool) -> str:
        """Return how foreign keys and triggers are treated, as text for operators."""

    @abstractmethod
    def try_disable_constraints(self, session: OwnSession) -> bool:
        """Disable foreign keys and triggers for this session if the user may; return whether they are disabled."""

    def refuse_acting_foreign_keys(self, session: OwnSession, tables: Sequence[TableState]) -> None:
        """Raise Refused for foreign keys that would change rows a second time, or cannot be deferred."""

    def watch_lock_waits(
        self,
        session: OwnSession,
        states: Callable[[], dict[int, TableState]],
        tell: Callable[[list[TableCondition]], None],
    ) -> Closable | None:
        """Let a session report its own waits for locks until the result is closed; None = the caller has to watch."""
        return None

    @abstractmethod
    def find_lock_waits(self, session: OwnSession, states: dict[int, TableState]) -> list[TableCondition]:
        """Return the tables for whose locks this target's sessions wait, with the holders."""

    # -- tables --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def place(self, schema: TableSchema) -> TablePlace:
        """Return a source table with its names at this target."""

    @abstractmethod
    def row_sql(self, schema: TableSchema) -> TableSql:
        """Return the statements for a table version."""

    def start_recording(self, session: OwnSession, sql: OwnSql, *, is_recording: bool) -> None:
        """Begin to record keys of changed rows, in a transaction. `is_recording`: keys are already being recorded.

        Raises DdlNeeded.
        """
        session.run(sql.text("create_touched"))

    def end_recording(self, session: OwnSession, sql: OwnSql) -> None:
        """Forget the recorded keys, within a transaction."""
        session.run(sql.text("drop_touched"))

    @abstractmethod
    def find_differences(self, session: OwnSession) -> dict[str, tuple[str, ...]]:
        """Return the differences from the source's tables, by the source's name of the table."""

    @abstractmethod
    def store_version(self, session: OwnSession, schema: TableSchema, known: TableSchema | None) -> None:
        """Store a table version; `known` is the current version of the table at the target."""

    def add_stream_table(self, session: OwnSession, schema: TableSchema, offset: int) -> None:
        """Create a table that is new in the stream; it halts if rules for columns do not fit it. Raises DdlNeeded."""
        if reason := self.columns.reason_to_halt(schema):
            self.put_halted(session, self.place(schema), offset, reason)
            logger.error("target %s: table %s is halted: %s", self.name, schema.qualified_name, reason)
        else:
            self.create_stream_table(session, schema, offset)

    @abstractmethod
    def create_stream_table(self, session: OwnSession, schema: TableSchema, offset: int) -> None:
        """Create a table that is new in the stream, before its rows arrive; a table that cannot be created halts.

        Raises DdlNeeded.
        """

    @abstractmethod
    def plan_step(
        self, session: OwnSession, catalogue: TargetCatalogue, schema: TableSchema, *, rekeying: bool = False
    ) -> VersionStep:
        """Return the step from a table's current version at the target to this one. Raises DdlNeeded."""

    def truncate(self, session: OwnSession, sql: OwnSql) -> None:
        """Empty the table, by DELETE, so that readers of an older snapshot still see its rows."""
        session.run(sql.text("delete_all"))

    def adopt_columns(self, session: OwnSession, state: TableState, schema: TableSchema) -> None:
        """Correct columns that an older version of VENUS has created, before a resync replaces rows."""

    def forget_values(self, session: OwnSession, placed: OwnPlace, column: str, *, is_own: bool) -> None:
        """Remove the values of a column that the target no longer gets, within a transaction."""
        name = placed.column(column)
        session.run(f"UPDATE {placed.sql} SET {name} = NULL WHERE {name} IS NOT NULL")

    # -- rows ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def open_merger(
        self, session: OwnSession, catalogue: TargetCatalogue, start: int, whole: frozenset[int] | None
    ) -> PendingWriter:
        """Return the writer of the rows of one transaction, which starts at offset `start`."""

    def apply_at_once(
        self,
        session: OwnSession,
        catalogue: TargetCatalogue,
        cuts: Sequence[DeliveredCut],
        *,
        defer_constraints: bool,
    ) -> bool:
        """Apply small cuts in one round trip; return False if that is not possible and nothing was changed."""
        return False

    @abstractmethod
    def apply_net(self, session: OwnSession, schema: TableSchema, rows: RowChanges) -> None:
        """Write a few net changes, within a transaction. Raises Refusal."""

    @abstractmethod
    def record_keys(
        self, session: OwnSession, sql: OwnSql, schema: TableSchema, record_ids: PackedBytes, offset: int
    ) -> None:
        """Add keys to the record of a table's changed keys."""

    # -- refusals ------------------------------------------------------------------------------------------------------

    def check_deferred(self, session: OwnSession) -> None:
        """Check deferred constraints now, before COMMIT. Raises Refusal."""

    def commit_one_by_one(self, session: OwnSession, catalogue: TargetCatalogue, written: Sequence[int]) -> None:
        """Commit so that a refusal names the table at fault. Raises RowsRefused."""
        session.run("COMMIT")

    def find_refused_table(self, session: OwnSession, catalogue: TargetCatalogue, refusal: TargetError) -> int | None:
        """Return the table that a refusal concerns; None if unknown. May roll back the transaction."""
        if not isinstance(refusal, Refusal):
            return None
        by_name = {(t.namespace, t.name): t.table_id for t in catalogue.tables.values()}
        return by_name.get(refusal.table)

    # -- resync --------------------------------------------------------------------------------------------------------

    def is_version_missing(self, error: BaseException | None) -> bool:
        """Return whether a side table could not be created yet because its version has not arrived in the stream."""
        return False

    @abstractmethod
    def create_side_table(self, session: OwnSession, sql: OwnSql) -> None:
        """Create the side table of a resync, in place of an older one."""

    @abstractmethod
    def copy_side(self, session: OwnSession, sql: OwnSql, rows: FullRows, version: TableSchema) -> None:
        """Write rows of the full data into the side table."""

    @abstractmethod
    def replace_by_side(
        self, session: OwnSession, sql: OwnSql, cut: int, evolve: Callable[[], None]
    ) -> tuple[int, int]:
        """Make the table equal to the side table; return how many rows were removed and added."""

    @abstractmethod
    def replace_key_by_side(
        self,
        session: OwnSession,
        state: TableState,
        before: OwnPlace,
        sql: OwnSql,
        evolve: Callable[[], None],
    ) -> tuple[int, int]:
        """Give the table the key and the rows of its side table; return how many rows were removed and added.

        Raises TargetError.
        """

    # -- load ----------------------------------------------------------------------------------------------------------

    #: Whether parallel tasks speed up a load: not at a database with a single writer.
    loads_in_parallel = True

    @property
    def kind(self) -> str:
        """The folder of this kind, for the tasks of a load."""
        return target_kind(self.url, f"targets.{self.name}.url")

    @abstractmethod
    def place_all(self, schemas: Sequence[TableSchema]) -> Sequence[OwnPlace]:
        """Return all tables but the heartbeat with their names. Raises Refused with a line for each impossible name."""

    def prepare_load(self, session: OwnSession, placed: Sequence[OwnPlace]) -> None:
        """Run the DDL that a load needs, before its transaction."""

    @abstractmethod
    def make_tables(
        self, session: OwnSession, placed: Sequence[OwnPlace], before: Mapping[tuple[str, str], TableState]
    ) -> set[int]:
        """Create or empty these tables, and return those that VENUS has created. Raises Refused with every difference.

        `before`: the tables that this target had before.
        """

    @abstractmethod
    def has_table(self, session: OwnSession, placed: OwnPlace) -> bool:
        """Return whether the table exists."""

    @abstractmethod
    def count_rows(self, session: OwnSession, placed: OwnPlace) -> int:
        """Count the rows of a table."""

    @abstractmethod
    def finish_table(self, session: OwnSession, placed: OwnPlace) -> None:
        """Add the primary key after the rows, unless it exists."""

    @abstractmethod
    def finish_tables(
        self, session: OwnSession, created: Sequence[OwnPlace], everything: Sequence[OwnPlace]
    ) -> list[str]:
        """Add indexes, checks and foreign keys to the created tables; return what the target rejects."""

    @abstractmethod
    def list_left_out(self, placed: Sequence[OwnPlace]) -> list[str]:
        """Return the source's objects that the target does not get, one line each."""

    @abstractmethod
    def read_load_progress(self, session: OwnSession, load_id: str) -> tuple[int, int, int]:
        """Return the rows of loaded splits, the number of these splits, and the rows of splits in progress."""

    def log_load_waits(self) -> AbstractContextManager[None]:
        """Log the locks that the sessions of a load wait for, while the block runs."""
        return nullcontext()

    def relax_commits(self, session: OwnSession) -> None:
        """Let this session's commits become durable later."""

    def commit_durably(self, session: OwnSession) -> None:
        """Make COMMIT durable again, as it was at first."""


class _DatabaseModule(Protocol):
    """The module `database` of a kind of relational target."""

    def open_database(self, settings: Settings, name: str, *, first_load: bool = False) -> RelationalDatabase: ...


def open_database(settings: Settings, name: str, *, first_load: bool = False) -> RelationalDatabase:
    """Return the relational target `name` of the configuration."""
    kind = target_kind(require_target(settings, name).url.get_secret_value(), f"targets.{name}.url")
    module = cast(_DatabaseModule, import_module(f"venus.adapters.targets.{kind}.database"))
    return module.open_database(settings, name, first_load=first_load)


def refuse_if_cut_over(target: RelationalDatabase, session: RelationalSession) -> None:
    """Raise Refused if the target belongs to the application: VENUS could overwrite its rows."""
    mark = target.read_mark(session)
    if mark is not None:
        raise Refused(
            f"target {target.name} was cut over at {format_mark_time(mark)}: it is the application's own",
            hint=f"`venus cutover --target {target.name} --undo` takes that back, unless rows were written there since",
        )


def wait_for_lock(
    target: RelationalDatabase, session: RelationalSession, stop: threading.Event, wait_s: float = LOCK_WAIT_S
) -> None:
    """Lock a target; wait for the session of a predecessor that has just ended. Raises Refused."""
    until = time.monotonic() + wait_s
    while not target.try_lock(session):
        if stop.wait(_PAUSE_S) or time.monotonic() > until:
            target.require_lock(session)
