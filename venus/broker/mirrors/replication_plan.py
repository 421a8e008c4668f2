"""Replication protocol of one mirrored business: which requests it makes, and how it handles the answers. No I/O.

The mirror acknowledges only what is durable at this set, so the upstream set keeps everything that this set lacks. An
error ends the session, never the broker: the next session begins at the first offset that this set lacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress

from venus import errors
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.machine.mirror import Mirror, home_term_of, levels_from_wire
from venus.broker.machine.records import load_levels
from venus.broker.mirrors import session_requests as requests
from venus.broker.mirrors.topology_position import explain_late_cut
from venus.broker.mirrors.upstream_selection import UpstreamChoice, UpstreamEndpoint
from venus.broker.pipeline.mirror_commands import MirrorCommands
from venus.broker.queue import reader
from venus.broker.store.rocks import Store
from venus.codec.stored_rows import RowTotals, encode_chunk
from venus.network import row_filters
from venus.network.row_filters import RowFilter, find_differing
from venus.rpc import reports
from venus.rpc.snapshots import Resume
from venus.wire import broker_pb2, mirror_pb2

#: Maximum number of chunks queued for the commit thread.
CHUNKS_AHEAD = 8
#: Maximum number of groups of batches queued for the commit thread.
TAKES_AHEAD = 16
WAIT_S = 0.2
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
#: Minimum interval between two log entries that pass over offsets not meant for this set.
PASS_EVERY_S = 0.2
LEASE_S = 3600
#: Interval between attempts to get a later cut; each creates an upstream snapshot.
LATER_CUT_S = 5.0


class _CutTooEarly(errors.Unavailable):
    """Refuses a cut so early that consumers would not notice the changed selection of rows."""


class _UpstreamChanged(errors.Unavailable):
    """Ends the session because another upstream set was chosen."""


class ReplicationPlan:
    """State of one business. The driver runs `session` until it fails, reports the error, and retries after `wait_s`.

    `may_pull` raises NotLeader or Unavailable if another broker of the set pulls.
    """

    def __init__(
        self,
        core: Core,
        business: str,
        only: tuple[str, ...],
        choice: UpstreamChoice,
        may_pull: Callable[[str], None],
        monotonic: Callable[[], float],
        where: tuple[RowFilter, ...] = (),
    ) -> None:
        self.business, self.only, self.where = business, only, where
        self.progress = requests.ReplicatorProgress(core.clock_us)
        self.wait_s = RETRY_FIRST_S
        #: The upstream set of this session, once it is chosen.
        self.at: UpstreamEndpoint | None = None
        self._core, self._choice, self._may_pull, self._monotonic = core, choice, may_pull, monotonic
        self._again = ""  # why a new full copy is needed
        self._began_at = monotonic()

    def session(self) -> requests.Calls[None]:
        """Yield the requests of one session: fill the mirror if needed, then follow the queue until an error."""
        self._began_at, self.at = self._monotonic(), None
        self._may_pull(self.business)
        mirrors = self._core.mirrors
        business = mirrors.enter(self.business)
        try:
            check_mirror(business)
            above = self.at = self._choice.choose_upstream()
            mirror = business.proposed.mirror
            reason = self._fill_reason(business, mirror)
            if reason is None:
                yield from self._follow(business, above)
            elif mirror is not None and (yield from self._can_resume(business, above, mirror)):
                yield from self._resume(business, above, mirror)
            else:
                yield from self._fill_again(business, above, reason)
        finally:
            mirrors.leave(business)

    def on_end(self, error: errors.VenusError) -> bool:
        """Handle the error that ended a session. Return True if the state of the mirror changed."""
        lasted_s = self._monotonic() - self._began_at
        longer_s = min(
            max(2 * self.wait_s, RETRY_FIRST_S), RETRY_MAX_S
        )  # a move to another set does not increase the delay
        self.wait_s = RETRY_FIRST_S if lasted_s > RETRY_MAX_S else longer_s
        if isinstance(error, _UpstreamChanged):
            self.wait_s = 0.0
            return False
        if self.at is not None and not self._choice.is_current(self.at):
            self.wait_s = RETRY_FIRST_S  # another set is in use by now; it may have what the failed one lacks
            return False
        if self.at is not None and not isinstance(error, _CutTooEarly) and self._choice.record_end(self.at, error):
            self.wait_s = RETRY_FIRST_S
            return False
        match error:
            case errors.OffsetTrimmed() | errors.OffsetDiverged():
                self._again = str(error)
            case _CutTooEarly():
                self.wait_s = LATER_CUT_S
                return self.progress.enter(requests.MirrorState.WAITING, str(error))
            case errors.NotLeader():
                self.progress.enter(requests.MirrorState.ELSEWHERE, str(error))
                return False
        if isinstance(error, errors.Refused | errors.Diverged) and not self._again:
            state = requests.MirrorState.REFUSED
        elif isinstance(error, errors.Unavailable) and self._has_full_data():
            state = requests.MirrorState.CUT_OFF
        else:
            state = requests.MirrorState.WAITING
        return self.progress.enter(state, str(error))

    def _has_full_data(self) -> bool:
        with suppress(errors.VenusError):
            mirror = self._core.catalogue.find(self.business).committed.mirror
            return mirror is not None and mirror.end > 0
        return False

    def _fill_reason(self, business: Business, mirror: Mirror | None) -> str | None:
        """Return why a full copy is needed: "" = the first one, None = none is needed."""
        if mirror is None:
            return f"{business.proposed.home} has replaced this home" if business.proposed.is_replaced else ""
        if changed := self._find_change(mirror):
            return changed
        if not mirror.end:
            return self._again or mirror.reason or "it was interrupted"
        return self._again or None

    def _find_change(self, mirror: Mirror) -> str:
        """Return which setting has changed since the full copy began, or an empty string."""
        if mirror.only != self.only:
            return "the labels have changed"
        return "" if row_filters.is_same(mirror.where, self.where) else "the predicates have changed"

    def _can_resume(self, business: Business, above: UpstreamEndpoint, mirror: Mirror) -> requests.Calls[bool]:
        """Return whether an interrupted full copy can continue. Release a snapshot that is no longer useful."""
        if mirror.end or not mirror.snapshot:
            return False
        if self._find_change(mirror) or self._again:
            with suppress(errors.VenusError):
                yield requests.CloseSnapshot(snapshot_id=mirror.snapshot)
            return False
        try:
            found = yield requests.RenewSnapshot(snapshot_id=mirror.snapshot)
        except errors.VenusError as error:
            if error.retryable:
                raise
            return False
        self._check_network(above, found.networks)
        check_home(found.home, home_term_of(business.proposed.home), above.set)
        return bool((found.offset, found.sequence) == (mirror.offset, mirror.sequence))

    def _resume(self, business: Business, above: UpstreamEndpoint, mirror: Mirror) -> requests.Calls[None]:
        """Continue an interrupted full copy."""
        self.progress.enter(requests.MirrorState.FILLING, mirror.reason, above.reach)
        self.progress.record_resume(mirror.rows_done)
        splits = read_splits(self._core.store, business, mirror.begin)
        yield from self._fill_and_follow(business, above, splits, mirror.snapshot)

    def _fill_again(self, business: Business, above: UpstreamEndpoint, reason: str) -> requests.Calls[None]:
        """Copy the full data, then follow from its cut on."""
        self.progress.enter(requests.MirrorState.FILLING, reason, above.reach)
        snapshot = yield requests.OpenSnapshot(lease_s=LEASE_S, holder=above.group, where=self.where)
        try:
            self._check_network(above, snapshot.networks)
            check_filters(is_filtered=len(snapshot.where) == len(self.where), above=above.set)
            self._check_cut(business, snapshot)
            check_home(snapshot.home, home_term_of(business.proposed.home), above.set)
            self.progress.record_fill()
            said = build_begin_entry(snapshot, above=above.set, network=above.network, only=self.only, reason=reason)
            yield requests.WaitForCommit(future=self._core.mirrors.begin_full_data(business, said))
        except Exception:
            with suppress(errors.VenusError):
                yield requests.CloseSnapshot(snapshot_id=snapshot.snapshot_id)
            raise
        self._again = ""
        yield from self._fill_and_follow(business, above, snapshot.splits, snapshot.snapshot_id)

    def _check_cut(self, business: Business, snapshot: broker_pb2.Snapshot) -> None:
        """Raise Unavailable if the cut is so early that consumers would not notice the changed selection of rows."""
        state, cut = business.proposed, (snapshot.epoch, snapshot.offset)
        changed = self._find_change(state.mirror) if state.mirror is not None else ""
        changed = changed or self._describe_other_rows(business, snapshot)
        with business.lock:
            groups = list(business.consumers)
        if waits := explain_late_cut(changed, cut, (business.epoch_at_end, state.next_offset), groups):
            raise _CutTooEarly(waits)

    def _describe_other_rows(self, business: Business, snapshot: broker_pb2.Snapshot) -> str:
        """Return, as text, the upstream set whose selection of rows differs from this mirror's; empty = none."""
        here, there = self._core.subscriptions.rows.at(business, snapshot.offset), reports.rows_identity(snapshot)
        if here is None or there is None or not find_differing(here, there):
            return ""
        return f"set {there.set} has other rows than those that are here"

    def _fill_and_follow(
        self, business: Business, above: UpstreamEndpoint, splits: Sequence[broker_pb2.Split], snapshot_id: str
    ) -> requests.Calls[None]:
        """Copy the rest, then follow. A lost connection keeps the copy; wrong rows or an expired lease discard it."""
        try:
            yield from fill_mirror(splits, self._core.mirrors, business, self.progress)
        except (errors.ProtocolError, errors.SnapshotExpired) as error:
            if not isinstance(error, errors.IllegalTransition):
                self._again = str(error)
            raise
        yield from self._follow(business, above, snapshot_id)

    def _check_network(self, above: UpstreamEndpoint, networks: Collection[str]) -> None:
        """Refuse an answer from another network: the broker at this address may not be the one that was polled."""
        if networks and above.own and not set(networks) & set(above.own):
            self._again = ""  # positions of another network mean nothing here
            raise errors.Refused(
                f"the broker at {above.reach} belongs to another network (id {min(networks)}), this broker's data to "
                f"{min(above.own)}; correct [cluster] upstream, or give this broker an empty broker.data_dir"
            )

    def _follow(self, business: Business, above: UpstreamEndpoint, snapshot_id: str = "") -> requests.Calls[None]:
        """Follow the upstream queue. Release the snapshot once the upstream keeps the queue for this mirror."""
        address, opened = yield from self._open(business)
        self._check_network(above, opened.networks)
        yield from self._store_levels(business, opened)
        if snapshot_id:
            yield requests.CloseSnapshot(snapshot_id=snapshot_id)
        self.progress.enter(requests.MirrorState.FOLLOWING, "", address)
        yield from self._follow_stream(business, above)

    def _store_levels(self, business: Business, opened: broker_pb2.Opened) -> requests.Calls[None]:
        """Store the filters of the upstream sets if they have changed, or now select the same rows in another way."""
        mirror, store = business.proposed.mirror, self._core.store
        if mirror is None or not opened.HasField("levels"):
            return
        levels = levels_from_wire(opened.levels)
        own = (mirror.where,) if mirror.where else ()
        if load_levels(store, business.number, mirror) != (opened.rows.set, levels + own):
            yield requests.WaitForCommit(
                future=self._core.mirrors.record_levels(business, mirror.begin, opened.rows.set, levels)
            )
            self._core.subscriptions.rows.invalidate(business)

    def _open(self, business: Business) -> requests.Calls[tuple[str, broker_pb2.Opened]]:
        """Open the stream at the newest local batch, which shows whether the upstream has the same history."""
        newest = reader.find_newest(self._core.store, business)
        end, epoch = business.proposed.next_offset, business.epoch_at_end
        term = home_term_of(business.proposed.home)
        where = business.proposed.mirror.where if business.proposed.mirror is not None else ()
        rows = self._core.subscriptions.rows
        if newest is not None and business.log_start <= newest.base_offset < end:
            with suppress(errors.OffsetTrimmed):
                found: tuple[str, broker_pb2.Opened] = yield requests.OpenStream(
                    offset=newest.base_offset,
                    epoch=epoch,
                    home_term=term,
                    where=where,
                    rows=rows.for_mirror(business, newest.base_offset),
                )
                return found
        found = yield requests.OpenStream(
            offset=end, epoch=epoch, home_term=term, where=where, rows=rows.for_mirror(business, end)
        )
        return found

    def _follow_stream(self, business: Business, above: UpstreamEndpoint) -> requests.Calls[None]:
        """Receive increments, hand them to the commit thread, and acknowledge those that are durable."""
        going: deque[tuple[Future[int], int]] = deque()
        taken, passed_at = business.proposed.next_offset, self._monotonic()
        while True:
            yield from self._check_upstream(above, going)
            increments, position = yield requests.WaitForIncrements(wait_s=0.0 if going else WAIT_S)
            now = self._monotonic()
            check_mirror(business)
            if increments or (position > taken and now - passed_at > PASS_EVERY_S):
                self.progress.record_pulled(sum(len(increment.body) for increment in increments))
                future = self._core.mirrors.take_increments(
                    business, increments, position, sparse=bool(self.only), follows=taken
                )
                going.append((future, increments[-1].committed_at_us if increments else 0))
                taken, passed_at = position, now
            while going and (len(going) >= TAKES_AHEAD or not increments or going[0][0].done()):
                yield from self._acknowledge_taken(*going.popleft())
            if not going and position >= taken:
                self._choice.record_success()  # there is no local batch to compare

    def _check_upstream(self, above: UpstreamEndpoint, going: deque[tuple[Future[int], int]]) -> requests.Calls[None]:
        """Raise _UpstreamChanged if another upstream set was chosen, once received data is durable and acknowledged.

        The next session then begins at an offset that the previous upstream set knows too.
        """
        if self._choice.is_current(above):
            return
        while going:
            yield from self._acknowledge_taken(*going.popleft())
        raise _UpstreamChanged(f"set {above.set} is no longer in use")

    def _acknowledge_taken(self, future: Future[int], committed_at_us: int) -> requests.Calls[None]:
        """Wait until received increments are durable, then acknowledge them to the upstream set."""
        reached = yield requests.WaitForCommit(future=future)
        self._choice.record_success()  # the first batch received was compared with the newest local one
        yield requests.Acknowledge(offset=reached)
        if committed_at_us:
            self.progress.record_arrival(committed_at_us)


