"""The commit thread's side of replication: what may be proposed, what is safe, and what the log has now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from venus.broker.machine.business import Business
from venus.broker.pipeline.group import Group
from venus.broker.pipeline.shared_log import Backlog
from venus.broker.replicas.recent import Recent, make_room
from venus.broker.replicas.standing import Standing
from venus.errors import NotLeader, Unavailable
from venus.replication.messages import LogChanged

#: What of each log is kept in memory for its followers, and of all of them together, with an eighth more in between.
RECENT_BYTES = 8 << 20
RECENTS_BYTES = 64 << 20

TellLog = Callable[[str, LogChanged], None]
TellHalted = Callable[[str, str], None]


class ReplicatedLogs:
    """A `SharedLog`. The host publishes standings, the commit thread looks at them; neither waits for the other."""

    def __init__(self, *, backlog_bytes: int = 1 << 30) -> None:
        self._backlog_bytes = backlog_bytes
        self._standings: dict[str, Standing] = {}
        self._recent: dict[str, Recent] = {}
        self._written = self._written_bytes = 0  # runs of entries, and what they take since room was made
        #: By name: the number of the business, and the newest order of its replica that was carried out.
        self._done: dict[str, tuple[int, int]] = {}
        self._tell: TellLog = lambda _business, _position: None
        self._tell_halted: TellHalted = lambda _business, _reason: None

    # -- for the host ----------------------------------------------------------------------------------------------

    def tell(self, changed: TellLog, halted: TellHalted = lambda _business, _reason: None) -> None:
        """Say where logs stand to `changed`, and why a replica stops to `halted`, from the commit thread."""
        self._tell, self._tell_halted = changed, halted

    def publish(self, business: str, standing: Standing) -> None:
        """Let the broker know how a replica stands."""
        self._recent.setdefault(business, Recent(RECENT_BYTES))
        self._standings[business] = standing

    def forget(self, business: str) -> None:
        """Forget a replica that was removed."""
        self._standings.pop(business, None)
        self._recent.pop(business, None)
        self._done.pop(business, None)

    def standing(self, business: str) -> Standing:
        """Return how a replica stands."""
        return self._standings.get(business) or Standing()

    def recent(self, business: str) -> Recent | None:
        """Return the newest entries of a replica."""
        return self._recent.get(business)

    # -- for the commit thread -------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Yes."""
        return True

    def watermark(self, business: Business) -> int:
        """Return the newest index that is safe as far as is known; what is applied is."""
        standing = self._standings.get(business.name)
        return max(standing.high, business.log.applied) if standing is not None else business.log.applied

    def term(self, business: Business) -> int:
        """Return the term in which this broker leads. Raises NotLeader, Unavailable."""
        standing = self.standing(business.name)
        if standing.refusal:
            raise refused(business.name, standing)
        if business.log.terms.newest != standing.term:
            raise Unavailable(f"{business.name}: this broker begins to lead", hint="try again in a moment")
        return standing.term

    def leads(self, business: Business) -> bool:
        """Whether this broker leads the business, as far as it knows."""
        return self.standing(business.name).leads

    def knows_end(self, business: Business, now: float) -> bool:
        """Whether this broker certainly leads, and shows everything that was safe when it began to."""
        standing, terms = self.standing(business.name), business.log.terms
        if now >= standing.leads_until or terms.newest != standing.term or not terms.starts:
            return False
        return business.visible_through >= max(terms.starts[-1][1], standing.high)

    def halted(self, business: Business) -> None:
        """Let the host know that a replica has stopped."""
        self._tell_halted(business.name, business.halted)

    def backlog(self, business: Business) -> Backlog:
        """Return what the followers of this broker still need."""
        return Backlog(needed_from=self.standing(business.name).needed_from, bytes_max=self._backlog_bytes)

    def written(self, business: Business, first: int, stored: Sequence[bytes]) -> None:
        """Keep entries for the followers, and say that they are there, though not on disk."""
        recent = self._recent.get(business.name)
        if recent is not None:
            self._written += 1
            recent.used = self._written
            recent.extend(first, stored)
            self._make_room(sum(map(len, stored)))
            self._tell(business.name, position_of(business, self._order_of(business)))

    def changed(self, business: Business) -> None:
        """Say where the log stands."""
        recent = self._recent.get(business.name)
        if recent is not None:
            recent.truncate(business.log.end)
            self._tell(business.name, position_of(business, self._order_of(business)))

    def _make_room(self, nbytes: int) -> None:
        """Look now and then whether all logs together have more in memory than they may."""
        self._written_bytes += nbytes
        if self._written_bytes > RECENTS_BYTES // 8:
            self._written_bytes = 0
            make_room(list(self._recent.values()), RECENTS_BYTES)

    def _order_of(self, business: Business) -> int:
        number, order = self._done.get(business.name, (0, 0))
        return order if number == business.number else 0

    def ordered(self, group: Group, business: Business, order: int) -> None:
        """Note an order of the replica that a group carries out, or gives up: where the log stands is told after it."""
        self._done[business.name] = business.number, order
        group.log_changed.add(business)


def refused(business: str, standing: Standing) -> Unavailable:
    """Return the error for somebody who wants to write where that cannot be done now."""
    text = f"{business}: {standing.refusal}"
    if standing.leads and not standing.hands_over:
        return Unavailable(text, hint="it goes on by itself when enough replicas are there: `venus status` shows them")
    return NotLeader(text, leader=standing.leader)


def position_of(business: Business, done: int = 0) -> LogChanged:
    """Return where the log of a business stands, and which order was carried out last."""
    log = business.log
    durable_end = min(log.durable_end, log.end)
    return LogChanged(start=log.start, end=log.end, durable_end=durable_end, terms=log.terms, done=done)
