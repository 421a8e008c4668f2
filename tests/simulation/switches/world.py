"""One random history of an application, `venus sync`, and operators that switch, undo and kill."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from tests.simulation.switches.databases import Broker, Database, Mechanisms, Registry, Session, Side
from venus.adapters.cutover.direction import FallBackPair
from venus.adapters.cutover.lock_patience import LockPatience
from venus.adapters.cutover.switch import Switch
from venus.adapters.targets.cutover_contract import FollowStart
from venus.adapters.targets.switching import OLD, SideState, Step, is_reversed
from venus.errors import VenusError
from venus.model import TableSchema

NEW = "main"
#: Maximum number of other processes' steps between two calls of a switch.
_BETWEEN = 4
_COMMANDS = 14
_DRAIN_TRIES = 200
BEAT = "heartbeat"


class ProcessKilled(BaseException):
    """The process that executes the switch was killed."""


class Violation(AssertionError):
    """A broken invariant."""


class SimulatedSwitch(Switch):
    """The product's switch between simulated databases."""

    world: World

    @property
    def _schemas(self) -> list[TableSchema]:
        return []

    def _read_tables(self) -> tuple[list[Any], list[Any]]:
        return [], []

    @staticmethod
    def _pause() -> None:
        pass

    def _take_over(self) -> tuple[int, int]:
        """Raise the epoch as a new producer, and decide the half message; return epoch and position."""
        world = self.world
        world.call()
        found = world.databases[self.owner.name]
        epoch = world.broker.epoch = world.broker.epoch + 1
        world.call()
        if found.epoch < 0:
            raise VenusError("sealed")
        if found.epoch > epoch:
            raise VenusError("fenced")
        found.epoch = epoch
        world.decide_half(found)
        world.call()
        return epoch, len(world.broker.queue)

    def _register_former_owner(self, start: FollowStart) -> None:
        self.world.call()


class Loop:
    """`venus sync`: it captures one database and applies to the other. Without changes it sends a heartbeat."""

    def __init__(self, world: World, owner: Database, epoch: int) -> None:
        self._world, self._owner, self.epoch = world, owner, epoch
        self._keys: dict[str, int] | None = None

    def step(self, *, beats: bool) -> None:
        """Execute one step of a cut: the half message, the local transaction, or the commit."""
        broker, owner = self._world.broker, self._owner
        if broker.half is not None and owner.batch < broker.half[0] and self._keys is not None:
            if owner.epoch == self.epoch:
                owner.batch = broker.half[0]
                keys, self._keys = self._keys, None
                owner.log = {key: n for key, n in owner.log.items() if keys.get(key) != n}
        elif broker.half is not None and broker.epoch == self.epoch and owner.batch >= broker.half[0]:
            broker.commit()
        elif broker.half is None and broker.epoch == self.epoch and (owner.log or beats):
            self._keys = dict(owner.log)
            entries = [(key, owner.rows.get(key)) for key in sorted(self._keys)]
            broker.half = (broker.last_batch + 1, entries or [(BEAT, None)])