def fill_mirror(
    splits: Sequence[broker_pb2.Split],
    mirrors: MirrorCommands,
    business: Business,
    progress: requests.ReplicatorProgress,
) -> requests.Calls[None]:
    """Copy the missing rest of a full copy; the log records its progress."""
    mirror = business.proposed.mirror
    assert mirror is not None, "a full copy has begun"
    begin, number, rows = mirror.begin, mirror.chunks, mirror.rows_done
    at = Resume(bytes.fromhex(mirror.after), RowTotals(mirror.split_rows, mirror.split_digest))
    going: deque[Future[None]] = deque()
    for split in splits[mirror.split :]:
        ended = False
        while not ended:
            chunk = yield requests.NextChunk(snapshot_id=mirror.snapshot, split=split, at=at)
            body = encode_chunk(chunk)
            going.append(mirrors.take_full_rows(business, begin, number, body))
            ended, number, rows = chunk.end, number + 1, rows + len(chunk.rows)
            progress.record_pulled(len(body), len(chunk.rows))
            while len(going) >= CHUNKS_AHEAD:
                yield requests.WaitForCommit(future=going.popleft())
        at = Resume()
    for future in going:
        yield requests.WaitForCommit(future=future)
    yield requests.WaitForCommit(future=mirrors.end_full_data(business, begin, rows))


