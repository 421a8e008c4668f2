"""Producers and consumers in other processes of the broker's machine use a Unix socket in place of gRPC.

Behaviour that all transports share is tested in test_ingest.py, test_delivery.py and similar files, over each of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.service.conftest import (
    StartBroker,
    each_transport,
    is_probing,
    local_address,
    open_producer,
    producer,
)
from tests.support.brokers.certificates import Authority
from tests.support.brokers.consumers import subscriber
from tests.support.brokers.servers import business_status, commit, settings, take
from tests.support.engines.batches import half
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.service import local_streams
from venus.broker.service.local_streams import FRAME_OVERHEAD_BYTES, QUEUED_BYTES_MAX, UNSENT_BYTES_MAX
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.broker.service.server import GrpcServer, Keepalive
from venus.config import Settings
from venus.errors import DigestMismatch, Held, Unavailable
from venus.rpc import connection, local_socket, local_stream
from venus.rpc.address import broker_address
from venus.rpc.admin import AdminClient
from venus.rpc.channel import FRAME_BYTES, open_channel
from venus.rpc.compression import LARGE_BYTES, BodyCompressor
from venus.rpc.local_socket import HEAD, PieceKind, PieceReader, build_piece, connect_to, decode_error
from venus.rpc.producer import Producer
from venus.rpc.sealed import PRODUCE, SUBSCRIBE, seal
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

LOCAL = pytest.mark.parametrize("transport", ["local socket"], indirect=True)


@pytest.fixture
def forbid_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        if is_probing():
            return open_channel(*args, **options)
        raise AssertionError("a local stream has opened a connection over gRPC")

    monkeypatch.setattr(connection, "open_channel", refuse)


@contextmanager
def start_with_keepalive(folder: Path, timeout_s: float) -> Iterator[RunningBroker]:
    """Start a broker that pings often, and waits for this long for the answer."""
    running = start_in_thread(settings(folder / "data"), keepalive=Keepalive(every_s=0.3, timeout_s=timeout_s))
    running.address = local_address(running)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def broker_with_short_keepalive(tmp_path: Path) -> Iterator[RunningBroker]:
    """Start a broker that cuts a client soon."""
    with start_with_keepalive(tmp_path, 0.3) as running:
        yield running


@pytest.fixture
def patient_keepalive(tmp_path: Path) -> Iterator[RunningBroker]:
    """Start a broker that gives a client the time that a busy machine takes."""
    with start_with_keepalive(tmp_path, 5.0) as running:
        yield running


def raw_connection(broker: RunningBroker) -> socket.socket:
    found = connect_to(broker.address)
    assert found is not None
    found.settimeout(30)
    return found


def pieces(connected: socket.socket) -> list[tuple[PieceKind, bytes]]:
    """Return the pieces that a broker sends until it closes the connection."""
    reader, found = PieceReader(), list[tuple[PieceKind, bytes]]()
    while data := connected.recv(1 << 16):
        found += reader.feed(data)
    return found


@LOCAL
@pytest.mark.usefixtures("forbid_grpc")
def test_rows_are_carried_without_grpc_and_without_compression(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a body on this machine was compressed")

    monkeypatch.setattr(BodyCompressor, "_compress", refuse)
    large = half(2, payload="x" * (LARGE_BYTES + 1))
    with producer(broker) as sender, subscriber(broker, credit_bytes=16 << 20) as reader:
        sender.connect(0, 0)
        reader.open(0, 0)
        commit(sender, [half(1)])
        commit(sender, [large])
        assert [increment.body for increment in take(reader, 2)] == [half(1).body, large.body]
        assert sender.address == reader.address == broker.address


INIT = broker_pb2.ProducerFrame(init=broker_pb2.Init(business="main", producer="raw"))
OPEN = build_piece(PieceKind.OPEN, PRODUCE.encode())


@LOCAL
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (HEAD.pack(77, 0), "unknown kind 77"),
        (HEAD.pack(PieceKind.FRAME, 2**32 - 1), "4294967295 bytes"),
        (HEAD.pack(PieceKind.PING, 1), "1 bytes"),
        (build_piece(PieceKind.FRAME, b"early"), "before its local stream was opened"),
        (build_piece(PieceKind.OPEN, b"/venus.wire.Admin/Forget"), "cannot be opened"),
        (OPEN + build_piece(PieceKind.OPEN, SUBSCRIBE.encode()), "cannot be opened"),
        (OPEN + build_piece(PieceKind.ERROR, b"[]"), "sent an error"),
        (OPEN + build_piece(PieceKind.FRAME, INIT.SerializeToString()), "has no seal"),
        (OPEN + build_piece(PieceKind.FRAME, b"\x00" * 20), "has no seal"),
    ],
)
def test_an_invalid_piece_ends_only_its_senders_connection(broker: RunningBroker, sent: bytes, said: str) -> None:
    with open_producer(broker) as sender, raw_connection(broker) as bad:
        bad.sendall(sent)
        *_, (kind, content) = pieces(bad)
        assert kind is PieceKind.ERROR
        assert said in str(decode_error(content))
        commit(sender, [half(1)])


@LOCAL
def test_pieces_arrive_however_the_bytes_are_divided(broker: RunningBroker) -> None:
    with raw_connection(broker) as slow:
        for byte in OPEN + build_piece(PieceKind.FRAME, seal(INIT)) + build_piece(PieceKind.END):
            slow.sendall(bytes([byte]))
        found = pieces(slow)
    assert [kind for kind, _ in found] == [PieceKind.FRAME, PieceKind.END]


@LOCAL
@pytest.mark.parametrize("end", [local_socket, local_streams], ids=["client", "broker"])
def test_a_process_of_another_user_is_not_served(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    monkeypatch.setattr(end, "is_own_user", lambda _: False)
    assert connect_to(broker.address) is None
    with producer(broker) as sender:  # it uses gRPC
        sender.connect(0, 0)
        commit(sender, [half(1)])


@LOCAL
def test_a_killed_client_is_detached_at_once(broker: RunningBroker) -> None:
    with open_producer(broker) as before:
        commit(before, [half(1)])
    with raw_connection(broker) as killed:
        killed.sendall(OPEN + build_piece(PieceKind.FRAME, seal(INIT)))
        eventually(lambda: business_status(broker.address).producer == "raw")
    eventually(lambda: not business_status(broker.address).producer)


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[local_streams.LocalContext]:
    """Collect the broker's contexts of all connections."""
    found: list[local_streams.LocalContext] = []

    class RecordedContext(local_streams.LocalContext):
        def __init__(self, server: local_streams.LocalServer) -> None:
            super().__init__(server)
            found.append(self)

    monkeypatch.setattr(local_streams, "LocalContext", RecordedContext)
    return found


