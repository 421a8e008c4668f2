"""The thread of one business that is pulled from the set above, with its connections; `pulling.py` decides."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

from venus.broker.core import Core
from venus.broker.machine import filter_wire
from venus.broker.mirrors import calls
from venus.broker.mirrors.checks import check_filters, check_home
from venus.broker.mirrors.progress import Progress, State
from venus.broker.mirrors.pulling import Pulling
from venus.broker.mirrors.whom import Above, Whom
from venus.codec.chunk import Chunk
from venus.errors import Unavailable, VenusError
from venus.network.row_filters import RowFilter
from venus.rpc.channel import CLUSTER_KEEPALIVE_S, KEEPALIVE_S
from venus.rpc.snapshots import Resume, Snapshots
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

CREDIT_BYTES = 16 << 20


class Puller:
    """Thread-safe."""

    def __init__(
        self,
        core: Core,
        business: str,
        only: tuple[str, ...],
        whom: Whom,
        may_pull: Callable[[str], None],
        where: tuple[RowFilter, ...] = (),
    ) -> None:
        self.business, self.only = business, only
        self._pulling = Pulling(core, business, only, whom, may_pull, time.monotonic, where)
        self._line: Line | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"venus-pull-{business}", daemon=True)

    @property
    def progress(self) -> Progress:
        """What it says of itself."""
        return self._pulling.progress

    def start(self) -> None:
        """Pull from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, at the latest when what it waits for is answered."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._session()
            except VenusError as error:
                self._note(error)
            except Exception as error:
                logger.exception("%s: pulling failed; it is tried again", self.business)
                self._pulling.ended(Unavailable())
                self.progress.enter(State.WAITING, f"pulling failed: {error!r}")
            self._stop.wait(self._pulling.wait_s)

    def _note(self, error: VenusError) -> None:
        if not self._stop.is_set() and self._pulling.ended(error):
            logger.warning("%s: the mirror is %s: %s", self.business, self.progress.told.state.value, error)

    def _session(self) -> None:
        """Do what pulling asks, until it ends."""
        session = self._pulling.session()
        try:
            call = next(session)
            while True:
                call = self._step(session, call)
        finally:
            session.close()
            if self._line is not None:
                self._line.close()
                self._line = None

    def _step(self, session: Generator[calls.Call, Any, None], call: calls.Call) -> calls.Call:
        if self._line is None:
            assert self._pulling.at is not None, "a session begins by asking whom to pull from"
            self._line = Line(self._pulling.at, self.business, self.only, self._stop)
        try:
            answer = self._line.answer(call)
        except Exception as error:
            return session.throw(error)
        return session.send(answer)


class Line:
    """The connections of one session. Everything but letting go raises Unavailable once the broker stops."""

    def __init__(self, above: Above, business: str, only: tuple[str, ...], stopping: threading.Event) -> None:
        self._above, self._business, self._only, self._stopping = above, business, only, stopping
        self._snapshots: Snapshots | None = None
        self._stream: Subscriber | None = None
        self._at: Resume | None = None  # of the split that is read
        self._chunks: Iterator[Chunk] = iter(())

    def answer(self, call: calls.Call) -> Any:
        """Do what is asked, and wait for it."""
        if isinstance(call, calls.CloseSnapshot):
            return self._full_data().close(call.snapshot_id)
        if self._stopping.is_set():
            raise Unavailable("the broker is stopping")
        match call:
            case calls.OpenSnapshot():
                return self._full_data().open(
                    self._business, splits=1, lease_s=call.lease_s, holder=call.holder, only=self._only,
                    where=filter_wire.to_wire(call.where),
                )  # fmt: skip
            case calls.RenewSnapshot():
                return self._full_data().renew(call.snapshot_id)
            case calls.NextChunk():
                return self._next(call)
            case calls.OpenStream():
                return self._open(call)
            case calls.Increments():
                assert self._stream is not None, "a stream is opened first"
                increments = self._stream.increments(call.wait_s)
                return increments, self._stream.position
            case calls.Acknowledge():
                assert self._stream is not None, "a stream is opened first"
                return self._stream.acknowledge(call.offset)
            case calls.Settle():
                return call.future.result()

    def _full_data(self) -> Snapshots:
        if self._snapshots is None:
            self._snapshots = Snapshots(
                self._above.reach, keepalive_s=CLUSTER_KEEPALIVE_S if self._above.is_one_of else KEEPALIVE_S
            )
        return self._snapshots

    def _next(self, call: calls.NextChunk) -> Chunk:
        if call.at is not self._at:
            self._at = call.at
            self._chunks = self._full_data().read_split(call.snapshot_id, call.split, call.at)
        return next(self._chunks)

    def _open(self, call: calls.OpenStream) -> tuple[str, broker_pb2.Opened]:
        above = self._above
        if self._stream is None:
            self._stream = Subscriber(
                above.reach, self._business, above.group, credit_bytes=CREDIT_BYTES, only=self._only,
                set_id=above.set_id, where=filter_wire.to_wire(call.where),
                keepalive_s=CLUSTER_KEEPALIVE_S if above.is_one_of else KEEPALIVE_S,
            )  # fmt: skip
        opened = self._stream.open(call.offset, call.epoch, rows=call.rows)
        check_filters(is_filtered=opened.filters or not call.where, above=above.set)
        check_home(opened.home, call.home_term, above.set)
        return self._stream.address, opened

    def close(self) -> None:
        """Close what is open; what is acknowledged goes out first."""
        for part in (self._stream, self._snapshots):
            if part is not None:
                with suppress(VenusError):
                    part.close()
