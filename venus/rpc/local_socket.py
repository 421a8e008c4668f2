"""Frames of a stream between two processes of one machine: pieces with a length in front, on a Unix socket.

The client's end is local_stream.py, the broker's end venus/broker/service/local_streams.py. Frames, their seals and
their checks are those of gRPC; each stream has a connection of its own. The socket is named after the broker's address
in Linux's abstract namespace: it is in no folder, ends with the broker's process, and can be reached only from where
the broker's loopback interface can. Each end serves only processes of its own user.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from enum import IntEnum
from typing import Any, Final

from venus.errors import ProtocolError, VenusError
from venus.rpc.channel import MESSAGE_BYTES_MAX
from venus.rpc.errors import from_status, to_status

#: First bytes from the broker; the number in them is the version of the pieces' format.
GREETING: Final = b"venus stream 1\n"
#: The kind of a piece, and the length of its content.
HEAD = struct.Struct(">BI")
RECEIVE_BYTES = 256 << 10
#: Bodies are not compressed here, so a frame has room for the largest body and the rest of the frame.
_FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + (1 << 20)
_CONNECT_TIMEOUT_S = 2.0
_PEER = struct.Struct("3i")  # process, user, group
#: The id that Linux reports for every user that this process's user namespace does not know.
_UNKNOWN_USER = 65_534


class PieceKind(IntEnum):
    """Kind of a piece of a local stream."""

    #: The first piece from the client; it names the method of the stream.
    OPEN = 0
    FRAME = 1
    #: The sender has no more frames; if the broker sends this, the stream is over.
    END = 2
    #: The broker ends the stream with an error.
    ERROR = 3
    PING = 4
    PONG = 5


_CONTENT_BYTES_MAX = {
    PieceKind.OPEN: 100,
    PieceKind.FRAME: _FRAME_BYTES_MAX,
    PieceKind.END: 0,
    PieceKind.ERROR: 64 << 10,
    PieceKind.PING: 0,
    PieceKind.PONG: 0,
}


def build_piece(kind: PieceKind, content: bytes = b"") -> bytes:
    """Return a piece's bytes."""
    return HEAD.pack(kind, len(content)) + content


class PieceReader:
    """Splits the bytes of a connection into pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[PieceKind, bytes]]:
        """Yield the pieces that are complete. Raises ProtocolError for one that is unknown or too large."""
        buffer, end = self._buffer, 0
        buffer += data
        try:
            while len(buffer) - end >= HEAD.size:
                number, size = HEAD.unpack_from(buffer, end)
                kind = _check_head(number, size)
                begin = end + HEAD.size
                if len(buffer) - begin < size:
                    return
                end = begin + size
                with memoryview(buffer) as view:
                    content = bytes(view[begin:end])
                yield kind, content
        finally:
            del buffer[:end]


def _check_head(number: int, size: int) -> PieceKind:
    """Return the kind of a piece. Raises ProtocolError for an unknown kind or a size beyond its limit."""
    try:
        kind = PieceKind(number)
    except ValueError:
        raise ProtocolError(f"a piece of a local stream has the unknown kind {number}") from None
    if size > _CONTENT_BYTES_MAX[kind]:
        raise ProtocolError(f"a piece of a local stream has {size} bytes, {_CONTENT_BYTES_MAX[kind]} at most fit")
    return kind


# -- errors ------------------------------------------------------------------------------------------------------------


def encode_error(error: VenusError) -> bytes:
    """Return the piece that ends a stream with an error."""
    status = to_status(error)
    said = {
        key: value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in status.metadata
    }
    return build_piece(PieceKind.ERROR, json.dumps([status.details, said]).encode())


def decode_error(content: bytes) -> VenusError:
    """Return the error in the content of a piece of `encode_error`."""
    try:
        details, said = json.loads(content)
        found = from_status(str(details), {str(key): str(value) for key, value in said.items()})
    except (ValueError, TypeError, AttributeError, RecursionError):
        found = None
    return found or ProtocolError("the broker ended the stream with an error that cannot be read")


# -- sockets -----------------------------------------------------------------------------------------------------------


def has_local_sockets() -> bool:
    """Return whether this system has sockets without files that identify the process at their other end."""
    return hasattr(socket, "SO_PEERCRED") and hasattr(os, "eventfd")


def peer_of(connected: Any) -> tuple[int, int]:
    """Return the process and the user at the other end of a socket."""
    process, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return process, user


def is_own_user(connected: Any) -> bool:
    """Return whether the other end of a socket runs as the user of this process."""
    return peer_of(connected)[1] == os.geteuid() != _UNKNOWN_USER


def listen_at(address: str) -> socket.socket | None:
    """Return a socket that listens for streams of the broker at this address, None if that is not possible."""
    if not has_local_sockets():
        return None
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(_socket_name(address))
        listening.listen()
    except OSError:  # in use, or the name is too long
        listening.close()
        return None
    return listening


def connect_to(address: str) -> socket.socket | None:
    """Return a connection to the broker at this address, None if it serves no local streams of this user."""
    if not has_local_sockets():
        return None
    with ExitStack() as failing, suppress(OSError):  # also a name that is too long
        connected = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connected.settimeout(_CONNECT_TIMEOUT_S)
        connected.connect(_socket_name(address))
        if is_own_user(connected) and connected.recv(len(GREETING), socket.MSG_WAITALL) == GREETING:
            connected.setblocking(False)
            failing.pop_all()
            return connected
    return None


def _socket_name(address: str) -> bytes:
    """Return the abstract name of the socket for a broker's address."""
    return b"\0venus/" + address.encode()
