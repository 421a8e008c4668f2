"""One connection to a broker with many streams, each a call of `Delivery.Subscribe`; nothing here blocks.

Whatever ends a stream or the connection is a failure: a subscriber stays until the benchmark is done.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from bench.arrivals import FrameCache, FrameContent
from bench.light import framing
from bench.light.framing import ACK, END_STREAM, WORD, FrameKind, Setting, Splitter
from bench.light.messages import FrameReader

#: Bytes that a broker may send ahead on one stream, and on one connection; the window is renewed after half of it.
STREAM_BYTES = 16 << 20
CONNECTION_BYTES = framing.WINDOW_BYTES_MAX
CONNECT_TIMEOUT_S = 10.0
_WORDS = re.compile(rb"[ -~]{4,}")


@dataclass(slots=True)
class Stream:
    """One subscriber's call."""

    id: int
    number: int
    group: str
    messages: FrameReader
    #: Number of bytes that this end may still send.
    room: int
    #: Received bytes that have not been returned to the stream's window.
    came: int = 0
    #: Credit that has not been returned, and when some was returned last.
    taken: int = 0
    said_at: float = field(default_factory=time.monotonic)


class Connection:
    """Connection to one broker with many streams; calls `take` with each message that arrives on a stream."""

    def __init__(self, address: str, take: Callable[[Connection, Stream, FrameContent], None]) -> None:
        self._address, self._take = address, take
        self.streams: dict[int, Stream] = {}
        self._splitter = Splitter(self._on_data, self._on_other_frame)
        self._room = self._stream_room = framing.WINDOW_BYTES
        self._came = 0
        wanted = {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: STREAM_BYTES,
            Setting.MAX_FRAME_SIZE: framing.FRAME_BYTES_MAX,
        }
        opening = framing.window_update(0, CONNECTION_BYTES - framing.WINDOW_BYTES)
        self._out = bytearray(framing.PREFACE + framing.settings(wanted) + opening)
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    # -- to the broker -------------------------------------------------------------------------------------------

    def open(self, number: int, group: str, frames: FrameCache) -> Stream:
        """Begin a call of `Delivery.Subscribe` on a new stream, for subscriber `number`."""
        stream = Stream(2 * len(self.streams) + 1, number, group, FrameReader(frames), self._stream_room)
        self.streams[stream.id] = stream
        self._out += framing.request(stream.id, self._address)
        return stream

    def send(self, stream: Stream, content: bytes) -> bool:
        """Queue a message if the flow-control windows have room; return whether they have."""
        payload = framing.message(content)
        if len(payload) > min(self._room, stream.room):
            return False
        self._room -= len(payload)
        stream.room -= len(payload)
        self._out += framing.frame(FrameKind.DATA, stream.id, payload)
        return True

    def flush(self) -> bool:
        """Write queued bytes to the socket; return whether all of them were written."""
        with suppress(BlockingIOError):
            while self._out:
                del self._out[: self.socket.send(self._out)]
        return not self._out

    # -- from the broker -----------------------------------------------------------------------------------------

    def receive(self, buffer: memoryview) -> None:
        """Read from the socket once and handle the frames. Raises ConnectionError if a stream or connection ended."""
        try:
            nbytes = self.socket.recv_into(buffer)
        except BlockingIOError:
            return
        if not nbytes:
            raise ConnectionError(f"{self._address} has closed a connection of {len(self.streams)} streams")
        self._splitter.feed(buffer[:nbytes])

    def _on_data(self, stream_id: int, piece: memoryview) -> None:
        """Pass the content of a DATA frame to its stream; enlarge the flow-control windows from time to time."""
        stream = self._find_stream(stream_id)
        for message in stream.messages.feed(piece):
            self._take(self, stream, message)
        stream.came += len(piece)
        if stream.came >= STREAM_BYTES // 2:
            self._out += framing.window_update(stream_id, stream.came)
            stream.came = 0
        self._came += len(piece)
        if self._came >= CONNECTION_BYTES // 2:
            self._out += framing.window_update(0, self._came)
            self._came = 0

    def _on_other_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame that is not DATA, or that ends a stream."""
        if flags & END_STREAM and kind in {FrameKind.HEADERS, FrameKind.DATA}:
            raise ConnectionError(
                f"the stream of {self._find_stream(stream_id).group} has ended: {_readable_text(payload)}"
            )
        if (rule := _RULES.get(kind)) is not None:  # frames of other kinds are ignored
            rule(self, flags, stream_id, payload)

    def _on_settings(self, flags: int, _: int, payload: bytes) -> None:
        if flags & ACK:
            return
        room = framing.settings_in(payload).get(Setting.INITIAL_WINDOW_SIZE, self._stream_room)
        for stream in self.streams.values():
            stream.room += room - self._stream_room
        self._stream_room = room
        self._out += framing.frame(FrameKind.SETTINGS, flags=ACK)

    def _on_ping(self, flags: int, _: int, payload: bytes) -> None:
        if not flags & ACK:
            self._out += framing.frame(FrameKind.PING, payload=payload, flags=ACK)

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        (nbytes,) = WORD.unpack(payload)
        if stream_id:
            self._find_stream(stream_id).room += nbytes
        else:
            self._room += nbytes

    def _on_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        (code,) = WORD.unpack(payload)
        raise ConnectionError(f"the stream of {self._find_stream(stream_id).group} was reset with code {code}")

    def _on_go_away(self, _flags: int, _stream: int, payload: bytes) -> None:
        raise ConnectionError(
            f"{self._address} has ended a connection of {len(self.streams)}: {_readable_text(payload)}"
        )

    def _find_stream(self, stream_id: int) -> Stream:
        """Return the stream with this id. Raises ConnectionError if there is none."""
        try:
            return self.streams[stream_id]
        except KeyError:
            raise ConnectionError(f"{self._address} speaks of a stream {stream_id} that was never opened") from None


_RULES: dict[int, Callable[[Connection, int, int, bytes], None]] = {
    FrameKind.SETTINGS: Connection._on_settings,
    FrameKind.PING: Connection._on_ping,
    FrameKind.WINDOW_UPDATE: Connection._on_window_update,
    FrameKind.RST_STREAM: Connection._on_reset,
    FrameKind.GOAWAY: Connection._on_go_away,
}


def _readable_text(payload: bytes) -> str:
    """Return the readable characters of trailers or of GOAWAY, whose encoding is not decoded."""
    return unquote_to_bytes(b" ".join(_WORDS.findall(payload))).decode(errors="replace")[:500]
