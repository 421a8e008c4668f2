"""Two simulated databases and a broker, with the behaviour that a switch depends on."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from venus.adapters.dialects.contract import SourceState
from venus.adapters.targets.cutover_contract import FollowStart, SideOpening
from venus.adapters.targets.switching import SideRecord, SwitchPosition
from venus.errors import DatabaseUnavailable, Fenced, LockTimeout, Refused
from venus.model import BatchNo, Epoch, Sequence

Entry = tuple[str, str | None]


@dataclass
class Mechanisms:
    """Mechanisms that a switch relies on; a test can disable each."""

    #: VENUS's own writes are not logged.
    suppresses_echo: bool = True
    #: A sealed checkpoint rejects a capture's transaction.
    seals: bool = True
    #: Sealing checks in the same transaction that the logs are empty.
    looks_into_logs: bool = True
    #: Counters are set past those of the other database.
    sets_counters: bool = True
    #: No position may have moved since the comparison.
    checks_movement: bool = True
    #: The former owner rejects writes before the new one accepts them.
    closes: bool = True


@dataclass
class Database:
    """A database: rows, logged keys, and the records of VENUS."""

    name: str
    rows: dict[str, str] = field(default_factory=dict)
    #: The keys to be captured, each with the number of its last write.
    log: dict[str, int] = field(default_factory=dict)
    writes: int = 0
    next_number: int = 1
    record: SideRecord | None = None
    rejects: bool = False
    captures: bool = False
    epoch: int = 0
    batch: int = 0
    follows: bool = False
    offset: int = 0
    marked: bool = False
    #: Offset at which the database was opened.
    start: int = 0

    def write(self, key: str, value: str | None, *, logged: bool) -> None:
        """Change a row, and log its key if the database is captured."""
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value
        if logged and self.captures:
            self.writes += 1
            self.log[key] = self.writes


@dataclass
class Broker:
    """The queue of one business, and at most one half message."""

    queue: list[Entry] = field(default_factory=list)
    epoch: int = 0
    last_batch: int = 0
    half: tuple[int, list[Entry]] | None = None

    def commit(self) -> None:
        """Commit the half message."""
        assert self.half is not None
        self.last_batch, entries = self.half
        self.queue += entries
        self.half = None


class Side:
    """A database as the switch accesses it. `call` runs other processes, and may kill this one."""

    def __init__(self, database: Database, rules: Mechanisms, call: Callable[[], None]) -> None:
        self.name = database.name
        self._database = database
        self._rules = rules
        self._call = call

    @contextmanager
    def _transaction(self) -> Any:
        """Run a transaction, between two points at which this process may be killed."""
        self._call()
        yield
        self._call()

    def read(self) -> SideRecord | None:
        self._call()
        return self._database.record

    def describe_open_transactions(self) -> str:
        return ""

    def install(self) -> None:
        self._call()

    def reject_writes(self, record: SideRecord, tables: Seq[object]) -> None:
        with self._transaction():
            self._database.record = record
            self._database.rejects = self._rules.closes or record.state.value == "FOLLOWING"

    def seal(self, record: SideRecord, epoch: int, tables: Seq[object]) -> SwitchPosition:
        found = self._database
        with self._transaction():
            if found.epoch != epoch:
                raise Fenced("another process has begun to capture")
            if found.log and self._rules.looks_into_logs:
                raise Refused("changes wait")
            found.epoch = -epoch if self._rules.seals else epoch
            found.record = record
        return SwitchPosition(offset=record.offset, epoch=epoch, next_sequence=1, last_batch=found.batch)

    def reopen(self, record: SideRecord) -> None:
        with self._transaction():
            self._database.record, self._database.rejects = record, False
            self._database.epoch = abs(self._database.epoch)

    def tidy(self) -> None:
        self._call()

    def plan_handover(self, *_: object) -> SimpleNamespace:
        self._call()
        return SimpleNamespace(preparation=(), statements=(), schemas=(), obstacles=())

    def read_start(self) -> FollowStart:
        self._call()
        return FollowStart(offset=self._database.start, epoch=1, last_sequence=1, rows=None, schemas=())

    def follow(self, record: SideRecord, start: FollowStart) -> None:
        with self._transaction():
            found = self._database
            found.record, found.follows, found.offset, found.marked = record, True, start.offset, False

    def keep_following(self) -> None:
        """Let other processes run; a prepared handover has nothing to enable here."""
        self._call()

    def find_obstacles(self, tables: Seq[object]) -> list[Any]:
        return []

    def close(self) -> None:
        pass


class Session:
    """The session that opens the follower."""

    def __init__(
        self, database: Database, rules: Mechanisms, call: Callable[[], None], lock: Callable[[], None]
    ) -> None:
        self._database = database
        self._rules = rules
        self._call = call
        self._lock = lock
        #: Outcome of the next transaction: "" = it commits; "before" or "after" = the connection is lost before or
        #: after the commit; "locked" = it gets no lock.
        self.loses = ""

    def lock_switch(self) -> None:
        self._call()
        self._lock()

    def set_counters(self, number: int) -> None:
        self._call()
        if self._rules.sets_counters:
            self._database.next_number = max(self._database.next_number, number)

    def put_mark(self, certificate: object, check: Callable[[Any], None], opening: SideOpening) -> None:
        found = self._database
        self._call()
        if self.loses == "before":
            raise DatabaseUnavailable("the connection was lost")
        if self.loses == "locked":
            self.loses = ""
            raise LockTimeout("another session holds a lock")
        check(())
        at = opening.position
        if found.offset != at.offset:
            raise Refused("not at the position")
        found.record, found.rejects, found.follows, found.captures = opening.record, False, False, True
        found.epoch, found.batch, found.start, found.marked = at.epoch, at.last_batch, found.offset, True
        found.log.clear()
        self._call()
        if self.loses == "after":
            raise DatabaseUnavailable("the connection was lost")


class Registry:
    """The checkpoint of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read_state(self) -> SourceState:
        """Return the checkpoint."""
        found = self._database
        return SourceState(epoch=Epoch(found.epoch), next_sequence=Sequence(1), last_batch=BatchNo(found.batch))
