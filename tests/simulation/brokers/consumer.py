"""An under adapter, which is killed and continues: a target's rows and offset change in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

from tests.simulation.brokers.source import Rows, Source, apply
from tests.simulation.brokers.streams import Stream
from tests.simulation.judge import Violation
from venus.errors import NotLeader, OffsetDiverged, OffsetTrimmed, VenusError
from venus.model import FULL
from venus.wire import broker_pb2, change_pb2

if TYPE_CHECKING:
    from tests.simulation.brokers.world import BrokerWorld

TICK_S = 0.2


class Consumer:
    """A consumer group with its target, or a transient reader, which any replica serves."""

    def __init__(self, world: BrokerWorld, source: Source, group: str, *, transient: bool) -> None:
        self._world, self._source, self._group, self._transient = world, source, group, transient
        self._loop, self._random = world.loop, world.loop.random
        # state of the target
        self.rows: Rows = {}
        self.offset: int = FULL
        self.epoch = self.sequence = 0
        # state of the process
        self._stream: Stream | None = None
        self._open: list[tuple[broker_pb2.Increment, change_pb2.BatchBody]] = []  # increments of an incomplete cut
        self._hint = ""
        self._heard_at = 0.0
        self._later_at = self._random.random() * 3.0
        self._tick()

    def stop(self, seconds: float) -> None:
        """End the process; another one continues at the target's offset."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._open.clear()
        self._later_at = self._loop.now + seconds

    def _tick(self) -> None:
        """Connect if there is no stream; restart if the broker has been silent for too long."""
        self._loop.after(TICK_S * (0.5 + self._random.random()), self._tick)
        now = self._loop.now
        if self._stream is None and now >= self._later_at:
            self._connect()
        elif self._stream is not None and now - self._heard_at > 8.0:
            self.stop(0.0)

    def _connect(self) -> None:
        hosts = self._world.hosts
        host = hosts[self._hint] if self._hint in hosts else self._random.choice(list(hosts.values()))
        self._hint = ""
        if not host.up:
            return
        stream = self._stream = Stream(host, self._on_message, lambda error: self._on_end(stream, error))
        self._heard_at = self._loop.now
        stream.up(host.clients.open, stream, self._group, self.offset, self.epoch, self._transient)

    def _on_end(self, stream: Stream, error: VenusError) -> None:
        """Handle the end of a stream: follow a redirect, or start over if the offset is gone."""
        if stream is not self._stream:
            return
        self.stop(0.5 * self._random.random())
        match error:
            case NotLeader():
                self._hint = error.leader
            case OffsetTrimmed():
                self._loop.counts["consumer started over: its offset was trimmed"] += 1
                self.offset, self.epoch = FULL, 0
            case OffsetDiverged() if not self._transient:
                raise Violation("applied changes are never reverted", str(error))
            case _:
                self._loop.counts[f"consumer lost its broker: {type(error).__name__}"] += 1

    def _on_message(self, word: str, *what: Any) -> None:
        if self._stream is None:
            return
        self._heard_at = self._loop.now
        if word == "opened":
            self._on_open(*what)
        elif word == "increments":
            self._increments(what[0])

    def _on_open(self, _: Any, snapshot: broker_pb2.Snapshot | None, rows: Rows | None) -> None:
        """Handle the confirmation of a stream; take the full data if the broker sent it."""
        if snapshot is None or rows is None:
            return
        self._loop.counts["full data read"] += 1
        self._agrees(snapshot.sequence, rows, "a snapshot is the fold of what the source committed")
        if snapshot.sequence < self.sequence:
            raise Violation("applied changes are never reverted", f"{self._group} at {self.sequence}")
        self.rows, self.offset, self.epoch, self.sequence = rows, snapshot.offset, snapshot.epoch, snapshot.sequence

    def _agrees(self, sequence: int, rows: Rows, invariant: str) -> None:
        """Raise Violation unless rows equal the source's at this Sequence."""
        expected = self._source.history.get(sequence, (0, {}))[1] if sequence else {}
        if sequence and sequence not in self._source.history:
            raise Violation("a rolled back batch is never delivered", f"{self._group} has Sequence {sequence}")
        if rows != expected:
            raise Violation(invariant, f"{self._group} at Sequence {sequence}: {rows}, not {expected}")

    def _increments(self, increments: list[broker_pb2.Increment]) -> None:
        """Take increments in order, check them, and apply each complete cut."""
        for increment in increments:
            if xxhash.xxh3_64_intdigest(increment.body) != increment.digest:
                raise Violation("damage is never served", f"{self._group} at {increment.base_offset}")
            body = change_pb2.BatchBody.FromString(increment.body)
            at = self._open[-1][0].base_offset + self._open[-1][0].count if self._open else self.offset
            if increment.base_offset != at:
                raise Violation("offsets are dense", f"{self._group}: {increment.base_offset} follows {at}")
            last = body.first_sequence + body.count - 1
            known = self._source.history.get(last)
            if known is None or known[0] != increment.digest:
                raise Violation("a rolled back batch is never delivered", f"{self._group} gets batch {body.batch_no}")
            if body.first_sequence <= self.sequence:
                raise Violation("nothing is delivered twice", f"{self._group} gets Sequence {body.first_sequence}")
            self._open.append((increment, body))
            if body.cut_end:
                self._commit()
        if self._stream is not None and self._random.random() < 0.9:
            stream = self._stream
            stream.up(stream.host.clients.acknowledge, stream, self.offset)
        elif self._random.random() < 0.5:
            self._loop.counts["a consumer died before it acknowledged"] += 1
            self.stop(self._random.random())

    def _commit(self) -> None:
        """Apply a whole cut together with its offset."""
        for increment, body in self._open:
            apply(self.rows, body)
            self.offset, self.epoch = increment.base_offset + increment.count, increment.epoch
            self.sequence = body.first_sequence + body.count - 1
        self._open.clear()
        self._loop.counts["cut applied"] += 1
        self._agrees(self.sequence, self.rows, "the target is the source at a Sequence")
