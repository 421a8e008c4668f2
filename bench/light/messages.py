"""gRPC messages on one stream, which begin and end anywhere in the pieces that arrive. Pure.

If another subscriber of the process has read an equal message, each piece is compared with it as it arrives, by
`memcmp`, and the message is never assembled. Any other message is assembled, and `FrameCache` checks its seal and reads
it.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.arrivals import FrameCache, FrameContent
from bench.light.framing import PREFIX
from venus.rpc.channel import MESSAGE_BYTES_MAX


class _Content:
    """A message of which only a part has arrived."""

    def __init__(self, frames: FrameCache, nbytes: int) -> None:
        self._frames, self._nbytes = frames, nbytes
        self._have = 0
        #: A known frame that begins with the bytes received so far; None = no such frame, so the pieces are kept.
        self._like: FrameContent | None = None
        self._pieces: list[bytes] = []

    @property
    def missing(self) -> int:
        """The number of bytes that have not arrived."""
        return self._nbytes - self._have

    def add(self, piece: memoryview) -> None:
        """Compare the next bytes with a known frame, or keep a copy of them."""
        if not self._pieces and (self._like is None or not self._like.content.startswith(piece, self._have)):
            self._find_known_frame(piece)
        if self._like is None:
            self._pieces.append(bytes(piece))
        self._have += len(piece)

    def _find_known_frame(self, piece: memoryview) -> None:
        """Find a known frame that begins with all bytes so far; if there is none, keep copies from now on."""
        before = self._like.content[: self._have] if self._like is not None else b""
        for known in self._frames.newest:
            content = known.content
            if len(content) == self._nbytes and content.startswith(before) and content.startswith(piece, self._have):
                self._like = known
                return
        self._like, self._pieces = None, [before]

    def read(self) -> FrameContent:
        """Return the content of the message. Raises the errors of `FrameCache.read`."""
        return self._like if self._like is not None else self._frames.read(b"".join(self._pieces))


class FrameReader:
    """Reader of the messages of one stream."""

    def __init__(self, frames: FrameCache) -> None:
        self._frames = frames
        self._prefix = bytearray()
        self._content: _Content | None = None

    def feed(self, piece: memoryview) -> Iterator[FrameContent]:
        """Process the next bytes; yield each complete message. Raises ConnectionError, or as `FrameCache.read` does."""
        while len(piece):
            if self._content is None:
                wanted = PREFIX.size - len(self._prefix)
                self._prefix += piece[:wanted]
                piece = piece[wanted:]
                if len(self._prefix) < PREFIX.size:
                    return
                self._content = self._begin_message()
            part = piece[: self._content.missing]
            if len(part):
                self._content.add(part)
                piece = piece[len(part) :]
            if not self._content.missing:
                found, self._content = self._content.read(), None
                yield found

    def _begin_message(self) -> _Content:
        """Begin a message by its prefix. Raises ConnectionError if the message is compressed or too large."""
        is_compressed, nbytes = PREFIX.unpack(self._prefix)
        self._prefix.clear()
        if is_compressed or nbytes > MESSAGE_BYTES_MAX:
            raise ConnectionError(f"a message of {nbytes} bytes is compressed or too large")
        return _Content(self._frames, nbytes)
