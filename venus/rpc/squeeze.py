"""Large bodies on their way over one connection: what it has carried shortly before is not carried again.

A row travels as a whole, with a large object that has not changed. So bodies that only a large row can fill become
blocks of one zstd stream with a long window: an object that went over the same connection within the last
`WINDOW_BYTES` costs a kilobyte. Small bodies go as they are, which is quicker. Digests are of the bodies themselves.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import IO, Any, cast

import zstandard

from venus.errors import DigestMismatch, ProtocolError
from venus.rpc.channel import MESSAGE_BYTES_MAX
from venus.wire import broker_pb2

#: Twice what a batch of small rows is limited to.
LARGE_BYTES = 2 << 20
#: What is not squeezed must fit into one message, so what is squeezed is not larger either.
BODY_BYTES_MAX = MESSAGE_BYTES_MAX
_WRITE_BYTES = 1 << 20
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
        message.squeezed.size = len(message.body)
        message.ClearField("body")
        self._number += 1


class Unsqueezer:
    """The receiving end of one connection."""

    def __init__(self) -> None:
        self._stream: zstandard.ZstdDecompressionWriter | None = None
        self._room = _Room()
        self._number = 0

    def body(self, message: broker_pb2.Half | broker_pb2.Increment) -> bytes:
        """Return a message's body, which never takes more memory than `BODY_BYTES_MAX`.

        Raises DigestMismatch for a block that does not follow the one before, or is larger than it says, ProtocolError
        for one that says that it is too large.
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
            # The writer stops where its input ends, also with up to one zstd block (128 KiB) still to come out; a byte
            # that is written apart finds an empty buffer of _WRITE_BYTES, which takes that and its own block.
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
    """A block does not hold what it says."""


class _Room(io.RawIOBase):
    """Where a decompressor writes: as much as was stated, a piece at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._size = self._left = 0

    def begin(self, size: int) -> None:
        """Make room."""
        self._pieces, self._size, self._left = [], size, size

    def write(self, piece: Any) -> int:
        """Take a piece. Raises _NoRoomError beyond what was stated."""
        self._left -= len(piece)
        if self._left < 0:
            raise _NoRoomError(f"it holds more than the {self._size} bytes that it says")
        self._pieces.append(bytes(piece))
        return len(piece)

    def end(self) -> bytes:
        """Return what was written, and forget it. Raises _NoRoomError for less than was stated."""
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
    """Whether squeezing may take a moment."""
    return frame.ByteSize() >= LARGE_BYTES


def _parameters() -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(_LEVEL, window_log=_WINDOW_LOG, enable_ldm=True)


OVERHEAD_BYTES = 64


def cost(message: broker_pb2.Increment | broker_pb2.SnapshotChunk) -> int:
    """Return what a message takes from the credit."""
    return len(message.body) + OVERHEAD_BYTES


class Credit:
    """The broker's account of one consumer."""

    def __init__(self, granted: int) -> None:
        self.balance = self._whole = granted

    def grant(self, nbytes: int) -> None:
        """Take credit that the consumer gives, back or for the first time."""
        self.balance += nbytes
        self._whole = max(self._whole, self.balance)

    def allows(self, nbytes: int) -> bool:
        """Whether a message of this cost may go now."""
        return self.balance > 0 and (nbytes <= self.balance or self.balance == self._whole)

    def spend(self, nbytes: int) -> None:
        """Note that a message went."""
        self.balance -= nbytes