def read_splits(store: Store, business: Business, begin: int) -> Sequence[broker_pb2.Split]:
    """Read the key ranges of the full copy that began with the log entry `begin`."""
    _, entry = next(iter(business.log.read_entries(store, begin, begin + 1)))
    return mirror_pb2.MirrorBegin.FromString(entry.body).splits


def build_begin_entry(
    snapshot: broker_pb2.Snapshot, *, above: str, network: str, only: Sequence[str], reason: str
) -> mirror_pb2.MirrorBegin:
    """Return the log entry for the beginning of a full copy."""
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
    """Raise Refused if the upstream did not evaluate the requested predicates."""
    if not is_filtered:
        raise errors.Refused(
            f"set {above} has a version without support for [cluster.where]: update it, or remove the predicates"
        )


def check_home(said: broker_pb2.Home, home_term: int, above: str) -> None:
    """Raise Unavailable if the upstream follows an older home than the newest known one."""
    if said.home_term < home_term:
        raise errors.Unavailable(
            f"set {above} follows an older home, which was replaced (home term {said.home_term}, here {home_term})",
            hint="name brokers of the new home, or of sets below it, in [cluster] upstream",
        )


def check_mirror(business: Business) -> None:
    """Raise NotLeader if this set was promoted."""
    home = business.proposed.home
    if home is not None and home.here:
        raise errors.NotLeader(f"{business.name}: this set has become the home")
