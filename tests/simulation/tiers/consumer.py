"""A target below access sets: it is killed from time to time, and continues at another set at the same offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

from tests.simulation.brokers.source import Rows
from tests.simulation.brokers.streams import Stream
from tests.simulation.judge import Violation
from tests.simulation.tiers.row_judge import check_same_rows
from tests.simulation.tiers.rows import EVERY, Admits, table_of, visible_rows
from tests.simulation.tiers.source import apply
from venus.errors import OffsetDiverged, OffsetTrimmed, OtherRows, VenusError
from venus.model import FULL
from venus.network.directory import Preference
from venus.wire import broker_pb2, change_pb2

if TYPE_CHECKING:
    from tests.simulation.tiers.host import TierHost
    from tests.simulation.tiers.judge import Timeline
    from tests.simulation.tiers.world import TierWorld

TICK_S = 0.2
BACK_AFTER_S = 2.0


class Consumer:
    """A consumer group with its target, which applies one batch per transaction. The product's code chooses its set."""

    def __init__(
        self, world: TierWorld, group: str, sets: tuple[str, ...], tables: frozenset[int], *, is_older: bool = False
    ) -> None:
        self._world, self.group, self.tables = world, group, tables
        self._is_older = is_older  # whether it is an older version, which reports no rows identity and keeps its set
        self._loop, self._random = world.loop, world.loop.random
        self._sets = Preference(sets, back_after_s=BACK_AFTER_S)
        # state of the target
        self.rows: Rows = {}
        self.offset: int = FULL
        self.epoch = self.sequence = 0
        self.said: broker_pb2.RowsIdentity | None = None  # rows that the upstream set should have
        self.admits: Admits = EVERY
        self._apart: set[str] = set()  # sets that have other rows
        self._may_be: list[Timeline] = []
        # state of the process
        self._stream: Stream | None = None
        self._heard_at = 0.0
        self._later_at = self._random.random() * 3.0
        self._tick()

    def stop(self, seconds: float) -> None:
        """End the process; another one continues at the target's offset."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._later_at = self._loop.now + seconds

    def on_fork(self, timeline: Timeline) -> None:
        """Record a forked history; a consumer that has read only the shared part may continue in it."""
        if self._find_rows(timeline) == self.rows:
            self._may_be.append(timeline)

    def _find_rows(self, timeline: Timeline) -> Rows | None:
        """Return the rows that this target should have in a history; None if no batch ends at its position."""
        found = timeline.source.rows_at(self.sequence, self.tables)
        return None if found is None else visible_rows(found, self.admits)

    def _tick(self) -> None:
        self._loop.after(TICK_S * (0.5 + self._random.random()), self._tick)
        now = self._loop.now
        for name in self._sets.take_due(now):
            self._sets.record_check(name, now, healthy=self._world.hosts[name].up)
        if self._sets.move_back(now):
            self._loop.counts["a consumer went back to a nearer set"] += 1
            self.stop(0.0)
        if self._stream is None and now >= self._later_at:
            self._connect()
        elif self._stream is not None and now - self._heard_at > 3.0:
            self._sets.record_failure(self._sets.in_use)
            self.stop(0.0)

    def _connect(self) -> None:
        host = self._world.hosts[self._sets.in_use]
        self._heard_at = self._loop.now
        if not host.up:
            self._sets.record_failure(host.name)
            return
        stream = self._stream = Stream(host, self._on_message, lambda error: self._on_end(stream, host, error))  # type: ignore[arg-type]
        wanted = broker_pb2.Open(group=self.group, rows=self.said if self._says_rows else None)
        stream.up(host.clients.open, stream, self.group, self.offset, self.epoch, False, wanted)

    @property
    def _says_rows(self) -> bool:
        """Whether it reports the identity of its rows when it connects."""
        return self.offset != FULL and not self._is_older

    def _on_end(self, stream: Stream, host: TierHost, error: VenusError) -> None:
        """Handle the end of a stream: start over, or continue at another set."""
        if stream is not self._stream:
            return
        self.stop(0.5 * self._random.random())
        match error:
            case OffsetTrimmed() | OffsetDiverged():
                self._loop.counts[f"a consumer started over: {type(error).__name__}"] += 1
                if isinstance(error, OffsetDiverged) and len(self._world.timelines) == 1:
                    raise Violation("applied changes are never reverted", str(error))
                self.offset, self.epoch = FULL, 0
            case OtherRows():
                self._other_rows(host)
            case _:
                self._loop.counts["a consumer lost its set"] += 1
                self._sets.record_failure(host.name)

    def _other_rows(self, host: TierHost) -> None:
        """Continue at another set; if every set has other rows, an operator loads the target again."""
        self._loop.counts["a consumer found other rows"] += 1
        self._apart.add(host.name)
        self._sets.record_failure(host.name)
        if self._apart >= set(self._sets.choices):
            self._loop.counts["a consumer was loaded again: no set has its rows"] += 1
            self._apart.clear()
            self.offset, self.epoch = FULL, 0

    def _on_message(self, word: str, *what: Any) -> None:
        if self._stream is None:
            return
        self._heard_at = self._loop.now
        if word == "opened":
            self._on_open(*what)
        else:
            self._increments(what[0], what[1])

    def _on_open(
        self, opened: broker_pb2.Opened, snapshot: broker_pb2.Snapshot | None, rows: Rows | None, admits: Admits
    ) -> None:
        """Handle the confirmation of a stream: check the rows of the set, and take its full data if sent."""
        if snapshot is None and self.offset:
            check_same_rows(self.group, self.admits, admits, self.tables)
        self._apart.clear()
        self.said, self.admits = opened.rows if opened.HasField("rows") else None, admits
        if snapshot is None or rows is None:
            return
        self._loop.counts["full data read"] += 1
        self._may_be = list(self._world.timelines)
        rows = {key: row for key, row in rows.items() if table_of(key) in self.tables}
        self.rows, self.offset, self.epoch, self.sequence = rows, snapshot.offset, snapshot.epoch, snapshot.sequence
        self._agrees("the full data of a set is the fold of one history")

    def _agrees(self, invariant: str) -> None:
        """Raise Violation unless the rows equal those of one history that was possible before."""
        may_be = [line for line in self._may_be if self._find_rows(line) == self.rows]
        if not may_be:
            raise Violation(invariant, f"{self.group} at Sequence {self.sequence}: {self.rows}")
        self._may_be = may_be

    def _increments(self, increments: list[broker_pb2.Increment], position: int) -> None:
        """Take increments in order, check them and apply them."""
        for increment in increments:
            if xxhash.xxh3_64_intdigest(increment.body) != increment.digest:
                raise Violation("damage is never served", f"{self.group} at {increment.base_offset}")
            body = change_pb2.BatchBody.FromString(increment.body)
            if increment.base_offset != self.offset:
                raise Violation("offsets are dense", f"{self.group}: {increment.base_offset} follows {self.offset}")
            self.offset, self.epoch = increment.base_offset + increment.count, increment.epoch
            if increment.HasField("rows"):
                self.said = increment.rows
            if body.left_out:
                continue
            if body.first_sequence <= self.sequence:
                raise Violation("no change comes twice", f"{self.group} gets Sequence {body.first_sequence}")
            apply(self.rows, body)
            self.rows = {key: row for key, row in self.rows.items() if table_of(key) in self.tables}
            self.sequence = body.first_sequence + body.count - 1
            self._loop.counts["batch applied"] += 1
            self._loop.say(f"{self.group} applies {increment.base_offset} of epoch {increment.epoch}")
            self._agrees("a target has one history, each change once and in order")
        self.offset = max(self.offset, position)
        if self._random.random() < 0.05:
            self._loop.counts["a consumer died before it acknowledged"] += 1
            self.stop(self._random.random())
        elif self._stream is not None:
            self._sets.record_success(self._stream.host.name)
            self._stream.up(self._stream.host.clients.acknowledge, self._stream, self.offset)
