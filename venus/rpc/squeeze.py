"""Large bodies on their way over one connection: what it has carried shortly before is not carried again.

A row travels as a whole, with a large object that has not changed. So bodies that only a large row can fill become
blocks of one zstd stream with a long window: an object that went over the same connection within the last
`WINDOW_BYTES` costs a kilobyte. Small bodies go as they are, which is quicker. Digests are of the bodies themselves.
"""

from __future__ import annotations

import zstandard

from venus.errors import DigestMismatch
from venus.wire import broker_pb2

#: Twice what a batch of small rows is limited to.
LARGE_BYTES = 2 << 20
_WINDOW_LOG = 25
WINDOW_BYTES = 1 << _WINDOW_LOG
#: Quick, and with a search for matches that lie far back.
_LEVEL = 1


class Squeezer:
    """The sending end of one connection; for one thread at a time."""

    def __init__(self) -> None:
        self._generation = 0
        self._stream: zstandard.ZstdCompressionObj | None = None
        self._number = 0

    def halves(self, frame: broker_pb2.ProducerFrame, generation: int) -> broker_pb2.ProducerFrame:
        """Squeeze what is large in a frame. Another generation = the other end has forgotten what it had."""
        for half in frame.halves:
            self._squeeze(half, generation)
        return frame

    def increments(self, frame: broker_pb2.DeliveryFrame) -> broker_pb2.DeliveryFrame:
        """Squeeze what is large in a frame."""
        for increment in frame.increments:
            self._squeeze(increment, 0)
        return frame

    def _squeeze(self, message: broker_pb2.Half | broker_pb2.Increment, generation: int) -> None:
        if message.ByteSize() < LARGE_BYTES:  # which copies nothing
            return
        if self._stream is None or generation != self._generation:
            self._stream = zstandard.ZstdCompressor(compression_params=_parameters()).compressobj()
            self._generation, self._number = generation, 0
        block = self._stream.compress(message.body) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        message.squeezed.block, message.squeezed.number = block, self._number
        message.ClearField("body")
        self._number += 1


class Unsqueezer:
    """The receiving end of one connection."""

    def __init__(self) -> None:
        self._stream: zstandard.ZstdDecompressionObj | None = None
        self._number = 0

    def body(self, message: broker_pb2.Half | broker_pb2.Increment) -> bytes:
        """Return a message's body. Raises DigestMismatch for a block that does not follow the one before."""
        if not message.HasField("squeezed"):
            return message.body
        block, number = message.squeezed.block, message.squeezed.number
        if number == 0:
            self._stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
            self._number = 0
        if self._stream is None or number != self._number:
            raise DigestMismatch(f"block {number} of a connection came instead of block {self._number}")
        try:
            body = self._stream.decompress(block)
        except zstandard.ZstdError as error:
            self._stream = None
            raise DigestMismatch(f"block {number} of a connection arrived damaged: {error}") from error
        self._number += 1
        return body


def is_large(frame: broker_pb2.DeliveryFrame) -> bool:
    """Whether squeezing may take a moment."""
    return frame.ByteSize() >= LARGE_BYTES


def _parameters() -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(_LEVEL, window_log=_WINDOW_LOG, enable_ldm=True)
