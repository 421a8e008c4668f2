"""The connection to another broker over real gRPC: whatever ends it, the host notices and can reconnect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest

from venus.broker.replicas import connections
from venus.broker.replicas.connections import BrokerConnections, FollowerStream
from venus.broker.replicas.host import Host
from venus.errors import Refused
from venus.replication.messages import Entries, SendFetch
from venus.replication.records import LiveBroker, Member
from venus.rpc.address import NONE
from venus.rpc.errors import abort_on_error
from venus.rpc.sealed import seal
from venus.wire import replica_pb2, replica_pb2_grpc

ME, OTHER = Member(broker="a", store="1"), Member(broker="b", store="2")


class _UnreadyLeader:
    """A leader that does not know yet which brokers are alive."""

    Ballot = Copy = None

    async def Follow(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        async with abort_on_error(context):
            await context.read()
            raise Refused("broker a is not known to the cluster", hint="it registers at etcd when it starts")


class _StoppingLeader:
    """A leader that ends each connection, as a stopping broker does."""

    Ballot = Copy = None

    async def Follow(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        await context.read()


class _EndlessLeader:
    """A leader whose frame never ends."""

    Ballot = Copy = None

    async def Follow(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        sealed = replica_pb2.LeaderFrame.FromString(seal(replica_pb2.LeaderFrame(part=b"x" * connections.PART_BYTES)))
        while True:
            await context.write(sealed)


class _Host:
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def on_connection_lost(self, to: Member) -> None:
        assert to == OTHER
        self.lost.set()


@contextlib.asynccontextmanager
async def _leader(servicer: _UnreadyLeader | _StoppingLeader | _EndlessLeader) -> AsyncIterator[LiveBroker]:
    server = grpc.aio.server()
    replica_pb2_grpc.add_ReplicaServicer_to_server(cast(Any, servicer), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield LiveBroker(member=OTHER, address=f"127.0.0.1:{port}")
    finally:
        await server.stop(0)


def test_a_leader_that_refuses_a_connection_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "RECONNECT_S", 0.01)

    async def fetch_from_refusing() -> None:
        async with _leader(_UnreadyLeader()) as leader:
            line, host = BrokerConnections("cluster", ME, NONE), _Host()
            line.host = cast(Host, host)
            for index in range(1, 11):  # gRPC may report it while reading or while writing
                host.lost.clear()
                line.fetch(leader, "main", SendFetch(to=OTHER, term=1, index=index, last_term=0, version=1))
                await asyncio.wait_for(host.lost.wait(), 60.0)
            await line.close()

    asyncio.run(fetch_from_refusing())


def test_a_connection_that_was_ended_is_explained_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "RECONNECT_S", 0.01)

    async def fetch_from_stopping() -> None:
        async with _leader(_StoppingLeader()) as leader:
            line, host = BrokerConnections("cluster", ME, NONE), _Host()
            line.host = cast(Host, host)
            line.fetch(leader, "main", SendFetch(to=OTHER, term=1, index=1, last_term=0, version=1))
            await asyncio.wait_for(host.lost.wait(), 60.0)
            await line.close()

    with caplog.at_level("WARNING"):
        asyncio.run(fetch_from_stopping())
    assert "it is stopping, or has another one from here" in caplog.text, "also if it ended while something was sent"


def test_a_connection_that_ended_during_a_transfer_is_explained_in_words() -> None:
    """The error of gRPC itself only says that it could not write."""
    internal = grpc.StatusCode.INTERNAL
    assert connections.describe_end(internal, "Internal error from Core") == (
        "it has ended while something was sent; that broker cannot be reached, or it is stopping, "
        "or has another one from here"
    )
    assert connections.describe_end(internal, "it is on fire") == "it is on fire (INTERNAL)"


class _SlowLine:
    """A follower's stream that blocks until it is released."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.go = asyncio.Event()
        self.answers: list[replica_pb2.FetchAnswer] = []

    async def write(self, frame: replica_pb2.LeaderFrame) -> None:
        self.taken.set()
        await self.go.wait()
        self.answers += frame.answers


def test_a_follower_that_asks_again_over_a_slow_line_gets_the_newest_answer_alone() -> None:
    """It asks every few seconds, and each answer may be a frame of entries; the leader must not keep all answers."""

    def entries(count: int) -> replica_pb2.FetchAnswer:
        return connections.encode_reply("main", Entries(term=1, first=1, high=0, entries=(b"x" * 1000,) * count))

    async def check_slow_follower() -> None:
        context = _SlowLine()
        line = FollowerStream(OTHER, cast(Any, context))
        writing = asyncio.create_task(line.write())
        line.send(entries(1))
        await asyncio.wait_for(context.taken.wait(), 60.0)
        for count in range(2, 100):
            line.send(entries(count))
            if count == 50:
                line.send(connections.encode_reply("other", Entries(term=1, first=1, high=0)))
        context.go.set()
        while len(context.answers) < 3:
            await asyncio.sleep(0)
        line.end()
        await writing
        assert [(found.business, len(found.entries)) for found in context.answers] == [
            ("main", 1),
            ("main", 99),
            ("other", 0),
        ]

    asyncio.run(asyncio.wait_for(check_slow_follower(), 60.0))


def test_a_frame_whose_parts_never_end_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise its follower would keep all parts in memory."""
    monkeypatch.setattr(connections, "RECONNECT_S", 0.01)
    monkeypatch.setattr(connections, "REPLICA_BYTES_MAX", 4 * connections.PART_BYTES)
    monkeypatch.setattr(connections, "_replica_channel_options", lambda: [("grpc.use_local_subchannel_pool", 1)])

    async def check_endless_answer() -> None:
        async with _leader(_EndlessLeader()) as leader:
            line, host = BrokerConnections("cluster", ME, NONE), _Host()
            line.host = cast(Host, host)
            line.fetch(leader, "main", SendFetch(to=OTHER, term=1, index=1, last_term=0, version=1))
            await asyncio.wait_for(host.lost.wait(), 60.0)
            await line.close()

    with caplog.at_level("WARNING"):
        asyncio.run(check_endless_answer())
    assert f"the parts of a frame of b have more than {4 * connections.PART_BYTES} bytes" in caplog.text


@pytest.mark.parametrize("takes_parts", [False, True])
def test_a_large_frame_is_sent_in_parts_or_whole_to_an_older_follower(
    takes_parts: bool,
) -> None:
    frames: list[replica_pb2.LeaderFrame] = []
    answer = connections.encode_reply("main", Entries(term=1, first=1, high=0, entries=(b"x" * 700_000,)))

    class Context:
        async def write(self, frame: replica_pb2.LeaderFrame) -> None:
            frames.append(frame)

    async def record_write() -> None:
        line = FollowerStream(OTHER, cast(Any, Context()), takes_parts=takes_parts)
        line.send(answer)
        writing = asyncio.create_task(line.write())
        while not frames or (takes_parts and not frames[-1].last_part):
            await asyncio.sleep(0)
        line.end()
        await writing

    asyncio.run(asyncio.wait_for(record_write(), 60.0))
    whole = replica_pb2.LeaderFrame(answers=[answer])
    assert [frame.last_part for frame in frames] == ([False, False, True] if takes_parts else [False])
    assert b"".join(frame.part for frame in frames) == (whole.SerializeToString() if takes_parts else b"")
    assert takes_parts or frames == [whole]
