"""HTTP/2 frames: encoding of those that a client of one method writes, and splitting of those that it reads (RFC 9113).

Received bytes are copied only if they are part of a frame's head or of a frame that is not DATA. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum

from venus.rpc.sealed import SUBSCRIBE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = struct.Struct(">BHBBI")
#: Head of a gRPC message: whether it is compressed, and its length.
PREFIX = struct.Struct(">BI")
SETTING = struct.Struct(">HI")
WORD = struct.Struct(">I")

#: Bytes that either end may send before the peer announces another window.
WINDOW_BYTES = 65535
WINDOW_BYTES_MAX = 2**31 - 1
FRAME_BYTES_MAX = 2**24 - 1

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8


class FrameKind(IntEnum):
    """Type of an HTTP/2 frame."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


class Setting(IntEnum):
    """Settings of HTTP/2 that this client sends or understands."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5


def frame(kind: FrameKind, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """Return a frame's bytes."""
    return HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def settings(wanted: dict[Setting, int]) -> bytes:
    """Return the SETTINGS frame that announces these settings."""
    return frame(FrameKind.SETTINGS, payload=b"".join(SETTING.pack(*item) for item in wanted.items()))


def settings_in(payload: bytes) -> dict[int, int]:
    """Return the settings in the payload of a received SETTINGS frame."""
    return dict(SETTING.iter_unpack(payload))


def window_update(stream: int, nbytes: int) -> bytes:
    """Return the frame that allows the broker to send more bytes, on one stream or (0) on the connection."""
    return frame(FrameKind.WINDOW_UPDATE, stream, WORD.pack(nbytes))


def request(stream: int, authority: str) -> bytes:
    """Return the HEADERS frame that calls `Delivery.Subscribe`, encoded without compression."""
    block = (
        b"\x83\x86"  # :method POST, :scheme http
        + (b"\x04" + _text(SUBSCRIBE))  # :path
        + (b"\x01" + _text(authority))  # :authority
        + b"\x00\x02te\x08trailers"
        + (b"\x0f\x10" + _text("application/grpc"))  # content-type
    )
    return frame(FrameKind.HEADERS, stream, block, END_HEADERS)


def _text(value: str) -> bytes:
    """Encode a short text as HPACK does, without Huffman code."""
    content = value.encode()
    assert len(content) < 127, "longer ones would need a longer length"
    return bytes([len(content)]) + content


def message(content: bytes) -> bytes:
    """Return the bytes of an uncompressed gRPC message."""
    return PREFIX.pack(0, len(content)) + content


class Splitter:
    """Splitter of a connection's bytes into HTTP/2 frames, however the bytes arrive.

    `data(stream, piece)` gets the content of a DATA frame, piece by piece as it arrives; a piece is only valid during
    the call. `other(kind, flags, stream, payload)` gets every other frame as a whole, and again, without payload, a
    DATA frame that ends a stream.
    """

    def __init__(self, data: Callable[[int, memoryview], None], other: Callable[[int, int, int, bytes], None]) -> None:
        self._data, self._other = data, other
        self._head, self._payload = bytearray(), bytearray()
        self._kind = self._flags = self._stream = self._left = 0

    def feed(self, view: memoryview) -> None:
        """Process the next bytes; call `data` and `other` for the frames in them."""
        at, end = 0, len(view)
        while at < end:
            if not self._left:
                part = view[at : at + HEAD.size - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == HEAD.size:
                    self._read_head()
                continue
            piece = view[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._kind == FrameKind.DATA:
                self._data(self._stream, piece)
            else:
                self._payload += piece
            if not self._left:
                self._deliver_frame()

    def _read_head(self) -> None:
        """Parse the complete head of a frame."""
        high, low, self._kind, self._flags, stream = HEAD.unpack(self._head)
        self._head.clear()
        self._stream = stream & WINDOW_BYTES_MAX  # without the reserved bit
        self._left = high << 16 | low
        if self._kind == FrameKind.DATA and self._flags & PADDED:
            raise ConnectionError("a DATA frame is padded, which gRPC never does")
        if not self._left:
            self._deliver_frame()

    def _deliver_frame(self) -> None:
        """Pass a complete frame to `other`, unless it is DATA that does not end its stream."""
        if self._kind != FrameKind.DATA or self._flags & END_STREAM:
            self._other(self._kind, self._flags, self._stream, bytes(self._payload))
            self._payload.clear()
