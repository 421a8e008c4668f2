"""Conversion of replica messages between protobuf and `venus.replication`."""

from __future__ import annotations

from venus.errors import ProtocolError
from venus.replication.election import Ballot
from venus.replication.messages import Answer, Entries, FetchRequest, LogsDiverge, LogTrimmed, NotLeading, SendFetch
from venus.replication.records import Member
from venus.wire import replica_pb2


def encode_member(member: Member) -> replica_pb2.ClusterMember:
    """Encode a member."""
    return replica_pb2.ClusterMember(broker=member.broker, store=member.store)


def decode_member(found: replica_pb2.ClusterMember) -> Member:
    """Decode a member."""
    return Member(broker=found.broker, store=found.store)


def encode_fetch(business: str, fetch: SendFetch) -> replica_pb2.FetchEntries:
    """Encode a fetch."""
    return replica_pb2.FetchEntries(
        business=business, term=fetch.term, index=fetch.index, last_term=fetch.last_term, version=fetch.version
    )


def decode_fetch(follower: Member, found: replica_pb2.FetchEntries) -> FetchRequest:
    """Decode a fetch."""
    return FetchRequest(
        sender=follower, term=found.term, index=found.index, last_term=found.last_term, version=found.version
    )


def encode_reply(business: str, answer: Answer) -> replica_pb2.FetchAnswer:
    """Encode the reply to a fetch."""
    found = replica_pb2.FetchAnswer(business=business, term=answer.term)
    match answer:
        case Entries():
            found.outcome = replica_pb2.ENTRIES
            found.index, found.high = answer.first, answer.high
            found.entries.extend(answer.entries)
        case LogsDiverge():
            found.outcome = replica_pb2.DIVERGE
            found.index, found.last_term = answer.index, answer.last_term
            found.known_term, found.end = answer.known_term, answer.end
        case LogTrimmed():
            found.outcome = replica_pb2.TRIMMED
            found.index = answer.start
        case NotLeading():
            found.outcome = replica_pb2.NOT_LEADING
    return found


def decode_reply(found: replica_pb2.FetchAnswer) -> Answer:
    """Decode the reply to a fetch. Raises ProtocolError."""
    match found.outcome:
        case replica_pb2.ENTRIES:
            return Entries(term=found.term, first=found.index, high=found.high, entries=tuple(found.entries))
        case replica_pb2.DIVERGE:
            return LogsDiverge(
                term=found.term,
                index=found.index,
                last_term=found.last_term,
                known_term=found.known_term,
                end=found.end,
            )
        case replica_pb2.TRIMMED:
            return LogTrimmed(term=found.term, start=found.index)
        case replica_pb2.NOT_LEADING:
            return NotLeading(term=found.term)
    raise ProtocolError(f"the answer to a fetch of {found.business} has outcome {found.outcome}")


def encode_ballot(ballot: Ballot | None) -> replica_pb2.BallotAnswer:
    """Encode a ballot; None = none is given."""
    if ballot is None:
        return replica_pb2.BallotAnswer()
    return replica_pb2.BallotAnswer(
        given=True, last_term=ballot.last_term, end=ballot.end, high=ballot.high, healthy=ballot.healthy
    )


def decode_ballot(of: Member, found: replica_pb2.BallotAnswer) -> Ballot | None:
    """Decode the ballot of a member; None = it gave none."""
    if not found.given:
        return None
    return Ballot(member=of, last_term=found.last_term, end=found.end, high=found.high, healthy=found.healthy)


def reply_size(found: replica_pb2.FetchAnswer) -> int:
    """Return the approximate size of a reply."""
    return sum(map(len, found.entries)) + len(found.business) + 64
