"""Flow control in the service's event loop: consults Admission, delays clients, and records who was delayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from venus.broker.core import Core
from venus.broker.machine.envelope import read_change_count
from venus.broker.pipeline.commit_thread import RESTING_GROUP_BYTES
from venus.broker.pipeline.producer_commands import ShippedHalf
from venus.broker.service.unsaved import UnsavedBytes
from venus.broker.status.history import MovingMoments
from venus.config import BrokerSettings
from venus.config import LimitsSettings as Wanted
from venus.errors import Overloaded, StoreFull
from venus.flow.admission import SLOT_RETRY_S, Admission, AdmissionLimits, AdmissionVerdict, Limiter
from venus.flow.degradation import Degradation, HealthMonitor, HealthRule, Lane, Watermark
from venus.flow.precedence import SMALL_BYTES
from venus.flow.write_queue import WriteSlot

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


def build_admission(settings: BrokerSettings) -> Admission:
    """Return the limiters of the configuration."""
    wanted: Wanted = settings.limits
    limits = AdmissionLimits(
        rows_per_s=wanted.rows_per_s,
        bytes_per_s=wanted.bytes_per_s,
        burst_s=wanted.burst_s,
        full_data_bytes_per_s=wanted.full_data_bytes_per_s,
        snapshots=wanted.snapshots,
        loads=wanted.loads,
        streams=wanted.streams,
        slow_request_s=wanted.slow_request_ms / 1000,
        slow_consumer_s=wanted.slow_consumer_s,
        subscriptions=wanted.subscriptions,
        subscriptions_of_client=wanted.subscriptions_of_client,
        listener_s=wanted.listener_s,
        unsaved_bytes_max=int(settings.buffer_bytes_max * UNSAVED_PART),
        behind_bytes_max=settings.buffer_bytes_max,
    )
    return Admission(limits, Degradation(build_watermarks(settings), settings.degrade.restore_s))


def build_watermarks(settings: BrokerSettings) -> tuple[Watermark, ...]:
    """Return the thresholds that degrade lanes. Free space is low below twice the limit that refuses writes."""
    wanted = settings.degrade

    def watermark(resource: str, high: float, unit: str, way_out: str, **more: Any) -> Watermark:
        """Return the thresholds of one resource."""
        usual: dict[str, Any] = {"deepest": Lane.HALVES, "sustain_s": wanted.sustain_s}
        return Watermark(resource=resource, high=high, low=0.8 * high, unit=unit, way_out=way_out, **usual | more)

    cpu_sustain_s = wanted.cpu_sustain_s or wanted.sustain_s
    move = "move some of its work to another broker"
    free = f"free some space at {settings.data_dir.resolve()}"
    return (
        watermark("CPU", wanted.cpu_percent, " %", move, deepest=Lane.DETAILS, sustain_s=cpu_sustain_s),
        watermark("memory", wanted.memory_percent, " %", "free memory on its machine"),
        watermark(
            "disk", 50.0 * bool(settings.free_bytes_min), " % of the free space", free, named="what must stay free"
        ),
        watermark("lag", wanted.lag_ms, " ms", "see what keeps its disk or its processor busy"),
    )


def build_health(settings: BrokerSettings) -> HealthMonitor:
    """Return the health rules (Tensor), the most dangerous first."""
    wanted = settings.health
    rules = (
        HealthRule(fact="crash", limit=1, text="the broker's process ended without a stop"),
        HealthRule(fact="silence", limit=wanted.silent_s, text="the commit thread has done nothing for {value:.0f} s"),
        HealthRule(
            fact="heartbeat",
            limit=wanted.heartbeat_missed_s,
            text="the coordinator has heard nothing from the broker for {value:.0f} s",
        ),
        HealthRule(
            fact="latency",
            limit=wanted.latency_s,
            text="a connected consumer has not acknowledged a change for {value:.0f} s",
        ),
        HealthRule(fact="memory", limit=wanted.memory_percent, text="{value:.0f} % of the machine's memory is in use"),
        HealthRule(
            fact="CPU",
            limit=wanted.cpu_percent,
            text="the machine's CPU is at {value:.0f} %",
            sustain_s=wanted.cpu_sustain_s,
        ),
        HealthRule(fact="disk", limit=wanted.disk_percent, text="{value:.0f} % of the disk is in use"),
        HealthRule(fact="clients", limit=wanted.clients_max, text="{value:.0f} producers and consumers are connected"),
    )
    return HealthMonitor(rules, wanted.keep_s)


class Traffic:
    """Limits that streams and calls observe. Used in the event loop."""

    def __init__(self, core: Core, settings: BrokerSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.admission = build_admission(settings)
        self.health = build_health(settings)
        self.monotonic = monotonic
        #: Load rate of the machine (Minos 3.4.2) over the last minutes, and the newest one.
        self.load, self.load_now = MovingMoments(), 0.0
        self._core = core
        self._unsaved_max = settings.buffer_bytes_max
        self.unsaved = UnsavedBytes(self.admission.unsaved, self.admission.write_queue)
        self._behind: Mapping[str, int] = {}
        self._behind_sum, self._behind_at = 0, float("-inf")
        self._left = asyncio.Event()  # set when a load of full data has ended
        self._narrow = asyncio.Lock()
        #: How many clients of changes were cut because they read nothing.
        self.cut_listeners = 0
        self._rested_s = 0.0

    def has_degraded(self, lane: Lane) -> bool:
        """Return whether a lane is degraded."""
        return self.admission.degradation.is_degraded(lane)

    def record_load(self, rate: float) -> None:
        """Record the load rate of the machine."""
        self.load_now = rate
        self.load.add(rate, self.monotonic())

    def record_delay(self, limiter: Limiter, business: str, who: str, wait_s: float) -> None:
        """Record that a client is asked to wait from now on."""
        self.admission.record.record_delay(limiter, business, who, wait_s, self.monotonic())

    def record_wait(self, limiter: Limiter, business: str, who: str, wait_s: float) -> None:
        """Record that a client has waited until now."""
        self.admission.record.record_wait(limiter, business, who, wait_s, self.monotonic())

    def record_cut_listener(self) -> None:
        """Record that a client of changes is cut because it reads nothing."""
        self.cut_listeners += 1

    def record_pauses(self) -> float:
        """Record how long large work paused for small commits since the last call; return the seconds."""
        before, self._rested_s = self._rested_s, sum(self._core.precedence.rested_s.copy().values())
        if self._rested_s > before:
            self.record_wait(Limiter.SMALL, "", LARGE_WORK, self._rested_s - before)
        return self._rested_s - before

    # -- half messages -------------------------------------------------------------------------------------------

    def admit_halves(self, business: str, producer: str, halves: Sequence[ShippedHalf]) -> AdmissionVerdict:
        """Decide whether half messages are taken. The caller then counts them with `unsaved.count_received`."""
        admission = self.admission
        nbytes = sum(len(half.body) for half in halves)
        unsaved = admission.unsaved
        if unsaved.nbytes and unsaved.nbytes + nbytes > self._unsaved_max:
            self.record_delay(Limiter.MEMORY, business, producer, MEMORY_RETRY_S)
            return AdmissionVerdict(pause_s=MEMORY_RETRY_S, refused=True)
        rows = sum(read_change_count(half.body) for half in halves) if admission.counts_rows else 0
        now = self.monotonic()
        verdict = admission.judge_halves(
            business, producer, rows=rows, nbytes=nbytes, behind_bytes=self._behind_bytes(business, now), now=now
        )
        self._core.precedence.on_arrival(business, nbytes, now)
        return verdict

    def takes_at_once(self, nbytes: int) -> bool:
        """Return whether a small half message needs neither a slot nor a pause now. Works in any thread.

        A half message taken at once is not counted as unsaved: each client in this process has at most one.
        """
        admission = self.admission
        return (
            nbytes <= SMALL_BYTES
            and admission.unsaved.nbytes + nbytes <= self._unsaved_max
            and admission.takes_all(self._core.materialiser.behind_bytes)
        )

    def record_direct(self, business: str, nbytes: int, asked_at: float, done_at: float) -> None:
        """Record that a half message taken at once came at `asked_at`, and was saved or refused at `done_at`."""
        self._core.precedence.on_arrival(business, nbytes, asked_at)
        took_s = SAVES_OF_A_COMMIT * (done_at - asked_at)
        self._core.precedence.on_answer(business, took_s, done_at, asked_at=asked_at)

    def _behind_bytes(self, business: str, now: float) -> int:
        """Return how many bytes the full data lags in total; 0 if this business hardly lags. The sum is cached."""
        if now - self._behind_at >= BEHIND_EVERY_S:
            self._behind, self._behind_at = self._core.materialiser.behind_by_business(), now
            self._behind_sum = sum(self._behind.values())
        return self._behind_sum if self._behind.get(business, 0) > SMALL_BYTES else 0

    def split_halves(self, halves: Sequence[ShippedHalf]) -> Iterator[Sequence[ShippedHalf]]:
        """Split half messages into pieces, each written to disk at once.

        Pieces are smaller while small commits are active, because those wait for a whole piece.
        """
        size = self.admission.write_queue.size
        bound = self._core.precedence.slice_bytes(size, RESTING_GROUP_BYTES, self.monotonic())
        first = nbytes = 0
        for n, half in enumerate(halves):
            if n > first and nbytes + len(half.body) > bound:
                yield halves[first:n]
                first, nbytes = n, 0
            nbytes += len(half.body)
        yield halves[first:]

    async def wait_for_slot(self, business: str, producer: str, nbytes: int) -> WriteSlot:
        """Wait until a piece may be written to disk. Businesses take turns; small pieces do not wait for large ones."""
        began = self.monotonic()
        turn = await self.unsaved.wait_for_slot(nbytes)
        if (waited_s := self.monotonic() - began) > NOTICED_S:
            self.record_wait(Limiter.TURN, business, producer, waited_s)
        return turn

    def record_saved(self, business: str, turn: WriteSlot, asked_at: float, since: float) -> None:
        """Record that a piece was saved or refused; it asked for its slot at `asked_at` and got it at `since`."""
        now = self.monotonic()
        self.unsaved.record_saved(business, turn, now - since, self._core.commits.waited_s)
        self._core.precedence.on_answer(business, SAVES_OF_A_COMMIT * (now - asked_at), now, asked_at=asked_at)

    async def wait_for_room(self, business: str, producer: str, *, small: bool) -> None:
        """Wait until more may be received for a business. Other businesses continue."""
        if self.unsaved.has_room(business, small=small):
            return
        began = self.monotonic()
        await self.unsaved.wait_for_room(business, small=small)
        self.record_wait(Limiter.MEMORY, business, producer, self.monotonic() - began)

    def record_refusal(self, error: Overloaded | StoreFull, business: str, producer: str) -> int:
        """Record a refusal; return after how many milliseconds the producer sends the half messages again."""
        if isinstance(error, StoreFull):
            wait_ms, limiter = STORE_FULL_RETRY_MS, Limiter.DISK
        else:
            wait_ms, limiter = int((error.retry_after_s or MEMORY_RETRY_S) * 1000), Limiter.SLOW
        self.record_delay(limiter, business, producer, wait_ms / 1000)
        return wait_ms

    # -- streams and full data -----------------------------------------------------------------------------------

    @contextmanager
    def count_stream(self, business: str, who: str) -> Iterator[None]:
        """Count a stream while it runs. Raises Overloaded if there are too many."""
        slots = self.admission.streams
        if not slots.acquire():
            self.record_delay(Limiter.STREAMS, business, who, SLOT_RETRY_S)
            raise Overloaded(
                f"{slots.limit} producers and consumers are connected already",
                hint="[broker.limits] streams allows more",
                retry_after_s=SLOT_RETRY_S,
            )
        try:
            yield
        finally:
            slots.release()

    @asynccontextmanager
    async def hold_load_slot(self, business: str) -> AsyncIterator[None]:
        """Wait for a slot to read a key range of full data, and hold it."""
        slots = self.admission.loads
        began = self.monotonic()
        while not slots.acquire():
            self._left.clear()
            await self._left.wait()
        if (waited_s := self.monotonic() - began) > NOTICED_S:
            self.record_wait(Limiter.LOADS, business, "", waited_s)
        try:
            yield
        finally:
            slots.release()
            self._left.set()

    def check_snapshot(self, business: str, holder: str) -> None:
        """Raise Overloaded if no new snapshot may be opened now."""
        if wait_s := self.admission.snapshot_wait_s(business, holder, self.monotonic()):
            raise Overloaded("full data is degraded: no new snapshot is made now", retry_after_s=wait_s)

    async def pace_full_data(self, business: str, nbytes: int, took_s: float = 0.0) -> None:
        """Wait until a chunk of full data may be sent. Reading it took `took_s`."""
        now = self.monotonic()
        if nbytes > SMALL_BYTES and (rest_s := self._core.precedence.rest_s("loads", took_s, now)):
            await asyncio.sleep(rest_s)
        if delay_s := self.admission.full_data_delay_s(business, nbytes, self.monotonic()):
            await asyncio.sleep(delay_s)
        if self.has_degraded(Lane.FULL_DATA):
            async with self._narrow:
                await asyncio.sleep(DEGRADED_PAUSE_S)
