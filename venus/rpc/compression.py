"""Compression of large bodies on one connection: data that it has carried shortly before is not sent again.

A row travels whole, with large objects that have not changed. So large bodies become blocks of one zstd stream with a
long window: an object that was sent over the same connection within the last `WINDOW_BYTES` costs a kilobyte. Small
bodies stay uncompressed, which is faster. Digests are of the uncompressed bodies.

Credit says how many bytes a consumer lets the broker send; both ends count alike. The broker exceeds it only for a
message larger than the whole credit, sent alone when nothing else is outstanding; otherwise that message would wait for
ever.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import IO, Any, cast

import zstandard

from venus.errors import DigestMismatch, ProtocolError
from venus.rpc.channel import MESSAGE_BYTES_MAX
from venus.wire import broker_pb2

#: Bodies of at least this size are compressed: twice the limit of a batch of small rows.
LARGE_BYTES = 2 << 20
#: An uncompressed body must fit into one message, so compressed bodies have the same limit.
BODY_BYTES_MAX = MESSAGE_BYTES_MAX
_WRITE_BYTES = 1 << 20
_WINDOW_LOG = 25
WINDOW_BYTES = 1 << _WINDOW_LOG
#: A quick level that still searches for matches that lie far back.
_LEVEL = 1


class BodyCompressor:
    """The sending end of one connection; for one thread at a time."""

    def __init__(self) -> None:
        self._generation = 0
        self._stream: zstandard.ZstdCompressionObj | None = None
        self._number = 0

    def halves(self, frame: broker_pb2.ProducerFrame, generation: int) -> broker_pb2.ProducerFrame:
        """Compress the large bodies of a frame. A new generation means that the receiver has lost its window."""
        for half in frame.halves:
            self._compress(half, generation)
        return frame

    def increments(self, frame: broker_pb2.DeliveryFrame) -> broker_pb2.DeliveryFrame:
        """Compress the large bodies of a frame."""
        for increment in frame.increments:
            self._compress(increment, 0)
        return frame

    def _compress(self, message: broker_pb2.Half | broker_pb2.Increment, generation: int) -> None:
        """Replace the body of a large message by a block of the compressed stream."""
        if message.ByteSize() < LARGE_BYTES:  # the size is computed without a copy
            return
        if self._stream is None or generation != self._generation:
            self._stream = zstandard.ZstdCompressor(compression_params=_parameters()).compressobj()
            self._generation, self._number = generation, 0
        block = self._stream.compress(message.body) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        message.squeezed.block, message.squeezed.number = block, self._number
        message.squeezed.size = len(message.body)
        message.ClearField("body")
        self._number += 1


class BodyDecompressor:
    """The receiving end of one connection."""

    def __init__(self) -> None:
        self._stream: zstandard.ZstdDecompressionWriter | None = None
        self._room = _Room()
        self._number = 0

    def body(self, message: broker_pb2.Half | broker_pb2.Increment) -> bytes:
        """Return a message's body, which never takes more memory than `BODY_BYTES_MAX`.

        Raises DigestMismatch for a block that is out of order or larger than stated, ProtocolError for a stated size
        above the limit.
        """
        if not message.HasField("squeezed"):
            return message.body
        block, number = message.squeezed.block, message.squeezed.number
        if number == 0:
            decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
            self._stream = decompressor.stream_writer(
                cast("IO[bytes]", self._room), write_size=_WRITE_BYTES, closefd=False
            )
            self._number = 0
        if self._stream is None or number != self._number:
            raise DigestMismatch(f"block {number} of a connection came instead of block {self._number}")
        if not 0 < message.squeezed.size <= BODY_BYTES_MAX:
            self._stream = None
            raise ProtocolError(
                f"block {number} of a connection says {message.squeezed.size} bytes: 1 to {BODY_BYTES_MAX} are possible"
            )
        self._room.begin(message.squeezed.size)
        try:
            # The writer stops at the end of its input, even with up to one zstd block (128 KiB) of output pending. The
            # last byte is written separately: it finds an empty buffer of _WRITE_BYTES, which takes that block and its
            # own.
            self._stream.write(memoryview(block)[:-1])
            self._stream.write(memoryview(block)[-1:])
            body = self._room.end()
        except (zstandard.ZstdError, _NoRoomError) as error:
            self._stream = None
            self._room = _Room()
            raise DigestMismatch(f"block {number} of a connection arrived damaged: {error}") from error
        self._number += 1
        return body


class _NoRoomError(Exception):
    """A decompressed block is larger or smaller than its message states."""


class _Room(io.RawIOBase):
    """Output buffer of a decompressor, limited to the stated size."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._size = self._left = 0

    def begin(self, size: int) -> None:
        """Start a body of `size` bytes."""
        self._pieces, self._size, self._left = [], size, size

    def write(self, piece: Any) -> int:
        """Append a piece. Raises _NoRoomError beyond the stated size."""
        self._left -= len(piece)
        if self._left < 0:
            raise _NoRoomError(f"it holds more than the {self._size} bytes that it says")
        self._pieces.append(bytes(piece))
        return len(piece)

    def end(self) -> bytes:
        """Return the body and clear the buffer. Raises _NoRoomError if it is shorter than stated."""
        pieces, self._pieces = self._pieces, []
        if self._left:
            raise _NoRoomError(f"it holds {self._size - self._left} bytes of the {self._size} that it says")
        return b"".join(pieces)


def check_frame(messages: Iterable[broker_pb2.Half | broker_pb2.Increment]) -> None:
    """Refuse a frame whose bodies would take more memory than one message may. Raises ProtocolError."""
    total = sum(message.squeezed.size for message in messages if message.HasField("squeezed"))
    if total > BODY_BYTES_MAX:
        raise ProtocolError(f"a frame has squeezed bodies of {total} bytes: {BODY_BYTES_MAX} are possible")


def is_large(frame: broker_pb2.DeliveryFrame) -> bool:
    """Return whether compressing a frame may take a noticeable time."""
    return frame.ByteSize() >= LARGE_BYTES


def _parameters() -> zstandard.ZstdCompressionParameters:
    """Return the parameters of the zstd streams."""
    return zstandard.ZstdCompressionParameters.from_level(_LEVEL, window_log=_WINDOW_LOG, enable_ldm=True)


OVERHEAD_BYTES = 64


def cost(message: broker_pb2.Increment | broker_pb2.SnapshotChunk) -> int:
    """Return the cost of a message in credit."""
    return len(message.body) + OVERHEAD_BYTES


class Credit:
    """The number of bytes that the broker may still send to one consumer."""

    def __init__(self, granted: int) -> None:
        self.balance = self._whole = granted

    def grant(self, nbytes: int) -> None:
        """Add credit that the consumer grants or returns."""
        self.balance += nbytes
        self._whole = max(self._whole, self.balance)

    def allows(self, nbytes: int) -> bool:
        """Return whether the remaining credit allows a message of `nbytes` bytes now."""
        return self.balance > 0 and (nbytes <= self.balance or self.balance == self._whole)

    def spend(self, nbytes: int) -> None:
        """Subtract the bytes of a sent message from the balance."""
        self.balance -= nbytes
