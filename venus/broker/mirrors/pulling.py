"""What one mirrored business asks of the set above, in which order, and what it makes of the answers. Without I/O.

It acknowledges above what is safe here, so the set above keeps what this one has not taken. Whatever goes wrong on the
way ends the session, never the broker: the next one begins at the first offset that is not here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress

from venus.broker.core import Core
from venus.broker.machine import filter_wire
from venus.broker.machine import home as homes
from venus.broker.machine.business import Business
from venus.broker.machine.mirror import Mirror
from venus.broker.machine.records import levels_of
from venus.broker.mirrors.calls import (
    Acknowledge,
    Calls,
    CloseSnapshot,
    Increments,
    NextChunk,
    OpenSnapshot,
    OpenStream,
    RenewSnapshot,
    Settle,
)
from venus.broker.mirrors.place import later_cut
from venus.broker.mirrors.progress import Progress, State
from venus.broker.mirrors.whom import Above, Whom
from venus.broker.pipeline.mirrors import Mirrors
from venus.broker.queue import places
from venus.broker.store.rocks import Store
from venus.codec.chunk import Totals, encode_chunk
from venus.errors import (
    Diverged,
    IllegalTransition,
    NotLeader,
    OffsetDiverged,
    OffsetTrimmed,
    ProtocolError,
    Refused,
    SnapshotExpired,
    Unavailable,
    VenusError,
)
from venus.network import row_filters
from venus.network.row_filters import RowFilter
from venus.network.rows_identity import differing
from venus.rpc import reports
from venus.rpc.snapshots import Resume
from venus.wire import broker_pb2, mirror_pb2

#: So many chunks are on their way to the disk.
CHUNKS_AHEAD = 8
#: So many groups of batches are on their way to the disk.
TAKES_AHEAD = 16
WAIT_S = 0.2
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
#: Offsets that are not for this set are passed over at most so often.
PASS_EVERY_S = 0.2
LEASE_S = 3600
#: How often a later cut is tried: each try makes a snapshot above.
LATER_CUT_S = 5.0


class _LaterCut(Unavailable):
    """The cut of the full data is one at which consumers would not be told that other rows are here."""


class _Moved(Unavailable):
    """Another set is to be pulled from, from here on."""


class Pulling:
    """One business; `session` is driven until it fails, `ended` takes in why, and after `wait_s` the next one begins.

    `may_pull` raises NotLeader or Unavailable where another broker of the set pulls.
    """

    def __init__(
        self,
        core: Core,
        business: str,
        only: tuple[str, ...],
        whom: Whom,
        may_pull: Callable[[str], None],
        monotonic: Callable[[], float],
        where: tuple[RowFilter, ...] = (),
    ) -> None:
        self.business, self.only, self.where = business, only, where
        self.progress = Progress(core.clock_us)
        self.wait_s = RETRY_FIRST_S
        #: The set of this session, once it is known.
        self.at: Above | None = None
        self._core, self._whom, self._may_pull, self._monotonic = core, whom, may_pull, monotonic
        self._again = ""  # why the full data has to be taken again
        self._began_at = monotonic()

    def session(self) -> Calls[None]:
        """Pull until something is wrong."""
        self._began_at, self.at = self._monotonic(), None
        self._may_pull(self.business)
        mirrors = self._core.mirrors
        business = mirrors.enter(self.business)
        try:
            check_mirror(business)
            above = self.at = self._whom.above()
            mirror = business.proposed.mirror
            reason = self._reason(business, mirror)
            if reason is None:
                yield from self._follow(business, above)
            elif mirror is not None and (yield from self._is_kept(business, above, mirror)):
                yield from self._go_on(business, above, mirror)
            else:
                yield from self._begin_again(business, above, reason)
        finally:
            mirrors.leave(business)

    def ended(self, error: VenusError) -> bool:
        """Take in why a session has ended; return whether that is news."""
        lasted_s = self._monotonic() - self._began_at
        longer_s = min(max(2 * self.wait_s, RETRY_FIRST_S), RETRY_MAX_S)  # a move to another set has waited for nothing
        self.wait_s = RETRY_FIRST_S if lasted_s > RETRY_MAX_S else longer_s
        if isinstance(error, _Moved):
            self.wait_s = 0.0
            return False
        if self.at is not None and not self._whom.still(self.at):
            self.wait_s = RETRY_FIRST_S  # it was left meanwhile: the next one may have what this one has not
            return False
        if self.at is not None and not isinstance(error, _LaterCut) and self._whom.ended(self.at, error):
            self.wait_s = RETRY_FIRST_S
            return False
        match error:
            case OffsetTrimmed() | OffsetDiverged():
                self._again = str(error)
            case _LaterCut():
                self.wait_s = LATER_CUT_S
                return self.progress.enter(State.WAITING, str(error))
            case NotLeader():
                self.progress.enter(State.ELSEWHERE, str(error))
                return False
        if isinstance(error, Refused | Diverged) and not self._again:
            state = State.REFUSED
        elif isinstance(error, Unavailable) and self._has_full_data():
            state = State.CUT_OFF
        else:
            state = State.WAITING
        return self.progress.enter(state, str(error))

    def _has_full_data(self) -> bool:
        with suppress(VenusError):
            mirror = self._core.catalogue.known(self.business).committed.mirror
            return mirror is not None and mirror.end > 0
        return False

    def _reason(self, business: Business, mirror: Mirror | None) -> str | None:
        """Return why the full data is to be taken, "" the first time, None if there is no reason."""
        if mirror is None:
            return f"{business.proposed.home} has replaced this home" if business.proposed.is_replaced else ""
        if changed := self._changed(mirror):
            return changed
        if not mirror.end:
            return self._again or mirror.reason or "it was interrupted"
        return self._again or None

    def _changed(self, mirror: Mirror) -> str:
        """Return what is wanted now and was not when the full data was begun, or an empty string."""
        if mirror.only != self.only:
            return "the labels have changed"
        return "" if row_filters.same(mirror.where, self.where) else "the predicates have changed"

    def _is_kept(self, business: Business, above: Above, mirror: Mirror) -> Calls[bool]:
        """Say whether full data that was interrupted can go on; let a snapshot go that is of no use any more."""
        if mirror.end or not mirror.snapshot:
            return False
        if self._changed(mirror) or self._again:
            with suppress(VenusError):
                yield CloseSnapshot(snapshot_id=mirror.snapshot)
            return False
        try:
            found = yield RenewSnapshot(snapshot_id=mirror.snapshot)
        except VenusError as error:
            if error.retryable:
                raise
            return False
        self._check_network(above, found.networks)
        check_home(found.home, homes.term_of(business.proposed.home), above.set)
        return bool((found.offset, found.sequence) == (mirror.offset, mirror.sequence))

    def _go_on(self, business: Business, above: Above, mirror: Mirror) -> Calls[None]:
        """Take the rest of the full data that was interrupted."""
        self.progress.enter(State.FILLING, mirror.reason, above.reach)
        self.progress.goes_on(mirror.rows_done)
        splits = splits_of(self._core.store, business, mirror.begin)
        yield from self._take_full(business, above, splits, mirror.snapshot)

    def _begin_again(self, business: Business, above: Above, reason: str) -> Calls[None]:
        """Take the full data, and follow from its cut on."""
        self.progress.enter(State.FILLING, reason, above.reach)
        snapshot = yield OpenSnapshot(lease_s=LEASE_S, holder=above.group, where=self.where)
        try:
            self._check_network(above, snapshot.networks)
            check_filters(is_filtered=len(snapshot.where) == len(self.where), above=above.set)
            self._check_cut(business, snapshot)
            check_home(snapshot.home, homes.term_of(business.proposed.home), above.set)
            self.progress.fills()
            said = said_of(snapshot, above=above.set, network=above.network, only=self.only, reason=reason)
            yield Settle(future=self._core.mirrors.begin_full(business, said))
        except Exception:
            with suppress(VenusError):
                yield CloseSnapshot(snapshot_id=snapshot.snapshot_id)
            raise
        self._again = ""
        yield from self._take_full(business, above, snapshot.splits, snapshot.snapshot_id)

    def _check_cut(self, business: Business, snapshot: broker_pb2.Snapshot) -> None:
        """Raise Unavailable where consumers would not be told that other rows are here."""
        state, cut = business.proposed, (snapshot.epoch, snapshot.offset)
        changed = self._changed(state.mirror) if state.mirror is not None else ""
        changed = changed or self._other_rows(business, snapshot)
        with business.lock:
            groups = list(business.consumers)
        if waits := later_cut(changed, cut, (business.epoch_at_end, state.next_offset), groups):
            raise _LaterCut(waits)

    def _other_rows(self, business: Business, snapshot: broker_pb2.Snapshot) -> str:
        """Return that the sets above choose other rows now than those that are here, or an empty string."""
        here, there = self._core.subscriptions.rows.at(business, snapshot.offset), reports.said_in(snapshot)
        if here is None or there is None or not differing(here, there):
            return ""
        return f"set {there.set} has other rows than those that are here"

    def _take_full(
        self, business: Business, above: Above, splits: Sequence[broker_pb2.Split], snapshot_id: str
    ) -> Calls[None]:
        """Take rows to the end, then follow. A lost line can be gone on with; rows that are wrong cannot."""
        try:
            yield from fill(splits, self._core.mirrors, business, self.progress)
        except (ProtocolError, SnapshotExpired) as error:
            if not isinstance(error, IllegalTransition):
                self._again = str(error)
            raise
        yield from self._follow(business, above, snapshot_id)

    def _check_network(self, above: Above, networks: Collection[str]) -> None:
        """Refuse what comes from another network: another broker may answer now than the one that was looked at."""
        if networks and above.own and not set(networks) & set(above.own):
            self._again = ""  # whatever it said of positions is of no account
            raise Refused(
                f"who answers at {above.reach} belongs to another network (id {min(networks)}), this broker's data to "
                f"{min(above.own)}; correct [cluster] upstream, or give this broker an empty broker.data_dir"
            )

    def _follow(self, business: Business, above: Above, snapshot_id: str = "") -> Calls[None]:
        """Take what is committed above; a snapshot is let go once the queue is kept for us."""
        address, opened = yield from self._open(business)
        self._check_network(above, opened.networks)
        yield from self._hear(business, opened)
        if snapshot_id:
            yield CloseSnapshot(snapshot_id=snapshot_id)
        self.progress.enter(State.FOLLOWING, "", address)
        yield from self._take_all(business, above)

    def _hear(self, business: Business, opened: broker_pb2.Opened) -> Calls[None]:
        """Keep by which predicates the sets above choose, if that was not known or is another way to the same rows."""
        mirror, store = business.proposed.mirror, self._core.store
        if mirror is None or not opened.HasField("levels"):
            return
        levels = filter_wire.levels_from_wire(opened.levels)
        own = (mirror.where,) if mirror.where else ()
        if levels_of(store, business.number, mirror) != (opened.rows.set, levels + own):
            yield Settle(future=self._core.mirrors.heard(business, mirror.begin, opened.rows.set, levels))
            self._core.subscriptions.rows.forget(business)

    def _open(self, business: Business) -> Calls[tuple[str, broker_pb2.Opened]]:
        """Begin with the newest batch that is here: it shows whether the set above has the same history."""
        newest = places.newest(self._core.store, business)
        end, epoch = business.proposed.next_offset, business.epoch_at_end
        term = homes.term_of(business.proposed.home)
        where = business.proposed.mirror.where if business.proposed.mirror is not None else ()
        rows = self._core.subscriptions.rows
        if newest is not None and business.log_start <= newest.base_offset < end:
            with suppress(OffsetTrimmed):
                found: tuple[str, broker_pb2.Opened] = yield OpenStream(
                    offset=newest.base_offset, epoch=epoch, home_term=term, where=where,
                    rows=rows.for_mirror(business, newest.base_offset),
                )  # fmt: skip
                return found
        found = yield OpenStream(
            offset=end, epoch=epoch, home_term=term, where=where, rows=rows.for_mirror(business, end)
        )
        return found

    def _take_all(self, business: Business, above: Above) -> Calls[None]:
        going: deque[tuple[Future[int], int]] = deque()
        taken, passed_at = business.proposed.next_offset, self._monotonic()
        while True:
            yield from self._still(above, going)
            increments, position = yield Increments(wait_s=0.0 if going else WAIT_S)
            now = self._monotonic()
            check_mirror(business)
            if increments or (position > taken and now - passed_at > PASS_EVERY_S):
                self.progress.pulled(sum(len(increment.body) for increment in increments))
                future = self._core.mirrors.take(business, increments, position, sparse=bool(self.only), follows=taken)
                going.append((future, increments[-1].committed_at_us if increments else 0))
                taken, passed_at = position, now
            while going and (len(going) >= TAKES_AHEAD or not increments or going[0][0].done()):
                yield from self._taken(*going.popleft())
            if not going and position >= taken:
                self._whom.pulls()  # nothing is kept here that could have been compared

    def _still(self, above: Above, going: deque[tuple[Future[int], int]]) -> Calls[None]:
        """Go on only with the set that is to be pulled from: what has come is safe, and said to be, before another is.

        So the next session begins at an offset that the set that was left knows too. Raises _Moved.
        """
        if self._whom.still(above):
            return
        while going:
            yield from self._taken(*going.popleft())
        raise _Moved(f"set {above.set} is not pulled from any more")

    def _taken(self, future: Future[int], committed_at_us: int) -> Calls[None]:
        """Acknowledge above what is safe here."""
        reached = yield Settle(future=future)
        self._whom.pulls()  # what came first is the newest that was here: it was compared
        yield Acknowledge(offset=reached)
        if committed_at_us:
            self.progress.arrived(committed_at_us)


def fill(splits: Sequence[broker_pb2.Split], mirrors: Mirrors, business: Business, progress: Progress) -> Calls[None]:
    """Take what is missing of the full data that has begun; where it is, the log says."""
    mirror = business.proposed.mirror
    assert mirror is not None, "full data goes on that has begun"
    begin, number, rows = mirror.begin, mirror.chunks, mirror.rows_done
    at = Resume(bytes.fromhex(mirror.after), Totals(mirror.split_rows, mirror.split_digest))
    going: deque[Future[None]] = deque()
    for split in splits[mirror.split :]:
        ended = False
        while not ended:
            chunk = yield NextChunk(snapshot_id=mirror.snapshot, split=split, at=at)
            body = encode_chunk(chunk)
            going.append(mirrors.full_rows(business, begin, number, body))
            ended, number, rows = chunk.end, number + 1, rows + len(chunk.rows)
            progress.pulled(len(body), len(chunk.rows))
            while len(going) >= CHUNKS_AHEAD:
                yield Settle(future=going.popleft())
        at = Resume()
    for future in going:
        yield Settle(future=future)
    yield Settle(future=mirrors.end_full(business, begin, rows))


def splits_of(store: Store, business: Business, begin: int) -> Sequence[broker_pb2.Split]:
    """Return the key ranges of the full data that began with a log entry."""
    _, entry = next(iter(business.log.entries(store, begin, begin + 1)))
    return mirror_pb2.MirrorBegin.FromString(entry.body).splits


def said_of(
    snapshot: broker_pb2.Snapshot, *, above: str, network: str, only: Sequence[str], reason: str
) -> mirror_pb2.MirrorBegin:
    """Return what is logged of a snapshot that is taken."""
    return mirror_pb2.MirrorBegin(
        set=above,
        network=network,
        only=only,
        offset=snapshot.offset,
        epoch=snapshot.epoch,
        sequence=snapshot.sequence,
        last_batch=snapshot.last_batch,
        rows=sum(split.rows_estimate for split in snapshot.splits),
        reason=reason,
        schemas=snapshot.schemas,
        snapshot_id=snapshot.snapshot_id,
        splits=snapshot.splits,
        home=snapshot.home if snapshot.HasField("home") else None,
        where=snapshot.where,
        levels=snapshot.levels if snapshot.HasField("levels") else None,
    )


def check_filters(*, is_filtered: bool, above: str) -> None:
    """Refuse what nobody has judged by the predicates that were asked for."""
    if not is_filtered:
        raise Refused(
            f"set {above} is of a version that chooses no rows by [cluster.where]: update it, or remove the predicates"
        )


def check_home(said: broker_pb2.Home, home_term: int, above: str) -> None:
    """Take nothing that comes from an older home than the one that is known. Raises Unavailable."""
    if said.home_term < home_term:
        raise Unavailable(
            f"set {above} follows an older home, which was replaced (home term {said.home_term}, here {home_term})",
            hint="name brokers of the new home, or of sets below it, in [cluster] upstream",
        )


def check_mirror(business: Business) -> None:
    """Pull nothing once this set was promoted. Raises NotLeader."""
    home = business.proposed.home
    if home is not None and home.here:
        raise NotLeader(f"{business.name}: this set has become the home")
