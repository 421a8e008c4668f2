"""The light client of the benchmarks: frames and messages split anywhere, windows, and visible failures."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bench.arrivals import Arrivals, FrameCache, FrameContent
from bench.fan_out import Messages as Sender
from bench.light import connection as light_connection
from bench.light import framing, watching
from bench.light.connection import Connection, Stream
from bench.light.framing import ACK, END_HEADERS, END_STREAM, PREFACE, WORD, FrameKind, Setting, Splitter
from bench.light.messages import FrameReader
from bench.light.watching import Watch
from bench.venus_transmission import make_half
from tests.support.brokers.servers import settings
from tests.support.waiting import eventually
from venus.broker.service.process import start_in_thread
from venus.errors import DigestMismatch, ProtocolError
from venus.rpc.compression import cost
from venus.rpc.sealed import seal, unseal
from venus.wire import broker_pb2


def content(first: int, rows: int, end: int | None = None) -> bytes:
    """Return a frame of one increment, or of two up to `end`."""
    parts = [(first, rows)] + ([(first + rows, end - first - rows)] if end is not None else [])
    increments = [broker_pb2.Increment(base_offset=f, count=n, body=make_half(1, f + 1, n).body) for f, n in parts]
    return seal(broker_pb2.DeliveryFrame(increments=increments))


def feed_data(messages: FrameReader, data: bytes, at: int) -> list[FrameContent]:
    """Feed data in two pieces from a buffer that is then overwritten, as the connections do."""
    found: list[FrameContent] = []
    buffer = bytearray(len(data))
    for piece in (data[:at], data[at:]):
        buffer[: len(piece)] = piece
        found += messages.feed(memoryview(buffer)[: len(piece)])
        buffer[: len(piece)] = bytes(len(piece))
    return found


# -- frames ----------------------------------------------------------------------------------------------------------


def cut(*pieces: bytes) -> tuple[bytes, list[tuple[Any, ...]]]:
    """Return the content of DATA frames in order, and the other frames."""
    held, others = bytearray(), list[tuple[Any, ...]]()
    splitter = Splitter(lambda _, piece: held.extend(piece), lambda *frame: others.append(frame))
    for piece in pieces:
        splitter.feed(memoryview(piece))
    return bytes(held), others


def test_frames_are_parsed_wherever_they_are_split() -> None:
    data = (
        framing.settings({Setting.INITIAL_WINDOW_SIZE: 77})
        + framing.frame(FrameKind.DATA, 3, b"abc")
        + framing.frame(FrameKind.SETTINGS, flags=ACK)
        + framing.frame(FrameKind.DATA, 5)
        + framing.frame(FrameKind.PING, payload=b"12345678")
        + framing.frame(FrameKind.DATA, 3, b"de", END_STREAM)
    )
    whole = cut(data)

    assert whole == (
        b"abcde",
        [
            (FrameKind.SETTINGS, 0, 0, b"\x00\x04\x00\x00\x00\x4d"),
            (FrameKind.SETTINGS, ACK, 0, b""),
            (FrameKind.PING, 0, 0, b"12345678"),
            (FrameKind.DATA, END_STREAM, 3, b""),
        ],
    )
    assert all(cut(data[:at], data[at:]) == whole for at in range(len(data) + 1))
    assert cut(*(data[at : at + 1] for at in range(len(data)))) == whole


def test_the_length_of_a_long_frame_is_read_and_a_padded_one_is_refused() -> None:
    held, _ = cut(framing.frame(FrameKind.DATA, 1, b"x" * 70_000))

    assert held == b"x" * 70_000
    with pytest.raises(ConnectionError, match="padded"):
        cut(framing.frame(FrameKind.DATA, 1, b"\x01ab\x00", framing.PADDED))


# -- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [False, True])
def test_messages_are_parsed_wherever_they_are_split(is_known: bool) -> None:
    contents = [content(0, 2), content(2, 2), content(4, 1, 7)]
    data = b"".join(map(framing.message, contents))
    for at in range(len(data) + 1):
        frames = FrameCache()
        known = [frames.read(each) for each in contents] if is_known else []
        found = feed_data(FrameReader(frames), data, at)
        assert [(f.begin, f.end, f.content) for f in found] == [
            (begin, end, each) for (begin, end), each in zip([(0, 2), (2, 4), (4, 7)], contents, strict=True)
        ]
        assert not known or all(f is k for f, k in zip(found, known, strict=True)), "it was compared, not read again"


def test_a_message_that_continues_in_another_frame_is_joined() -> None:
    one, other = content(0, 2, 9), content(0, 2, 9)  # captured at different microseconds
    assert one != other
    assert len(one) == len(other)
    for at in range(len(other) + len(framing.message(b""))):
        frames = FrameCache()
        frames.read(one)
        (found,) = feed_data(FrameReader(frames), framing.message(other), at)
        assert found.content == other


@pytest.mark.parametrize("is_known", [False, True])
def test_a_damaged_message_is_refused(is_known: bool) -> None:
    good = content(0, 3)
    for at in range(len(good)):
        frames = FrameCache()
        if is_known:
            frames.read(good)
        damaged = bytearray(good)
        damaged[at] ^= 1
        with pytest.raises(DigestMismatch):
            feed_data(FrameReader(frames), framing.message(bytes(damaged)), 50)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(ProtocolError):
        feed_data(FrameReader(FrameCache()), framing.message(b""), 5)
    with pytest.raises(ConnectionError, match="compressed"):
        feed_data(FrameReader(FrameCache()), framing.PREFIX.pack(1, 3) + b"abc", 0)
    with pytest.raises(ConnectionError, match="too large"):
        feed_data(FrameReader(FrameCache()), framing.PREFIX.pack(0, 1 << 30), 0)


# -- connections -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Broker:
    """The other end of one connection, which keeps the received bytes."""

    socket: socket.socket

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frames(self) -> list[tuple[Any, ...]]:
        """Return the received frames, including DATA, without the start of the connection."""
        heard = self.socket.recv(1 << 20)
        found: list[tuple[Any, ...]] = []
        splitter = Splitter(
            lambda stream, piece: found.append((FrameKind.DATA, 0, stream, bytes(piece))),
            lambda *frame: found.append(frame),
        )
        splitter.feed(memoryview(heard.removeprefix(PREFACE)))
        return found


@dataclass(slots=True)
class Line:
    """A connection with one stream, and its broker."""

    connection: Connection
    stream: Stream
    broker: Broker
    taken: list[FrameContent]

    def receive(self, *frames: bytes) -> None:
        """Let the broker send bytes, and read them."""
        data = b"".join(frames)
        self.broker.say(data)
        eventually(lambda: is_there(self.connection.socket, len(data)))
        self.connection.receive(memoryview(bytearray(1 << 16)))
        assert self.connection.flush()


def is_there(line: socket.socket, nbytes: int) -> bool:
    """Return whether this many bytes can be read."""
    try:
        return len(line.recv(1 << 16, socket.MSG_PEEK)) >= nbytes
    except BlockingIOError:
        return False


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def line(listener: socket.socket) -> Iterator[Line]:
    taken: list[FrameContent] = []
    connection = Connection(address_of(listener), lambda _connection, _stream, frame: taken.append(frame))
    theirs, _ = listener.accept()
    theirs.settimeout(10)
    with connection.socket, theirs:
        stream = connection.open(7, "group-7", FrameCache())
        connection.flush()
        yield Line(connection, stream, Broker(theirs), taken)


def test_a_connection_begins_with_its_windows_and_the_call(line: Line) -> None:
    wanted, window, call = line.broker.receive_frames()

    assert wanted[0] == FrameKind.SETTINGS
    assert framing.settings_in(wanted[3])[Setting.MAX_FRAME_SIZE] == 2**24 - 1
    assert window == (FrameKind.WINDOW_UPDATE, 0, 0, WORD.pack(2**31 - 1 - 65535))
    assert call[:3] == (FrameKind.HEADERS, END_HEADERS, 1)
    assert b"/venus.wire.Delivery/Subscribe" in call[3]


def test_requests_are_answered_and_unknown_frames_ignored(line: Line) -> None:
    line.broker.receive_frames()
    ping = framing.frame(FrameKind.PING, payload=b"12345678")
    ack = framing.frame(FrameKind.PING, payload=b"abcdefgh", flags=ACK)
    unknown = framing.HEAD.pack(0, 3, 99, END_STREAM, 1) + b"abc"
    line.receive(
        framing.settings({Setting.ENABLE_PUSH: 0}), framing.frame(FrameKind.SETTINGS, flags=ACK), unknown, ping, ack
    )

    assert line.broker.receive_frames() == [(FrameKind.SETTINGS, ACK, 0, b""), (FrameKind.PING, ACK, 0, b"12345678")]


def test_windows_are_returned_when_half_is_used(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.broker.receive_frames()
    monkeypatch.setattr(light_connection, "STREAM_BYTES", 1000)
    monkeypatch.setattr(light_connection, "CONNECTION_BYTES", 2000)
    begun = framing.message(bytes(5000))
    line.receive(framing.frame(FrameKind.DATA, 1, begun[:400]), framing.frame(FrameKind.DATA, 1, begun[400:600]))
    line.receive(framing.frame(FrameKind.DATA, 1, begun[600:999]), framing.frame(FrameKind.DATA, 1, begun[999:1300]))

    assert line.broker.receive_frames() == [
        (FrameKind.WINDOW_UPDATE, 0, 1, WORD.pack(600)),
        (FrameKind.WINDOW_UPDATE, 0, 1, WORD.pack(700)),
        (FrameKind.WINDOW_UPDATE, 0, 0, WORD.pack(1300)),
    ]


def test_the_windows_of_the_broker_are_respected(line: Line) -> None:
    send, stream, much = line.connection.send, line.stream, bytes(60_000)

    assert send(stream, much)
    line.receive(framing.window_update(0, 200_000))
    assert not send(stream, much), "the stream's is used"
    line.receive(framing.window_update(1, 60_000))
    assert send(stream, much)
    assert not send(stream, much)
    line.receive(framing.settings({Setting.INITIAL_WINDOW_SIZE: 65535 + 60_000}))
    assert send(stream, much)
    line.receive(framing.window_update(1, 200_000))
    assert send(stream, much)
    assert not send(stream, much), "the connection's is used"
    assert line.connection.open(8, "group-8", FrameCache()).room == 65535 + 60_000


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (framing.frame(FrameKind.RST_STREAM, 1, WORD.pack(8)), "group-7 was reset with code 8"),
        (framing.frame(FrameKind.GOAWAY, payload=bytes(8) + b"too_many_pings"), "too_many_pings"),
        (
            framing.frame(FrameKind.HEADERS, 1, b"\x00\x0cgrpc-message\x0dis%20stopping", END_HEADERS | END_STREAM),
            "group-7 has ended: .*is stopping",
        ),
        (framing.frame(FrameKind.DATA, 1, b"", END_STREAM), "group-7 has ended"),
        (framing.frame(FrameKind.DATA, 3, b"abc"), "never opened"),
    ],
)
def test_every_end_of_a_stream_is_a_failure(line: Line, frame: bytes, why: str) -> None:
    line.receive(framing.frame(FrameKind.HEADERS, 1, b"\x88", END_HEADERS))  # the response has begun
    with pytest.raises(ConnectionError, match=why):
        line.receive(frame)


def test_a_closed_connection_is_a_failure(line: Line) -> None:
    line.broker.receive_frames()
    line.broker.socket.close()
    eventually(lambda: is_there(line.connection.socket, 0))
    with pytest.raises(ConnectionError, match="has closed a connection of 1"):
        line.connection.receive(memoryview(bytearray(100)))


# -- subscribers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say_every_s", "credit_bytes"),
    [pytest.param(0.02, 1 << 20, id="after a while"), pytest.param(60.0, 400, id="when half is taken")],
)
def test_credit_is_returned_and_no_increment_is_counted_twice(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, say_every_s: float, credit_bytes: int
) -> None:
    monkeypatch.setattr(watching, "SAY_EVERY_S", say_every_s)
    watch = Watch([address_of(listener)], 1, "test", 5, credit_bytes, 10)
    watch._open_stream(0)
    theirs, _ = listener.accept()
    theirs.settimeout(10)
    with theirs:
        broker = Broker(theirs)
        *_, opening = broker.receive_frames()
        wanted = parse_frame(opening).open
        assert (wanted.group, wanted.offset, wanted.credit_bytes) == ("test-0", 5, credit_bytes)
        one = framing.frame(FrameKind.DATA, 1, framing.message(content(5, 3)))
        broker.say(one)
        while not watch._seen.frames or watch._connections[0].streams[1].taken:
            watch._serve_once()
        (answer,) = broker.receive_frames()
        price = sum(map(cost, broker_pb2.DeliveryFrame.FromString(one[framing.HEAD.size + 5 : -9]).increments))
        assert (parse_frame(answer).credit_bytes, parse_frame(answer).acknowledge) == (price, 8)
        broker.say(one)
        with pytest.raises(AssertionError, match="twice"):
            watch._serve_once()
    watch.close()


def parse_frame(frame: tuple[Any, ...]) -> broker_pb2.ConsumerFrame:
    """Return the message of a DATA frame."""
    assert frame[0] == FrameKind.DATA
    return unseal(broker_pb2.ConsumerFrame, frame[3][framing.PREFIX.size :], "a frame")


@pytest.mark.integration
def test_light_subscribers_get_every_row_of_a_broker_once_and_in_order(tmp_path: Path) -> None:
    fatal: list[BaseException] = []
    broker = start_in_thread(settings(tmp_path / "data"), on_fatal=fatal.append)
    ours, theirs = Pipe()
    thread = Thread(target=watching.run, args=([broker.address], 20, "light", 0, 64 << 10, 10, theirs))
    sender = Sender(broker.address)
    thread.start()
    try:
        assert ours.recv() is None, "it is up"
        ours.send(None)
        assert ours.recv() is None, "its streams are opened"
        sender.commit_many(100)
        middle = sender.end
        sender.commit_many(100)
        ours.send([middle, sender.end])
        assert ours.poll(60)
        found = ours.recv()
    finally:
        ours.send(None)
        thread.join(60)
        sender.close()
        broker.stop()
    assert isinstance(found, Arrivals)
    assert found.rows == 20 * sender.end
    assert found.first <= found.last[middle] <= found.last[sender.end]
    assert not fatal
