"""Connections to other brokers over gRPC: one stream to each followed broker, one from each follower.

Everything runs in the service's event loop, as the host does. A connection that breaks, or on which a fetch gets no
reply, is closed. The host is notified and repeats its fetches, which opens a new connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Generator
from typing import Any

import grpc

from venus.broker.replicas import wire
from venus.broker.replicas.copies import Begin, Mark, Piece
from venus.broker.replicas.host import Host
from venus.errors import ProtocolError, VenusError
from venus.replication.messages import Answer, Answered, Fetch
from venus.replication.records import LiveBroker, Member
from venus.rpc import limits
from venus.rpc.address import Address, Proof
from venus.rpc.channel import FRAME_BYTES, REPLICA_BYTES_MAX, aio_channel, options, unchecked_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.sealed import checked, frame_opener, seal, unseal
from venus.wire import replica_pb2

logger = logging.getLogger(__name__)

FOLLOW = "/venus.wire.Replica/Follow"
BALLOT = "/venus.wire.Replica/Ballot"
COPY = "/venus.wire.Replica/Copy"
BALLOT_TIMEOUT_S = 1.0
#: Limit for a reply: a leader answers each fetch within half a second, at least with its high watermark.
SILENT_S = 5.0
RECONNECT_S = 0.2

Context = grpc.aio.ServicerContext[Any, Any]


class Lines:
    """A `Transport`. `host` is set before the first call."""

    def __init__(self, cluster: str, me: Member, proof: Proof) -> None:
        self.cluster, self.me, self._proof = cluster, me, proof
        self.host: Host | None = None
        self._out: dict[Member, OutLine] = {}
        self._in: dict[Member, InLine] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: set[Member] = set()  # logged once, until the connection works again

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel to another broker; it uses this broker's certificate if the cluster has TLS."""
        return aio_channel(Address(address, self._proof), _options())

    def fetch(self, to: LiveBroker, business: str, fetch: Fetch) -> None:
        """Send a fetch to a leader."""
        line = self._out.get(to.member)
        if line is not None and (line.address != to.address or line.is_silent):
            line.close()
            line = None
        if line is None:
            line = self._out[to.member] = OutLine(self, to)
        line.send(wire.put_fetch(business, fetch))

    def answer(self, to: Member, business: str, answer: Answer) -> None:
        """Reply to a follower's fetch, if its connection is still open."""
        line = self._in.get(to)
        if line is not None:
            line.send(wire.put_answer(business, answer))

    def ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        """Request a ballot from a replica."""
        self._spawn(self._ask_ballot(to, business, term))

    async def _ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        request = replica_pb2.BallotRequest(greeting=self.greeting(to.member), business=business, term=term)
        try:
            async with self.channel(to.address) as channel:
                call: Any = channel.unary_unary(BALLOT, request_serializer=seal, response_deserializer=None)
                data = await call(request, timeout=BALLOT_TIMEOUT_S)
            answer = unseal(replica_pb2.BallotAnswer, data, "a ballot")
            limits.check(answer, "from another broker: ")
        except (grpc.RpcError, VenusError) as error:
            logger.info("%s: no ballot of %s: %s", business, to.member.broker, _text(error))
            return
        ballot = wire.ballot(to.member, answer)
        if ballot is not None and self.host is not None:
            self.host.ballot_came(business, term, ballot)

    def copy_done(self, leader: LiveBroker, business: str, copy: str) -> None:
        """Ask a leader to remove an installed copy; from any thread but the loop's."""
        greeting = self.greeting(leader.member)
        request = replica_pb2.CopyRequest(greeting=greeting, business=business, copy=copy, done=True)
        with unchecked_channel(Address(leader.address, self._proof), _options()) as channel:
            call: Any = channel.unary_stream(COPY, request_serializer=seal, response_deserializer=None)
            try:
                for _ in call(request, timeout=BALLOT_TIMEOUT_S):
                    pass
            except grpc.RpcError as error:
                logger.info("%s: broker %s keeps its copy for a while: %s", business, leader.member.broker, error)

    def copy(self, leader: LiveBroker, business: str, mark: Mark | None) -> Generator[Begin | Piece, None, None]:
        """Read a leader's copy of a business, from any thread but the loop's; it ends only after the last piece.

        `mark` is the place in an earlier copy at which to continue, if the leader still has that copy.
        """
        request = replica_pb2.CopyRequest(greeting=self.greeting(leader.member), business=business)
        if mark is not None:
            request.copy, request.area = mark.copy, mark.place.area
            if mark.place.after is not None:
                request.after = mark.place.after
        with unchecked_channel(Address(leader.address, self._proof), _options()) as channel:
            call: Any = channel.unary_stream(COPY, request_serializer=seal, response_deserializer=None)(request)
            taken = 0
            try:
                for data in call:
                    frame = unseal(replica_pb2.CopyFrame, data, "a frame of a copy")
                    limits.check(frame, "from another broker: ")
                    if frame.end and frame.frames == taken:
                        return
                    if frame.copy:
                        yield Begin(copy=frame.copy, records_expected=frame.records_expected)
                        continue
                    taken += 1
                    yield Piece(area=frame.area, keys=tuple(frame.keys), values=tuple(frame.values))
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error
            finally:
                call.cancel()
        raise ProtocolError(f"a copy ended after {taken} frames without an end mark")

    def greeting(self, to: Member) -> replica_pb2.Greeting:
        """Return the greeting that names the cluster and both members."""
        return replica_pb2.Greeting(cluster=self.cluster, sender=wire.put_member(self.me), receiver=wire.put_member(to))

    def broke(self, line: OutLine, why: str) -> None:
        """Log that a connection is broken, once."""
        if line.to not in self._broken:
            self._broken.add(line.to)
            logger.warning("the line to broker %s at %s: %s", line.to.broker, line.address, why)

    def heard(self, line: OutLine) -> None:
        """Record that a connection works."""
        if line.to in self._broken:
            self._broken.discard(line.to)
            logger.info("the line to broker %s at %s works again", line.to.broker, line.address)

    def lost(self, line: OutLine) -> None:
        """Remove a closed connection and notify the host."""
        if self._out.get(line.to) is line:
            del self._out[line.to]
            if self.host is not None:
                self.host.line_lost(line.to)

    def enter(self, line: InLine) -> None:
        """Add a follower's connection; it replaces an older one."""
        older = self._in.get(line.follower)
        self._in[line.follower] = line
        if older is not None:
            older.end()

    def leave(self, line: InLine) -> None:
        """Remove a follower's closed connection."""
        if self._in.get(line.follower) is line:
            del self._in[line.follower]

    async def close(self) -> None:
        """Close every connection."""
        self.host = None
        lines, self._out = list(self._out.values()), {}
        for line in lines:
            line.close()
        for follower in list(self._in.values()):
            follower.end()
        tasks = [*(line.task for line in lines), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class OutLine:
    """Stream from this broker to a leader that it follows."""

    def __init__(self, lines: Lines, to: LiveBroker) -> None:
        self.to, self.address = to.member, to.address
        self._lines = lines
        self._waiting: deque[replica_pb2.FetchEntries] = deque()
        self._wake = asyncio.Event()
        self._asked_at: float | None = None  # of the oldest fetch since the newest answer
        self.task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_silent(self) -> bool:
        """Whether a fetch has had no reply for too long."""
        return self._asked_at is not None and time.monotonic() - self._asked_at > SILENT_S

    def send(self, fetch: replica_pb2.FetchEntries) -> None:
        """Send a fetch soon."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self._waiting.append(fetch)
        self._wake.set()

    def close(self) -> None:
        """Close the connection."""
        self.task.cancel()

    async def _run(self) -> None:
        try:
            async with self._lines.channel(self.address) as channel:
                call: Any = channel.stream_stream(
                    FOLLOW, request_serializer=seal, response_deserializer=frame_opener(replica_pb2.LeaderFrame)
                )()
                await call.write(replica_pb2.FollowerFrame(greeting=self._lines.greeting(self.to)))
                writer = asyncio.create_task(self._write(call))
                try:
                    await self._read(call)
                finally:
                    writer.cancel()
                    call.cancel()
        except asyncio.CancelledError:
            raise
        except (grpc.RpcError, VenusError, asyncio.InvalidStateError) as error:
            self._lines.broke(self, _text(error))
        except Exception:
            logger.exception("the line to %s at %s failed", self.to.broker, self.address)
        await asyncio.sleep(RECONNECT_S)
        self._lines.lost(self)

    async def _write(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            fetches, self._waiting = list(self._waiting), deque()
            await call.write(replica_pb2.FollowerFrame(fetches=fetches))

    async def _read(self, call: Any) -> None:
        while True:
            frame = await call.read()
            if frame is grpc.aio.EOF:
                self._lines.broke(self, ending(await call.code(), await call.details()))
                return
            self._asked_at = None
            self._lines.heard(self)
            for found in checked(frame, f"a frame of {self.to.broker}").answers:
                if self._lines.host is not None:
                    self._lines.host.answered(found.business, Answered(leader=self.to, answer=wire.answer(found)))


class InLine:
    """Stream from a follower to this broker.

    Only the newest reply of each business waits. A follower that repeats a fetch on a slow connection has no use for
    the earlier reply, and each may contain a frame of entries.
    """

    def __init__(self, follower: Member, context: Context) -> None:
        self.follower = follower
        self._context = context
        self._waiting: OrderedDict[str, replica_pb2.FetchAnswer] = OrderedDict()
        self._wake = asyncio.Event()
        self._ended = False

    def send(self, answer: replica_pb2.FetchAnswer) -> None:
        """Queue a reply; it replaces one that still waits."""
        self._waiting[answer.business] = answer
        self._wake.set()

    def end(self) -> None:
        """Close the connection."""
        self._ended = True
        self._wake.set()

    async def write(self) -> None:
        """Send replies until the connection closes; several small ones share a frame."""
        while not self._ended:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._ended:
                answers, size = [self._next()], 0
                while self._waiting and (size := size + wire.nbytes(answers[-1])) < FRAME_BYTES:
                    answers.append(self._next())
                await self._context.write(replica_pb2.LeaderFrame(answers=answers))

    def _next(self) -> replica_pb2.FetchAnswer:
        return self._waiting.popitem(last=False)[1]


#: Text of gRPC for a call that ended during a write, and for any other failure to write.
_NOT_WRITTEN = "Internal error from Core"
_WHY_ENDED = "it is stopping, or has another one from here"


def _options() -> list[tuple[str, int]]:
    return [
        *options(receive_bytes_max=REPLICA_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def ending(code: grpc.StatusCode, details: str) -> str:
    """Return in words why the other broker has closed the connection."""
    if code is grpc.StatusCode.OK:
        return f"that broker has ended it; {_WHY_ENDED}"
    if code is grpc.StatusCode.INTERNAL and details == _NOT_WRITTEN:
        return f"it has ended while something was sent; that broker cannot be reached, or {_WHY_ENDED}"
    return f"{details or 'no details'} ({code.name})"


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError) and error.details() == _NOT_WRITTEN:
        return ending(error.code(), _NOT_WRITTEN)
    return str(from_rpc_error(error)) if isinstance(error, grpc.RpcError) else str(error)