#: More empty frames than may wait for a handler.
MANY = build_piece(PieceKind.FRAME) * (QUEUED_BYTES_MAX // FRAME_OVERHEAD_BYTES + 1)


def test_the_number_of_frames_waiting_for_a_handler_is_limited(
    patient_keepalive: RunningBroker, contexts: list[local_streams.LocalContext]
) -> None:
    """While the broker does not read, it sends keepalives, and the client's silence has no meaning."""
    with open_producer(patient_keepalive), raw_connection(patient_keepalive) as second:  # waits for the first
        second.sendall(OPEN + build_piece(PieceKind.FRAME, seal(INIT)) + MANY)
        eventually(lambda: not contexts[-1]._transport.is_reading())
        *alive, (last, error) = pieces(second)
    assert {kind for kind, _ in alive} == {PieceKind.PONG}
    assert last is PieceKind.ERROR
    assert isinstance(decode_error(error), Held)


@LOCAL
def test_a_consumer_that_reads_nothing_fills_no_memory_of_the_broker(
    broker: RunningBroker, contexts: list[local_streams.LocalContext]
) -> None:
    wanted = broker_pb2.Open(business="main", group="frozen", credit_bytes=1 << 30)
    with open_producer(broker) as sender, raw_connection(broker) as frozen:
        for number in range(1, 5):
            commit(sender, [half(number, payload="x" * FRAME_BYTES)])
        frozen.sendall(build_piece(PieceKind.OPEN, SUBSCRIBE.encode()))
        frozen.sendall(build_piece(PieceKind.FRAME, seal(broker_pb2.ConsumerFrame(open=wanted))))
        stream = eventually(
            lambda: next((one for one in contexts if one._handler and not one._writable.is_set()), None)
        )
        commit(sender, [half(5)])
        commit(sender, [half(6)])
        assert stream._transport.get_write_buffer_size() < UNSENT_BYTES_MAX + 2 * FRAME_BYTES


def test_a_broker_with_another_version_of_the_piece_format_is_used_over_grpc(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_streams, "GREETING", b"venus stream 2\n")
    assert connect_to(broker.address) is None


def test_a_user_that_linux_cannot_name_is_not_taken_as_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux shows the processes of all users in other namespaces under one user id."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert local_socket.is_own_user(ours)
        monkeypatch.setattr(local_socket, "peer_of", lambda _: (1, 65_534))
        monkeypatch.setattr(os, "geteuid", lambda: 65_534)
        assert not local_socket.is_own_user(ours)


@LOCAL
def test_a_frame_of_the_broker_with_a_wrong_checksum_ends_the_stream(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_streams, "serialise_frame", lambda _: b"\x00" * 20)
    with producer(broker) as sender, pytest.raises(DigestMismatch):
        sender.connect(0, 0)


def test_a_client_that_does_not_answer_loses_its_stream(broker_with_short_keepalive: RunningBroker) -> None:
    with raw_connection(broker_with_short_keepalive) as frozen:
        frozen.sendall(OPEN + build_piece(PieceKind.FRAME, seal(INIT)))
        kinds = [kind for kind, _ in pieces(frozen)]
        assert kinds[0] is PieceKind.FRAME
        assert set(kinds[1:]) == {PieceKind.PING}
    with producer(broker_with_short_keepalive) as another:
        another.connect(0, 0)


@pytest.mark.parametrize(
    ("now", "pinged_at", "next_s"),
    [(0.0, None, 2.5), (17.5, None, 2.5), (19.0, None, 1.0), (20.0, 20.0, 2.5), (24.0, 20.0, 1.0), (26.0, 20.0, 0.01)],
)
def test_a_silent_client_is_disconnected_on_time(now: float, pinged_at: float | None, next_s: float) -> None:
    """A producer that wants to replace it waits no longer than for a silent gRPC connection."""
    server = local_streams.LocalServer({}, silence_s=20.0, timeout_s=5.0)
    context = local_streams.LocalContext(server)
    context._heard_at, context._pinged_at = 0.0, pinged_at
    assert context.seconds_to_next_check(now) == pytest.approx(next_s)


def test_a_client_is_asked_before_it_is_cut_however_long_the_broker_did_not_run() -> None:
    done: list[str] = []

    class Transport(asyncio.Transport):
        def is_closing(self) -> bool:
            return "abort" in done

        def abort(self) -> None:
            done.append("abort")

        def write(self, data: Any) -> None:
            done.extend(kind.name for kind, _ in PieceReader().feed(bytes(data)))

    async def run() -> None:
        context = local_streams.LocalContext(local_streams.LocalServer({}, silence_s=20.0, timeout_s=5.0))
        context._transport, context._peer, context._task = (
            Transport(),
            "a client",
            asyncio.ensure_future(asyncio.sleep(0)),
        )
        context._began_at = context._heard_at = time.monotonic() - 1000.0
        context._check()
        assert done == ["PING"]
        context._pinged_at = time.monotonic() - 5.0
        context._check()
        assert done == ["PING", "abort"]

    asyncio.run(run())


def test_idle_streams_stay_open(patient_keepalive: RunningBroker) -> None:
    with producer(patient_keepalive, keepalive_s=0.3) as sender:
        sender.connect(0, 0)
        stream: Any = sender._stream
        first = stream._heard_at
        eventually(lambda: stream._heard_at > first + 1)
        commit(sender, [half(1)])


def test_a_client_notices_that_the_broker_does_not_answer(
    patient_keepalive: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer(patient_keepalive, keepalive_s=0.3) as sender:
        sender.connect(0, 0)
        monkeypatch.setattr(local_stream, "KEEPALIVE_TIMEOUT_S", 0.3)
        monkeypatch.setattr(local_streams.LocalContext, "_send_sign", lambda *_: None)
        eventually(lambda: sender._error)
        with pytest.raises(Unavailable, match="does not answer"):
            sender.wait_until_persisted(1, 30)


def test_a_broker_without_local_streams_is_used_over_grpc(start_broker: StartBroker) -> None:
    broker = start_broker(local_streams=False)
    assert connect_to(broker.address) is None
    broker.address = local_address(broker)
    with producer(broker) as sender:
        sender.connect(0, 0)
        commit(sender, [half(1)])


def test_a_broker_with_tls_serves_no_local_streams(tmp_path: Path) -> None:
    """Its clients have roles, which a local connection would not check."""
    secure = start_in_thread(Authority(tmp_path / "certs").settings(tmp_path / "data"))
    try:
        assert connect_to(secure.address) is None
    finally:
        secure.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "broker.example"])
