"""Commands of a mirror's replicator: full data, and batches at the offsets that they have at the upstream set.

Size, range, offset and columns of upstream data are checked before anything is logged. Data that does not fit is
refused, and the replicator then ends its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from venus.broker.log.entry import EntryKind, LogEntry, record_entry
from venus.broker.machine import described_versions, half_messages
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.envelope import Envelope, build_envelope, open_mirrored_body
from venus.broker.machine.half_messages import HalfState, check_limit
from venus.broker.machine.mirror import Mirror, home_from_wire, home_term_of
from venus.broker.machine.records import encode_levels
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.pipeline.group import CommandGroup
from venus.broker.queue import reader
from venus.broker.store import keys
from venus.broker.store.files import FreeSpace
from venus.broker.store.rocks import Store
from venus.codec.batch import digest
from venus.codec.stored_rows import decode_chunk
from venus.errors import IllegalTransition, OffsetDiverged, ProtocolError, Refused, Unavailable
from venus.network.row_filters import Levels
from venus.rpc import limits
from venus.wire import broker_pb2, change_pb2, mirror_pb2

_OTHER = "the set above has another history"
#: Limit of offsets that one entry passes over.
LEFT_OUT_MAX = limits.UINT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorIncrements:
    """All increments up to `position` that a mirror needs. `sparse`: the mirror has only a part of the business."""

    increments: Sequence[broker_pb2.Increment]
    position: int
    sparse: bool
    follows: int = 0  # end of the increments that came before


def begin_full_data(
    group: CommandGroup, business: Business, said: mirror_pb2.MirrorBegin, at_us: int, space: FreeSpace
) -> None:
    """Drop the data of the business, and begin at the cut of the full data.

    Raises Refused if producers wrote the business here, unless the full data is of a home that has replaced this one.
    """
    limits.check(said, f"{business.name}: ")
    state = business.proposed
    check_limit(f"{business.name}: the full data", "home term", said.home.home_term, home_term_of(state.home))
    is_own = not state.is_mirror and not _is_blank(business)
    if is_own and home_term_of(home_from_wire(said.home)) <= (
        home_term_of(state.home) if not state.is_replaced else -1
    ):
        raise Refused(
            f"{business.name} has been written by producers here, so it cannot be mirrored from set {said.set}",
            hint=f"`venus forget --business {business.name}` at this set removes it; the set above has its own",
        )
    space.check_data(said.ByteSize())
    body = said.SerializeToString()
    entry = LogEntry(kind=EntryKind.FULL_BEGIN, epoch=said.epoch, at_us=at_us, digest=digest(body), body=body)
    group.append(business, entry)


def take_full_rows(
    group: CommandGroup, business: Business, begin: int, number: int, body: bytes, at_us: int, space: FreeSpace
) -> None:
    """Take the next chunk of the full data that began with the entry `begin`; the first one has the number 0.

    Raises ProtocolError, IllegalTransition.
    """
    mirror = _filling_mirror(business, begin)
    if mirror.chunks != number:
        raise IllegalTransition(
            f"{business.name}: chunk {number} of the full data came, {mirror.chunks} is the next one"
        )
    chunk = decode_chunk(body)
    if len(chunk.rows) and int(chunk.rows.sequences.max()) > business.proposed.last_sequence:
        raise ProtocolError(f"{business.name}: the full data has a row of table {chunk.table_id} from behind its cut")
    space.check_data(len(body))
    entry = LogEntry(
        kind=EntryKind.FULL_ROWS, epoch=business.proposed.epoch, at_us=at_us, digest=digest(body), body=body
    )
    group.append(business, entry)


def end_full_data(group: CommandGroup, business: Business, begin: int, rows: int, at_us: int) -> None:
    """Record that all rows of the full data have arrived."""
    _filling_mirror(business, begin)
    group.append(
        business, record_entry(EntryKind.FULL_END, epoch=business.proposed.epoch, at_us=at_us, record={"rows": rows})
    )


def take_increments(
    group: CommandGroup, business: Business, arrived: MirrorIncrements, store: Store, at_us: int, space: FreeSpace
) -> int:
    """Take batches that are committed upstream; return the next offset. Batches that are already here are dropped.

    Raises ProtocolError for a gap, OffsetDiverged for another history, IllegalTransition if the full data is not
    complete.
    """
    mirror = business.proposed.mirror
    if mirror is None or not mirror.end:
        raise IllegalTransition(f"{business.name} has no full data yet, so no increment can follow it")
    if not business.proposed.is_mirror:
        raise IllegalTransition(f"{business.name}: this set has become the home")
    if arrived.follows > business.proposed.next_offset:  # a sparse mirror would pass over what is missing
        raise Unavailable(f"{business.name}: the increments before offset {arrived.follows} are missing")
    space.check_data(sum(len(increment.body) for increment in arrived.increments))
    for increment in arrived.increments:
        _take_increment(group, business, increment, arrived.sparse, store, at_us)
    if arrived.position > business.proposed.next_offset:
        skipped = f"{business.name}: the end of the skipped part"
        check_limit(skipped, "offset", arrived.position, business.proposed.next_offset)
        _skip_gap(group, business, arrived.position, arrived.sparse, store, at_us)
    return business.proposed.next_offset


def _take_increment(
    group: CommandGroup, business: Business, increment: broker_pb2.Increment, sparse: bool, store: Store, at_us: int
) -> None:
    """Check one increment, and propose the batch unless it is already here."""
    state = business.proposed
    if increment.base_offset + increment.count <= state.next_offset:
        _check_same(business, increment, store)
        business.add_to_counter("duplicate_batches")
        return
    body = increment.body
    content = open_mirrored_body(body)
    if digest(body) != increment.digest:
        raise ProtocolError(f"{business.name}: batch {content.batch_no} does not hash to its digest")
    _check_reach(business, increment, content)
    if increment.base_offset > state.next_offset:
        _skip_gap(group, business, increment.base_offset, sparse, store, at_us)
    elif increment.base_offset < state.next_offset and (content.lost or content.left_out):
        increment, content = _rest_of(increment, state.next_offset)
        body = increment.body
    _check_place(business, increment, content)
    _check_versions(business, increment, content, store)
    entry = LogEntry(
        kind=EntryKind.MIRRORED,
        epoch=max(increment.epoch, _newest_epoch(business)),
        at_us=increment.committed_at_us,
        digest=increment.digest,
        body=body,
    )
    group.append(business, entry, content)


def _check_reach(business: Business, increment: broker_pb2.Increment, content: Envelope) -> None:
    """Raise ProtocolError for an offset, epoch, batch or Sequence so high that none could follow it."""
    state, where = business.proposed, f"{business.name}: batch {content.batch_no}"
    check_limit(where, "offset", increment.base_offset, state.next_offset)
    check_limit(where, "epoch", increment.epoch, _newest_epoch(business))
    check_limit(where, "batch", content.batch_no, state.last_batch)
    check_limit(where, "Sequence", content.first_sequence, state.last_sequence)


def _check_same(business: Business, increment: broker_pb2.Increment, store: Store) -> None:
    """Raise OffsetDiverged if a repeated batch differs from the newest batch here."""
    place = reader.find_newest(store, business)
    if place is None or increment.base_offset + increment.count <= place.base_offset:
        return
    same = (place.base_offset, place.digest) == (increment.base_offset, increment.digest)
    if (
        not same and not open_mirrored_body(increment.body).lost
    ):  # an election upstream may have lost batches that are stored here
        raise OffsetDiverged(
            f"{business.name}: the batch at offset {increment.base_offset} differs from the one here: {_OTHER}"
        )


def _check_place(business: Business, increment: broker_pb2.Increment, content: Envelope) -> None:
    """Raise ProtocolError for a batch that cannot be the next one, OffsetDiverged for one of another history."""
    state, where = business.proposed, f"{business.name}: batch {content.batch_no} at offset {increment.base_offset}"
    offsets = content.lost or content.left_out or max(content.count, 1)
    if increment.base_offset < state.next_offset and increment.count == offsets:
        raise OffsetDiverged(f"{where} begins before offset {state.next_offset}, where one ends here: {_OTHER}")
    if increment.base_offset != state.next_offset or increment.count != offsets:
        raise ProtocolError(
            f"{where} takes {increment.count} offsets and has {offsets}; {state.next_offset} is the next one here"
        )
    # a part of the batches lost by an election upstream may be here
    stands_for = content.lost or content.left_out
    is_new = content.batch_no > state.last_batch or stands_for
    if not is_new or content.first_sequence <= state.last_sequence:
        raise OffsetDiverged(
            f"{where} begins at Sequence {content.first_sequence}, behind batch {state.last_batch} with Sequences up "
            f"to {state.last_sequence}: {_OTHER}"
        )
    if increment.epoch < _newest_epoch(business) and not stands_for:
        raise OffsetDiverged(
            f"{where} is of epoch {increment.epoch}, behind one of epoch {_newest_epoch(business)}: {_OTHER}"
        )


def _check_versions(business: Business, increment: broker_pb2.Increment, content: Envelope, store: Store) -> None:
    """Raise ProtocolError for changes whose columns are unknown or different here."""
    where = f"{business.name}: batch {content.batch_no} at offset {increment.base_offset}"
    described_versions.check_versions(business, content, where)
    if unknown := described_versions.find_missing_versions(business, content):
        table_id, version = min(unknown)
        raise ProtocolError(f"{where} has changes of table {table_id} in version {version}, which nothing describes")
    known = described_versions.find_contradiction(store, business, content)
    if known is not None:
        raise ProtocolError(
            f"{where} describes version {known.version} of table {known.table_id} in another way than it is known here "
            f"({known.namespace}.{known.name}): the triggers were installed again under the home's data",
            hint=f"at the home: stop venus sync, `venus forget --business {business.name} --yes`, "
            "`venus uninstall-triggers`, `venus install-triggers`; this set then takes the full data by itself",
        )


def _rest_of(increment: broker_pb2.Increment, offset: int) -> tuple[broker_pb2.Increment, Envelope]:
    """Return an increment that has no changes and stands for the offsets of this one from `offset` on."""
    message = change_pb2.BatchBody.FromString(increment.body)
    left = increment.base_offset + increment.count - offset
    if message.lost:
        message.lost = left
    else:
        message.left_out = left
    body = message.SerializeToString()
    rest = broker_pb2.Increment(
        base_offset=offset,
        count=left,
        epoch=increment.epoch,
        committed_at_us=increment.committed_at_us,
        digest=digest(body),
        body=body,
    )
    return rest, build_envelope(message)


def _newest_epoch(business: Business) -> int:
    """Return the epoch of the newest mirrored batch, proposed ones included."""
    newest = next((p.entry.epoch for p in reversed(business.pending) if p.entry.kind is EntryKind.MIRRORED), 0)
    return max(newest, business.epoch_at_end)


def _skip_gap(group: CommandGroup, business: Business, offset: int, sparse: bool, store: Store, at_us: int) -> None:
    """Log that the offsets up to `offset` hold nothing for this mirror, which has only a part of the business."""
    state = business.proposed
    if not sparse:
        raise ProtocolError(
            f"{business.name}: offset {offset} came where {state.next_offset} is the next one: something is missing"
        )
    while business.proposed.next_offset < offset:
        message = _empty_batch(business, min(offset - business.proposed.next_offset, LEFT_OUT_MAX), store)
        body = message.SerializeToString()
        entry = LogEntry(
            kind=EntryKind.MIRRORED, epoch=_newest_epoch(business), at_us=at_us, digest=digest(body), body=body
        )
        group.append(business, entry, build_envelope(message))


def _empty_batch(business: Business, offsets: int, store: Store) -> change_pb2.BatchBody:
    """Return a batch without changes that stands for some offsets and does not end an open cut."""
    state = business.proposed
    cut, ended, captured_at_us = _newest_cut(business, store)
    return change_pb2.BatchBody(
        batch_no=max(state.last_batch, 1),
        first_sequence=state.last_sequence + 1,
        cut=max(state.last_batch, 1) if ended else cut,
        cut_end=ended,
        captured_at_us=captured_at_us,
        left_out=offsets,
    )


def _newest_cut(business: Business, store: Store) -> tuple[int, bool, int]:
    """Return the cut of the newest batch, whether the cut ended there, and when it was captured."""
    for pending in reversed(business.pending):
        if pending.content is not None:
            return pending.content.cut, pending.content.cut_end, pending.content.captured_at_us
    place = reader.find_newest(store, business)
    return (place.cut, place.cut_end, place.captured_at_us) if place is not None else (0, True, 0)


def _filling_mirror(business: Business, begin: int) -> Mirror:
    """Return the mirror whose full data began at `begin`. Raises IllegalTransition if that fill no longer runs."""
    mirror = business.proposed.mirror
    if mirror is None or mirror.end or mirror.begin != begin or not business.proposed.is_mirror:
        raise IllegalTransition(f"{business.name}: the full data was begun again meanwhile")
    return mirror


def _is_blank(business: Business) -> bool:
    """Return whether no producer has ever shipped anything for the business."""
    state: HalfState = business.proposed
    return state == half_messages.HalfState(epoch=state.epoch, producer=state.producer) and not business.nbytes


class MirrorCommands:
    """Commands of replicators. Thread-safe. Futures are resolved once the command is applied."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        commits: CommitThread,
        store: Store,
        space: FreeSpace,
        *,
        clock_us: Callable[[], int],
    ) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._store = store
        self._space = space
        self._clock_us = clock_us

    def enter(self, business: str) -> Business:
        """Return the mirrored business, create it if needed, and hold it until `leave`.

        A new business is empty until its full data begins, so its end says nothing about what a consumer has applied.
        """
        found = self._catalogue.enter(business)
        found.awaits_full_data |= found.is_new
        return found

    def leave(self, business: Business) -> None:
        """Release a business that `enter` returned."""
        self._commits.release(self._catalogue, business)

    def begin_full_data(self, business: Business, said: mirror_pb2.MirrorBegin) -> Future[int]:
        """Begin the full data. The future's result identifies this full data in later calls."""

        def append_beginning(group: CommandGroup) -> int:
            begin_full_data(group, business, said, self._clock_us(), self._space)
            return business.log.end - 1

        return self._commits.submit(append_beginning, business=business)

    def take_full_rows(self, business: Business, begin: int, number: int, body: bytes) -> Future[None]:
        """Take the chunk of the full data with this number, from 0 on."""

        def take_chunk(group: CommandGroup) -> None:
            take_full_rows(group, business, begin, number, body, self._clock_us(), self._space)

        return self._commits.submit(take_chunk, business=business)

    def record_levels(self, business: Business, begin: int, above: str, levels: Levels) -> Future[None]:
        """Keep the filters of the upstream sets for the full data that began with the entry `begin`."""
        key, value = keys.levels_key(business.number), encode_levels(begin, above, levels)
        return self._commits.submit(lambda group: group.stage(keys.STATE, key, value, durable=True))

    def end_full_data(self, business: Business, begin: int, rows: int) -> Future[None]:
        """End the full data."""
        business.awaits_full_data = False  # its beginning has been applied
        return self._commits.submit(
            lambda group: end_full_data(group, business, begin, rows, self._clock_us()), business=business
        )

    def take_increments(
        self,
        business: Business,
        increments: Sequence[broker_pb2.Increment],
        position: int,
        *,
        sparse: bool,
        follows: int = 0,
    ) -> Future[int]:
        """Take increments. The future's result is the next wanted offset; everything below is safe.

        `follows` is the end of the preceding increments; if those were not taken, `increments` are not taken either.
        """
        arrived = MirrorIncrements(increments=increments, position=position, sparse=sparse, follows=follows)

        def append_increments(group: CommandGroup) -> int:
            return take_increments(group, business, arrived, self._store, self._clock_us(), self._space)

        return self._commits.submit(append_increments, business=business)