class World:
    """One random history of switches."""

    def __init__(self, seed: int, rules: Mechanisms | None = None) -> None:
        self._random = random.Random(seed)
        self.rules = rules or Mechanisms()
        self.old = Database(name=OLD, captures=True)
        self.new = Database(name=NEW, follows=True)
        self.databases = {OLD: self.old, NEW: self.new}
        self.broker = Broker()
        #: The rows that the application has written to either database.
        self.truth: dict[str, str] = {}
        self.numbers: set[int] = set()
        self.switches = 0
        self._writes = 0
        self._loop: Loop | None = None
        self._holder: object = None
        self._fuse = -1
        self._process: object = None
        self._is_dead = False
        self._quiet = False
        self._nested = False

    # -- the environment -------------------------------------------------------------------------------------------

    def call(self) -> None:
        """Let other processes run, and kill this one if a kill is due."""
        if self._is_dead:
            raise ProcessKilled
        for _ in range(self._random.randrange(_BETWEEN)):
            self._tick()
        self._maybe_undo()
        self._fuse -= 1
        if self._fuse == 0:
            self._is_dead, self._holder = True, None
            raise ProcessKilled

    def _tick(self) -> None:
        """Take a random step of another process; check that at most one database accepts writes."""
        self._random.choice((self._write, self._capture, self._capture, self._apply, self._apply, self._restart))()
        open_ones = [d.name for d in self.databases.values() if self._accepts(d)]
        if len(open_ones) > 1:
            raise Violation("one database accepts writes")

    def _accepts(self, database: Database) -> bool:
        """Return whether a database accepts writes."""
        return not database.rejects and (database is self.old or self.new.record is not None)

    def _write(self) -> None:
        """Write to the database that accepts it; the application may be connected to either."""
        found = self._random.choice((self.old, self.new))
        if (self._quiet and self._random.random() < 0.97) or not self._accepts(found):
            return
        number = found.next_number
        found.next_number += 1
        if number in self.numbers:
            raise Violation("a number is drawn once")
        self.numbers.add(number)
        if self._random.random() < 0.3:
            return  # a number is drawn, and the transaction rolled back
        self._writes += 1
        key = str(self._random.randrange(6)) if self._random.random() < 0.5 else f"n{number}"
        value = None if self._random.random() < 0.2 else f"{found.name} {self._writes}"
        found.write(key, value, logged=True)
        if value is None:
            self.truth.pop(key, None)
        else:
            self.truth[key] = value

    def decide_half(self, owner: Database) -> None:
        """Decide the half message of an earlier producer by the owner's batches."""
        if self.broker.half is not None:
            if owner.batch >= self.broker.half[0]:
                self.broker.commit()
            else:
                self.broker.half = None

    def _restart(self) -> None:
        """Start `venus sync` again, in the direction of the records."""
        if self._random.random() < 0.7 and self._loop is not None:
            return
        owner = self.new if is_reversed(self.old.record, self.new.record) else self.old
        self._loop = None
        if owner.epoch < 0:
            return
        self.broker.epoch += 1
        self.decide_half(owner)
        owner.epoch = self.broker.epoch
        if owner.batch != self.broker.last_batch:
            raise Violation("source and broker agree on the last batch")
        self._loop = Loop(self, owner, self.broker.epoch)

    def _capture(self) -> None:
        if self._loop is not None:
            self._loop.step(beats=self._random.random() < 0.1)

    def _apply(self) -> None:
        """Apply one change of the queue to each database that follows."""
        for found in self.databases.values():
            if found.follows and not found.marked and found.offset < len(self.broker.queue):
                key, value = self.broker.queue[found.offset]
                found.write(key, value, logged=not self.rules.suppresses_echo)
                found.offset += 1

    # -- the operator ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the history, and check the final state."""
        for _ in range(_COMMANDS):
            for _ in range(self._random.randrange(30)):
                self._tick()
            self._command(self._follower, crashes=self._random.random() < 0.5)
            if self._random.random() < 0.8:
                self._command(self._follower_of_unfinished, crashes=False)
        self._settle()

    @property
    def _follower(self) -> str:
        """Return the name of the database that follows."""
        return OLD if is_reversed(self.old.record, self.new.record) else NEW

    @property
    def _follower_of_unfinished(self) -> str:
        """Return the database to which an unfinished switch leads."""
        for found in self.databases.values():
            if found.record is not None and found.record.state in (SideState.CLOSED, SideState.STOPPED):
                return found.record.peer
        return self._follower

    def _command(self, name: str, *, crashes: bool) -> None:
        """Run a command in a new process, which may be killed at any call."""
        self._fuse = self._random.randrange(1, 60) if crashes else -1
        self._is_dead, self._process, self._quiet = False, object(), self._random.random() < 0.85
        with suppress(ProcessKilled, VenusError):
            self._switch(name)
        if self._holder is self._process:
            self._holder = None
        self._quiet = False

    def _switch(self, name: str) -> None:
        """Run a switch to this database, with the steps of adapters/cutover/run.py around it."""
        owner, follower = self.databases[OLD if name == NEW else NEW], self.databases[name]
        session = Session(follower, self.rules, self.call, self._lock)
        session.loses = self._random.choice(("", "", "", "before", "after", "locked"))
        switch = self._open(owner, follower)
        session.lock_switch()
        if follower.marked:
            switch.complete()
            return
        if switch.step in (Step.DONE, Step.FOLLOW):
            return
        with switch.reopen_on_failure(cast(Any, session)):
            self._hand_over(switch, session, owner, follower)
        switch.complete()
        self.switches += 1

    def _hand_over(self, switch: Switch, session: Session, owner: Database, follower: Database) -> None:
        """Run a switch from its preparation to the opening of the follower."""
        switch.prepare()
        self._drain(owner, follower)
        compared = self._changes
        if owner.rows != follower.rows:
            raise Violation("both databases are equal at a switch")
        session.set_counters(owner.next_number)

        def check(_: object) -> None:
            if self._changes != compared:
                moved = VenusError("moved") if self.rules.checks_movement else Violation("compared at the position")
                raise moved
            if drains and owner.rows != follower.rows:
                raise Violation("both databases are equal at a switch")

        drains = self._random.random() < 0.8  # the check may have read an older state

        def drain() -> None:
            if drains:
                self._drain(owner, follower)

        at = switch.close_owner(drain)
        if drains:
            self._drain(owner, follower)
        else:
            self.call()
        session.set_counters(owner.next_number)
        switch.open(cast(Any, session), {}, check, at)

    @property
    def _changes(self) -> int:
        """Return the number of changes in the queue, without heartbeats."""
        return sum(key != BEAT for key, _ in self.broker.queue)

    def _open(self, owner: Database, follower: Database) -> SimulatedSwitch:
        """Return the product's switch between these databases."""

        def settings_to(_: str) -> Any:
            return SimpleNamespace(business=SimpleNamespace(name="shop"))

        source = SimpleNamespace(capture=SimpleNamespace(refresh_schemas=list), close=lambda: None)
        pair = SimpleNamespace(
            settings_to=settings_to, other=lambda name: NEW if name == OLD else OLD, open_source=lambda _: source
        )
        switch = SimulatedSwitch(
            cast(FallBackPair, pair),
            follower.name,
            cast(Any, SimpleNamespace(registry=Registry(owner))),
            LockPatience(60.0, sleep=lambda _: None),
            owner=cast(Any, Side(owner, self.rules, self.call)),
            follower=cast(Any, Side(follower, self.rules, self.call)),
        )
        switch.world = self
        return switch

    def _drain(self, owner: Database, follower: Database) -> None:
        """Wait until the follower has every change of the owner."""
        for _ in range(_DRAIN_TRIES):
            if not owner.log and self.broker.half is None and follower.offset == len(self.broker.queue):
                return
            self.call()
        raise VenusError("not drained")

    def _lock(self) -> None:
        """Take the lock of the switch, which one process at a time has."""
        if self._holder not in (None, self._process):
            raise VenusError("another process switches")
        self._holder = self._process

    def _maybe_undo(self) -> None:
        """Let another operator undo the switch while it runs."""
        if self._nested or self._random.random() > 0.02:
            return
        process, fuse, self._process, self._fuse, self._nested = self._process, self._fuse, object(), -1, True
        try:
            follower = self.databases[self._follower_of_unfinished]
            owner = self.old if follower is self.new else self.new
            session = Session(follower, self.rules, self.call, self._lock)
            with suppress(VenusError):
                self._open(owner, follower).reopen(cast(Any, session))
        finally:
            if self._holder is self._process:
                self._holder = None
            self._process, self._fuse, self._nested = process, fuse, False

    # -- the end ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Finish an unfinished switch, apply all changes, and compare."""
        self._quiet, self._random = True, _FaultlessRandom(self._random)
        for _ in range(3):
            if self._is_unfinished:
                self._command(self._follower_of_unfinished, crashes=False)
        owners = [d for d in self.databases.values() if self._accepts(d)]
        if [d.name for d in owners] != [OLD if self._follower == NEW else NEW]:
            raise Violation("the database that the records name accepts writes")
        self._loop = None
        for _ in range(400):
            self._restart()
            self._capture()
            self._capture()
            self._capture()
            self._apply()
        if any(d.rows != self.truth for d in self.databases.values()):
            raise Violation("every write is in both databases")
        if any(d.log for d in self.databases.values() if d not in owners):
            raise Violation("the follower logs nothing")

    @property
    def _is_unfinished(self) -> bool:
        """Return whether a record shows an unfinished switch."""
        records = [d.record for d in self.databases.values() if d.record is not None]
        return any(r.state in (SideState.CLOSED, SideState.STOPPED) for r in records)


class _FaultlessRandom(random.Random):
    """Random source for the end of a history, without faults."""

    def __init__(self, before: random.Random) -> None:
        super().__init__(before.random())

    def choice(self, seq: Any) -> Any:
        return "" if "before" in seq else super().choice(seq)


def first_violation(rules: Mechanisms, seeds: Seq[int]) -> str:
    """Return the first invariant that the histories or the switch's own assertions find broken; empty if none."""
    for seed in seeds:
        try:
            World(seed, rules).run()
        except AssertionError as broken:
            return f"{seed}: {broken!r}"
    return ""
