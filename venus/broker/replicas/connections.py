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
from google.protobuf.message import DecodeError

from venus.broker.replicas.copies import CopyHeader, CopyMark, CopyPiece
from venus.broker.replicas.host import Host
from venus.errors import ProtocolError, VenusError
from venus.replication import messages as m
from venus.replication.records import Ballot, LiveBroker, Member
from venus.rpc import limits
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.channel import FRAME_BYTES, REPLICA_BYTES_MAX, aio_channel, channel_options, unchecked_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.sealed import check_frame_seal, frame_opener, seal, unseal
from venus.wire import replica_pb2

logger = logging.getLogger(__name__)

FOLLOW = "/venus.wire.Replica/Follow"
BALLOT = "/venus.wire.Replica/Ballot"
COPY = "/venus.wire.Replica/Copy"
BALLOT_TIMEOUT_S = 1.0
#: Limit for a reply: a leader answers each fetch within half a second, at least with its high watermark.
SILENT_S = 5.0
#: A larger frame comes in parts. Each is a sign of life, so a slow line needs to carry only this in SILENT_S.
PART_BYTES = 256 << 10
RECONNECT_S = 0.2

Context = grpc.aio.ServicerContext[Any, Any]


class BrokerConnections:
    """Transport of the replicas over gRPC; implements `Transport`. `host` is set before the first call."""

    def __init__(self, cluster: str, me: Member, proof: ClientCredentials) -> None:
        self.cluster, self.me, self._proof = cluster, me, proof
        self.host: Host | None = None
        self._out: dict[Member, LeaderStream] = {}
        self._in: dict[Member, FollowerStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: set[Member] = set()  # logged once, until the connection works again

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel to another broker; it uses this broker's certificate if the cluster has TLS."""
        return aio_channel(BrokerAddress(address, self._proof), _replica_channel_options())

    def fetch(self, to: LiveBroker, business: str, fetch: m.SendFetch) -> None:
        """Send a fetch to a leader."""
        line = self._out.get(to.member)
        if line is not None and (line.address != to.address or line.is_silent):
            line.close()
            line = None
        if line is None:
            line = self._out[to.member] = LeaderStream(self, to)
        line.send(encode_fetch(business, fetch))

    def reply(self, to: Member, business: str, answer: m.Answer) -> None:
        """Reply to a follower's fetch, if its connection is still open."""
        line = self._in.get(to)
        if line is not None:
            line.send(encode_reply(business, answer))

    def ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        """Request a ballot from a replica."""
        self._start_task(self._ask_ballot(to, business, term))

    async def _ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        request = replica_pb2.BallotRequest(greeting=self.build_greeting(to.member), business=business, term=term)
        try:
            async with self.channel(to.address) as channel:
                call: Any = channel.unary_unary(BALLOT, request_serializer=seal, response_deserializer=None)
                data = await call(request, timeout=BALLOT_TIMEOUT_S)
            answer = unseal(replica_pb2.BallotAnswer, data, "a ballot")
            limits.check(answer, "from another broker: ")
        except (grpc.RpcError, VenusError) as error:
            logger.info("%s: no ballot of %s: %s", business, to.member.broker, _describe_error(error))
            return
        ballot = decode_ballot(to.member, answer)
        if ballot is not None and self.host is not None:
            self.host.on_ballot(business, term, ballot)

    def release_copy(self, leader: LiveBroker, business: str, copy: str) -> None:
        """Ask a leader to remove an installed copy; from any thread but the loop's."""
        greeting = self.build_greeting(leader.member)
        request = replica_pb2.CopyRequest(greeting=greeting, business=business, copy=copy, done=True)
        with unchecked_channel(BrokerAddress(leader.address, self._proof), _replica_channel_options()) as channel:
            call: Any = channel.unary_stream(COPY, request_serializer=seal, response_deserializer=None)
            try:
                for _ in call(request, timeout=BALLOT_TIMEOUT_S):
                    pass
            except grpc.RpcError as error:
                logger.info("%s: broker %s keeps its copy for a while: %s", business, leader.member.broker, error)

    def read_copy(
        self, leader: LiveBroker, business: str, mark: CopyMark | None
    ) -> Generator[CopyHeader | CopyPiece, None, None]:
        """Read a leader's copy of a business, from any thread but the loop's; it ends only after the last piece.

        `mark` is the place in an earlier copy at which to continue, if the leader still has that copy.
        """
        request = replica_pb2.CopyRequest(greeting=self.build_greeting(leader.member), business=business)
        if mark is not None:
            request.copy, request.area = mark.copy, mark.next_place.area
            if mark.next_place.after is not None:
                request.after = mark.next_place.after
        with unchecked_channel(BrokerAddress(leader.address, self._proof), _replica_channel_options()) as channel:
            call: Any = channel.unary_stream(COPY, request_serializer=seal, response_deserializer=None)(request)
            taken = 0
            try:
                for data in call:
                    frame = unseal(replica_pb2.CopyFrame, data, "a frame of a copy")
                    limits.check(frame, "from another broker: ")
                    if frame.end and frame.frames == taken:
                        return
                    if frame.copy:
                        yield CopyHeader(copy=frame.copy, records_expected=frame.records_expected)
                        continue
                    taken += 1
                    yield CopyPiece(area=frame.area, keys=tuple(frame.keys), values=tuple(frame.values))
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error
            finally:
                call.cancel()
        raise ProtocolError(f"a copy ended after {taken} frames without an end mark")

    def build_greeting(self, to: Member) -> replica_pb2.Greeting:
        """Return the greeting that names the cluster and both members."""
        return replica_pb2.Greeting(cluster=self.cluster, sender=encode_member(self.me), receiver=encode_member(to))

    def report_broken(self, line: LeaderStream, why: str) -> None:
        """Log that a connection is broken, once until it works again."""
        if line.to not in self._broken:
            self._broken.add(line.to)
            logger.warning("the line to broker %s at %s: %s", line.to.broker, line.address, why)

    def report_working(self, line: LeaderStream) -> None:
        """Record that a connection works."""
        if line.to in self._broken:
            self._broken.discard(line.to)
            logger.info("the line to broker %s at %s works again", line.to.broker, line.address)

    def on_stream_end(self, line: LeaderStream) -> None:
        """Remove a closed connection and notify the host."""
        if self._out.get(line.to) is line:
            del self._out[line.to]
            if self.host is not None:
                self.host.on_connection_lost(line.to)

    def add_follower(self, line: FollowerStream) -> None:
        """Add a follower's connection; it replaces an older one."""
        older = self._in.get(line.follower)
        self._in[line.follower] = line
        if older is not None:
            older.end()

    def remove_follower(self, line: FollowerStream) -> None:
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

    def _start_task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class LeaderStream:
    """Stream from this broker to a leader that it follows."""

    def __init__(self, lines: BrokerConnections, to: LiveBroker) -> None:
        self.to, self.address = to.member, to.address
        self._lines = lines
        self._waiting: deque[replica_pb2.FetchEntries] = deque()
        self._wake = asyncio.Event()
        self._asked_at: float | None = None  # when the first fetch after the newest (part of an) answer was sent
        self._parts = bytearray()
        self.task = asyncio.get_running_loop().create_task(self._run_stream())

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

    async def _run_stream(self) -> None:
        try:
            async with self._lines.channel(self.address) as channel:
                call: Any = channel.stream_stream(
                    FOLLOW, request_serializer=seal, response_deserializer=frame_opener(replica_pb2.LeaderFrame)
                )()
                await call.write(
                    replica_pb2.FollowerFrame(greeting=self._lines.build_greeting(self.to), takes_parts=True)
                )
                writer = asyncio.create_task(self._send_fetches(call))
                try:
                    await self._receive_replies(call)
                finally:
                    writer.cancel()
                    call.cancel()
        except asyncio.CancelledError:
            raise
        except (grpc.RpcError, VenusError, asyncio.InvalidStateError) as error:
            self._lines.report_broken(self, _describe_error(error))
        except Exception:
            logger.exception("the line to %s at %s failed", self.to.broker, self.address)
        await asyncio.sleep(RECONNECT_S)
        self._lines.on_stream_end(self)

    async def _send_fetches(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            fetches, self._waiting = list(self._waiting), deque()
            await call.write(replica_pb2.FollowerFrame(fetches=fetches))

    async def _receive_replies(self, call: Any) -> None:
        while True:
            frame = await call.read()
            if frame is grpc.aio.EOF:
                self._lines.report_broken(self, describe_end(await call.code(), await call.details()))
                return
            self._asked_at = None
            self._lines.report_working(self)
            whole = self._join_parts(check_frame_seal(frame, f"a frame of {self.to.broker}"))
            for found in whole.answers if whole is not None else ():
                if self._lines.host is not None:
                    self._lines.host.on_fetch_reply(
                        found.business, m.FetchReply(leader=self.to, answer=decode_reply(found))
                    )

    def _join_parts(self, frame: replica_pb2.LeaderFrame) -> replica_pb2.LeaderFrame | None:
        """Collect the parts of a large frame; return the frame, None until it is complete. Raises ProtocolError."""
        if not frame.part:
            return frame
        self._parts += frame.part
        if len(self._parts) > REPLICA_BYTES_MAX:
            raise ProtocolError(f"the parts of a frame of {self.to.broker} have more than {REPLICA_BYTES_MAX} bytes")
        if not frame.last_part:
            return None
        content, self._parts = bytes(self._parts), bytearray()
        try:
            whole = replica_pb2.LeaderFrame.FromString(content)
        except DecodeError as error:
            raise ProtocolError(f"the parts of a frame of {self.to.broker} are no frame: {error}") from error
        limits.check(whole)
        return whole


class FollowerStream:
    """Stream from a follower to this broker.

    Only the newest reply of each business waits. A follower that repeats a fetch on a slow connection has no use for
    the earlier reply, and each reply may contain a frame of entries.
    """

    def __init__(self, follower: Member, context: Context, *, takes_parts: bool = False) -> None:
        self.follower = follower
        self._context, self._takes_parts = context, takes_parts
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
                answers, size = [self._pop_oldest_reply()], 0
                while self._waiting and (size := size + reply_size(answers[-1])) < FRAME_BYTES:
                    answers.append(self._pop_oldest_reply())
                await self._write_frame(replica_pb2.LeaderFrame(answers=answers))

    async def _write_frame(self, frame: replica_pb2.LeaderFrame) -> None:
        """Write a frame, in parts if it is large and the follower takes them."""
        if not self._takes_parts or frame.ByteSize() <= PART_BYTES:
            await self._context.write(frame)
            return
        content = frame.SerializeToString()
        for start in range(0, len(content), PART_BYTES):
            if self._ended:
                return
            end = start + PART_BYTES
            await self._context.write(replica_pb2.LeaderFrame(part=content[start:end], last_part=end >= len(content)))

    def _pop_oldest_reply(self) -> replica_pb2.FetchAnswer:
        return self._waiting.popitem(last=False)[1]


#: Text of gRPC for a call that ended during a write, and for any other failure to write.
_NOT_WRITTEN = "Internal error from Core"
_WHY_ENDED = "it is stopping, or has another one from here"


def _replica_channel_options() -> list[tuple[str, int]]:
    own = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    return [*channel_options(receive_bytes_max=REPLICA_BYTES_MAX), *own]


def describe_end(code: grpc.StatusCode, details: str) -> str:
    """Return in words why the other broker has closed the connection."""
    if code is grpc.StatusCode.OK:
        return f"that broker has ended it; {_WHY_ENDED}"
    if code is grpc.StatusCode.INTERNAL and details == _NOT_WRITTEN:
        return f"it has ended while something was sent; that broker cannot be reached, or {_WHY_ENDED}"
    return f"{details or 'no details'} ({code.name})"


def _describe_error(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError) and error.details() == _NOT_WRITTEN:
        return describe_end(error.code(), _NOT_WRITTEN)
    return str(from_rpc_error(error)) if isinstance(error, grpc.RpcError) else str(error)


def encode_member(member: Member) -> replica_pb2.ClusterMember:
    """Encode a member."""
    return replica_pb2.ClusterMember(broker=member.broker, store=member.store)


def decode_member(found: replica_pb2.ClusterMember) -> Member:
    """Decode a member."""
    return Member(broker=found.broker, store=found.store)


def encode_fetch(business: str, fetch: m.SendFetch) -> replica_pb2.FetchEntries:
    """Encode a fetch."""
    return replica_pb2.FetchEntries(
        business=business,
        term=fetch.term,
        index=fetch.index,
        last_term=fetch.last_term,
        version=fetch.version,
        start=fetch.start,
    )


def decode_fetch(follower: Member, found: replica_pb2.FetchEntries) -> m.FetchRequest:
    """Decode a fetch."""
    return m.FetchRequest(
        sender=follower,
        term=found.term,
        index=found.index,
        last_term=found.last_term,
        version=found.version,
        start=found.start,
    )


def encode_reply(business: str, answer: m.Answer) -> replica_pb2.FetchAnswer:
    """Encode the reply to a fetch."""
    found = replica_pb2.FetchAnswer(business=business, term=answer.term)
    match answer:
        case m.Entries():
            found.outcome = replica_pb2.ENTRIES
            found.index, found.high = answer.first, answer.high
            found.entries.extend(answer.entries)
        case m.LogsDiverge():
            found.outcome = replica_pb2.DIVERGE
            found.index, found.last_term = answer.index, answer.last_term
            found.known_term, found.end = answer.known_term, answer.end
        case m.LogTrimmed():
            found.outcome = replica_pb2.TRIMMED
            found.index = answer.start
        case m.NotLeading():
            found.outcome = replica_pb2.NOT_LEADING
    return found


def decode_reply(sent: replica_pb2.FetchAnswer) -> m.Answer:
    """Decode the reply to a fetch. Raises ProtocolError."""
    match sent.outcome:
        case replica_pb2.ENTRIES:
            return m.Entries(term=sent.term, first=sent.index, high=sent.high, entries=tuple(sent.entries))
        case replica_pb2.DIVERGE:
            return m.LogsDiverge(
                term=sent.term, index=sent.index, last_term=sent.last_term, known_term=sent.known_term, end=sent.end
            )
        case replica_pb2.TRIMMED:
            return m.LogTrimmed(term=sent.term, start=sent.index)
        case replica_pb2.NOT_LEADING:
            return m.NotLeading(term=sent.term)
    raise ProtocolError(f"the answer to a fetch of {sent.business} has outcome {sent.outcome}")


def encode_ballot(ballot: Ballot | None) -> replica_pb2.BallotAnswer:
    """Encode a ballot; None = none is given."""
    if ballot is None:
        return replica_pb2.BallotAnswer()
    return replica_pb2.BallotAnswer(
        given=True, last_term=ballot.last_term, end=ballot.end, high=ballot.high, healthy=ballot.healthy
    )


def decode_ballot(of: Member, found: replica_pb2.BallotAnswer) -> Ballot | None:
    """Decode the ballot of a member; None = the member gave none."""
    if not found.given:
        return None
    return Ballot(member=of, last_term=found.last_term, end=found.end, high=found.high, healthy=found.healthy)


def reply_size(found: replica_pb2.FetchAnswer) -> int:
    """Return the approximate size of a reply."""
    return sum(map(len, found.entries)) + len(found.business) + 64
