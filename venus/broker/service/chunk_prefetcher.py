"""Reading of the chunks of a split in a lane, one chunk ahead of the stream that sends them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from venus.broker.core import Core
from venus.codec.stored_rows import SealedChunk
from venus.flow.degradation import Lane
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2


class ChunkPrefetcher:
    """Reader of the chunks of a split, in a lane, one chunk ahead of the caller."""

    def __init__(self, core: Core, bridge: LoopBridge, request: broker_pb2.ReadSplitRequest) -> None:
        self._core, self._bridge, self._request = core, bridge, request
        self._iterator: Iterator[SealedChunk] | None = None
        self._ahead: asyncio.Task[SealedChunk | None] | None = None
        #: How long reading the newest chunk took.
        self.took_s = 0.0

    async def next(self) -> SealedChunk | None:
        """Return the next chunk, None at the end."""
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._bridge.run_blocking(Lane.FULL_DATA, self._read))
        chunk = await self._ahead
        self._ahead = (
            asyncio.create_task(self._bridge.run_blocking(Lane.FULL_DATA, self._read)) if chunk is not None else None
        )
        return chunk

    def _read(self) -> SealedChunk | None:
        """Read the next chunk, in a thread of the lane; None at the end."""
        if self._iterator is None:
            self._iterator = iter(self._core.full_data.read_split(self._request))
        began = time.monotonic()
        chunk = next(self._iterator, None)
        self.took_s = time.monotonic() - began
        return chunk

    def close(self) -> None:
        """Release the iterator of chunks once no thread uses it."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.add_done_callback(lambda task: task.cancelled() or task.exception())