def test_a_broker_behind_another_address_serves_no_local_streams(start_broker: StartBroker, host: str) -> None:
    """A proxy in between has a purpose, and a name may mean another machine."""
    port = free_port()
    address = f"{host}:{port}"
    start_broker(address=address, listen=f"127.0.0.1:{port if host != '127.0.0.1' else 0}")
    assert connect_to(address) is None


@LOCAL
def test_a_stream_changes_to_grpc_if_the_broker_stops_serving_local_ones(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer(broker) as sender:
        monkeypatch.setattr(local_stream, "connect_to", lambda _: None)
        sender.connect(0, 0)
        commit(sender, [half(1)])


@LOCAL
def test_a_client_that_connected_during_the_brokers_start_does_not_stay_with_grpc(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [None]  # as before the broker listened on its socket
    monkeypatch.setattr(local_stream, "connect_to", lambda address: found.pop() if found else connect_to(address))
    with producer(broker) as sender:
        sender.connect(0, 0)
        assert isinstance(sender._stream, local_stream.LocalStream)


def test_a_broker_that_reports_to_serve_has_local_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, listens = GrpcServer.start, list[bool]()

    async def record(server: GrpcServer) -> None:
        listens.append(server.local._server is not None)
        await start(server)

    monkeypatch.setattr(GrpcServer, "start", record)
    start_in_thread(settings(tmp_path / "data")).stop()
    assert listens == [True]


@each_transport
def test_the_status_counts_local_streams(broker: RunningBroker, transport: str) -> None:
    with open_producer(broker), AdminClient(broker.address) as admin:
        gauges = {gauge.name: gauge.value for gauge in admin.status().traffic.gauges}
    assert gauges["local streams"] == (1 if transport == "local socket" else 0)


@LOCAL
def test_the_end_of_the_broker_ends_its_streams(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        sender.connect(0, 0)
        broker.stop()
        with pytest.raises(Unavailable, match="stopping"):
            sender.wait_until_persisted(1, 30)
    assert connect_to(broker.address) is None


@pytest.mark.parametrize(
    ("sections", "may_be_local"),
    [
        ({}, True),
        ({"broker": {"listen": "localhost:7400"}}, True),
        ({"broker": {"listen": "[::1]:7400"}}, True),
        ({"broker": {"address": "broker.example:7400"}}, False),
        ({"broker": {"address": "10.0.0.1:7400"}}, False),
        ({"broker": {"local_streams": False}}, False),
        ({"broker": {"addresses": ("a:1", "b:1")}}, False),
        ({"broker": {"further": (("a:1",),)}}, False),
        ({"cluster": {"name": "c", "broker_id": "b", "etcd": "127.0.0.1:1"}}, False),
        ({"security": {"ca": "ca.pem"}}, False),
    ],
)
def test_only_one_broker_without_tls_may_be_local(sections: dict[str, Any], may_be_local: bool) -> None:
    assert broker_address(Settings(**sections)).may_be_local is may_be_local


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"7", b'["a", 1]', b'["a", {}]', b"[" * 60_000, struct.pack("4d", 1, 2, 3, 4)]
)
def test_an_error_that_cannot_be_decoded_is_still_an_error(content: bytes) -> None:
    assert "cannot be read" in str(decode_error(content))


def test_the_producer_uses_the_address_of_its_configuration(broker: RunningBroker) -> None:
    host, _, port = broker.address.rpartition(":")
    address = broker_address(Settings(broker={"listen": f"{host}:{port}"}))  # type: ignore[arg-type]
    with Producer(address, "main", "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        assert isinstance(sender._stream, local_stream.LocalStream)
