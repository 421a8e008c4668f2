"""Flow control in the service's event loop: consults Admission, delays clients, and records who was delayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from venus.broker.core import Core
from venus.broker.machine.envelope import count_of
from venus.broker.pipeline.commit_thread import RESTING_GROUP_BYTES
from venus.broker.pipeline.producer_commands import Shipped
from venus.broker.service.unsaved import Unsaved
from venus.config import Broker
from venus.config import Limits as Wanted
from venus.errors import Overloaded, StoreFull
from venus.flow.admission import SLOT_RETRY_S, Admission, Limits, Verdict
from venus.flow.braking import Brake
from venus.flow.degradation import Degradation, Health, Lane, Rule, Watermark
from venus.flow.precedence import SMALL_BYTES
from venus.flow.turns import Turn

#: Fraction of the buffer that all businesses together may have unsaved. One business alone gets two thirds of it.
UNSAVED_PART = 0.75
STORE_FULL_RETRY_MS = 1000
MEMORY_RETRY_S = 0.05
#: While full data is degraded its chunks are sent one after the other with a pause; increments in small frames.
DEGRADED_PAUSE_S = 0.02
DEGRADED_FRAME_BYTES = SMALL_BYTES
#: How long a measurement of the full data's lag stays valid.
BEHIND_EVERY_S = 0.02
#: Shorter waits are not recorded.
NOTICED_S = 0.001
#: A commit is a half message and its decision, which wait equally long.
SAVES_OF_A_COMMIT = 2
#: Name of the work that pauses while small commits take too long.
LARGE_WORK = "large work"


def admission_of(settings: Broker) -> Admission:
    """Return the limiters of the configuration."""
    wanted: Wanted = settings.limits
    limits = Limits(
        rows_per_s=wanted.rows_per_s,
        bytes_per_s=wanted.bytes_per_s,
        burst_s=wanted.burst_s,
        full_data_bytes_per_s=wanted.full_data_bytes_per_s,
        snapshots=wanted.snapshots,
        loads=wanted.loads,
        streams=wanted.streams,
        slow_request_s=wanted.slow_request_ms / 1000,
        slow_consumer_s=wanted.slow_consumer_s,
        unsaved_bytes_max=int(settings.buffer_bytes_max * UNSAVED_PART),
        behind_bytes_max=settings.buffer_bytes_max,
    )
    return Admission(limits, Degradation(watermarks(settings), settings.degrade.restore_s))


def watermarks(settings: Broker) -> tuple[Watermark, ...]:
    """Return the thresholds that degrade lanes. Free space is low from twice the limit that refuses writes."""
    wanted = settings.degrade

    def mark(
        resource: str, high: float, unit: str, way_out: str, *, deepest: Lane = Lane.HALVES, sustain_s: float = 0.0,
        named: str = "",
    ) -> Watermark:  # fmt: skip
        return Watermark(
            resource=resource, high=high, low=0.8 * high, unit=unit, deepest=deepest, named=named, way_out=way_out,
            sustain_s=sustain_s or wanted.sustain_s,
        )  # fmt: skip

    return (
        mark("CPU", wanted.cpu_percent, " %", "move some of its work to another broker", deepest=Lane.DETAILS,
             sustain_s=wanted.cpu_sustain_s),
        mark("memory", wanted.memory_percent, " %", "free memory on its machine"),
        mark("disk", 50.0 if settings.free_bytes_min else 0.0, " % of the free space",
             f"free some space at {settings.data_dir.resolve()}", named="what must stay free"),
        mark("lag", wanted.lag_ms, " ms", "see what keeps its disk or its processor busy"),
    )  # fmt: skip


def health_of(settings: Broker) -> Health:
    """Return the health rules (Tensor), the most dangerous first."""
    wanted = settings.health
    rules = (
        Rule(fact="crash", limit=1, text="the broker's process ended without a stop"),
        Rule(fact="silence", limit=wanted.silent_s, text="the commit thread has done nothing for {value:.0f} s"),
        Rule(
            fact="heartbeat",
            limit=wanted.heartbeat_missed_s,
            text="the coordinator has heard nothing from the broker for {value:.0f} s",
        ),
        Rule(
            fact="latency",
            limit=wanted.latency_s,
            text="a connected consumer has not acknowledged a change for {value:.0f} s",
        ),
        Rule(fact="memory", limit=wanted.memory_percent, text="{value:.0f} % of the machine's memory is in use"),
        Rule(
            fact="CPU",
            limit=wanted.cpu_percent,
            text="the machine's CPU is at {value:.0f} %",
            sustain_s=wanted.cpu_sustain_s,
        ),
        Rule(fact="disk", limit=wanted.disk_percent, text="{value:.0f} % of the disk is in use"),
        Rule(fact="clients", limit=wanted.clients_max, text="{value:.0f} producers and consumers are connected"),
    )
    return Health(rules, wanted.keep_s)


class Traffic:
    """Limits that streams and calls observe. Used in the event loop."""

    def __init__(self, core: Core, settings: Broker, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.admission = admission_of(settings)
        self.health = health_of(settings)
        self.monotonic = monotonic
        self._core = core
        self._unsaved_max = settings.buffer_bytes_max
        self.unsaved = Unsaved(self.admission.unsaved, self.admission.turns)
        self._behind: Mapping[str, int] = {}
        self._behind_sum, self._behind_at = 0, float("-inf")
        self._left = asyncio.Event()  # a load has ended
        self._narrow = asyncio.Lock()
        self._rested_s = 0.0

    def has_degraded(self, lane: Lane) -> bool:
        """Return whether a lane is degraded."""
        return self.admission.degradation.has(lane)

    def told(self, brake: Brake, business: str, who: str, wait_s: float) -> None:
        """Record that a client is asked to wait from now on."""
        self.admission.record.told(brake, business, who, wait_s, self.monotonic())

    def waited(self, brake: Brake, business: str, who: str, wait_s: float) -> None:
        """Record that a client has waited until now."""
        self.admission.record.waited(brake, business, who, wait_s, self.monotonic())

    def look(self) -> float:
        """Record how long large work paused for small commits since the last call; return the seconds."""
        before, self._rested_s = self._rested_s, sum(self._core.precedence.rested_s.copy().values())
        if self._rested_s > before:
            self.waited(Brake.SMALL, "", LARGE_WORK, self._rested_s - before)
        return self._rested_s - before

    # -- half messages -------------------------------------------------------------------------------------------

    def ingest(self, business: str, producer: str, halves: Sequence[Shipped]) -> Verdict:
        """Decide whether half messages are taken. The caller then counts them with `unsaved.receive`."""
        admission = self.admission
        nbytes = sum(len(half.body) for half in halves)
        unsaved = admission.unsaved
        if unsaved.nbytes and unsaved.nbytes + nbytes > self._unsaved_max:
            self.told(Brake.MEMORY, business, producer, MEMORY_RETRY_S)
            return Verdict(pause_s=MEMORY_RETRY_S, refused=True)
        rows = sum(count_of(half.body) for half in halves) if admission.counts_rows else 0
        now = self.monotonic()
        verdict = admission.ingest(
            business, producer, rows=rows, nbytes=nbytes, behind_bytes=self._behind_bytes(business, now), now=now
        )
        self._core.precedence.arrived(business, nbytes, now)
        return verdict

    def _behind_bytes(self, business: str, now: float) -> int:
        """Return how far the full data is behind; 0 if that of this business hardly is. The sum is cached."""
        if now - self._behind_at >= BEHIND_EVERY_S:
            self._behind, self._behind_at = self._core.materialiser.behind(), now
            self._behind_sum = sum(self._behind.values())
        return self._behind_sum if self._behind.get(business, 0) > SMALL_BYTES else 0

    def pieces(self, halves: Sequence[Shipped]) -> Iterator[Sequence[Shipped]]:
        """Cut half messages into pieces that may be written to disk at once.

        Pieces are smaller while small commits are active, because those wait for a whole piece.
        """
        size = self.admission.turns.size
        bound = self._core.precedence.turn_bytes(size, RESTING_GROUP_BYTES, self.monotonic())
        first = nbytes = 0
        for n, half in enumerate(halves):
            if n > first and nbytes + len(half.body) > bound:
                yield halves[first:n]
                first, nbytes = n, 0
            nbytes += len(half.body)
        yield halves[first:]

    async def turn(self, business: str, producer: str, nbytes: int) -> Turn:
        """Wait until a piece may be written to disk. Businesses take turns; small pieces do not wait for large ones."""
        began = self.monotonic()
        turn = await self.unsaved.turn(nbytes)
        if (waited_s := self.monotonic() - began) > NOTICED_S:
            self.waited(Brake.TURN, business, producer, waited_s)
        return turn

    def saved(self, business: str, turn: Turn, asked_at: float, since: float) -> None:
        """Record that a piece was saved or refused; it asked for its slot at `asked_at` and got it at `since`."""
        now = self.monotonic()
        self.unsaved.done(business, turn, now - since, self._core.commits.waited_s)
        self._core.precedence.answered(business, SAVES_OF_A_COMMIT * (now - asked_at), now, asked_at=asked_at)

    async def room(self, business: str, producer: str, *, small: bool) -> None:
        """Wait until more may be received for a business. Other businesses continue."""
        if self.unsaved.has_room(business, small=small):
            return
        began = self.monotonic()
        await self.unsaved.room(business, small=small)
        self.waited(Brake.MEMORY, business, producer, self.monotonic() - began)

    def refused(self, error: Overloaded | StoreFull, business: str, producer: str) -> int:
        """Return after how many milliseconds the producer sends refused half messages again."""
        if isinstance(error, StoreFull):
            wait_ms, brake = STORE_FULL_RETRY_MS, Brake.DISK
        else:
            wait_ms, brake = int((error.retry_after_s or MEMORY_RETRY_S) * 1000), Brake.SLOW
        self.told(brake, business, producer, wait_ms / 1000)
        return wait_ms

    # -- streams and full data -----------------------------------------------------------------------------------

    @contextmanager
    def stream(self, business: str, who: str) -> Iterator[None]:
        """Count a stream. Raises Overloaded while there are too many."""
        slots = self.admission.streams
        if not slots.enter():
            self.told(Brake.STREAMS, business, who, SLOT_RETRY_S)
            raise Overloaded(
                f"{slots.limit} producers and consumers are connected already",
                hint="[broker.limits] streams allows more",
                retry_after_s=SLOT_RETRY_S,
            )
        try:
            yield
        finally:
            slots.leave()

    @asynccontextmanager
    async def load(self, business: str) -> AsyncIterator[None]:
        """Wait for a slot to read a key range of full data, and hold it."""
        slots = self.admission.loads
        began = self.monotonic()
        while not slots.enter():
            self._left.clear()
            await self._left.wait()
        if (waited_s := self.monotonic() - began) > NOTICED_S:
            self.waited(Brake.LOADS, business, "", waited_s)
        try:
            yield
        finally:
            slots.leave()
            self._left.set()

    def check_snapshot(self, business: str, holder: str) -> None:
        """Raise Overloaded while no new snapshot may be opened."""
        if wait_s := self.admission.snapshot_wait_s(business, holder, self.monotonic()):
            raise Overloaded("full data is degraded: no new snapshot is made now", retry_after_s=wait_s)

    async def full_data(self, business: str, nbytes: int, took_s: float = 0.0) -> None:
        """Wait until a chunk of full data may be sent. Reading it took `took_s`."""
        now = self.monotonic()
        if nbytes > SMALL_BYTES and (rest_s := self._core.precedence.rest_s("loads", took_s, now)):
            await asyncio.sleep(rest_s)
        if delay_s := self.admission.full_data_delay_s(business, nbytes, self.monotonic()):
            await asyncio.sleep(delay_s)
        if self.has_degraded(Lane.FULL_DATA):
            async with self._narrow:
                await asyncio.sleep(DEGRADED_PAUSE_S)
