"""The commit thread's side of replication: what may be proposed, what is safe, and what the log has now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from venus.broker.machine.business import Business
from venus.broker.pipeline.group import Group
from venus.broker.pipeline.shared_log import Backlog
from venus.errors import NotLeader, Unavailable
from venus.replication.messages import LogChanged

#: What an entry takes beside its bytes.
ENTRY_BYTES = 64
#: What of each log is kept in memory for its followers, and of all of them together, with an eighth more in between.
RECENT_BYTES = 8 << 20
RECENTS_BYTES = 64 << 20
TellLog = Callable[[str, LogChanged], None]
TellHalted = Callable[[str, str], None]


class Recent:
    """A run of entries without a gap; thread-safe. What is not here is read from the store."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: When it was extended last: a number that grows.
        self.used = 0
        self._lock = threading.Lock()
        self._first = 0
        self._values: list[bytes] = []
        self._nbytes = 0

    def extend(self, first: int, values: Sequence[bytes]) -> None:
        """Add entries from `first` on, which replace those that were there."""
        with self._lock:
            if not self._first <= first <= self._first + len(self._values):
                self._values, self._nbytes, self._first = [], 0, first
            self._cut(first)
            self._values += values
            self._nbytes += sum(map(len, values))
            self._make_room()

    @property
    def nbytes(self) -> int:
        """What it takes in memory, about."""
        return self._nbytes + ENTRY_BYTES * len(self._values)

    def clear(self) -> None:
        """Forget all of them; the next ones begin another run."""
        with self._lock:
            self._first, self._values, self._nbytes = self._first + len(self._values), [], 0

    def truncate(self, end: int) -> None:
        """Forget entries from `end` on."""
        with self._lock:
            self._cut(end)

    def take(self, first: int, bytes_max: int) -> tuple[bytes, ...] | None:
        """Return entries from `first` on, at least one and about `bytes_max`; () = none yet, None = not here."""
        with self._lock:
            at = first - self._first
            if not self._values or not 0 <= at <= len(self._values):
                return None
            return run(self._values, at, bytes_max)

    def _cut(self, end: int) -> None:
        at = max(end - self._first, 0)
        self._nbytes -= sum(map(len, self._values[at:]))
        del self._values[at:]

    def _make_room(self) -> None:
        gone = 0
        while self._nbytes > self._bytes_max and gone < len(self._values):
            self._nbytes -= len(self._values[gone])
            gone += 1
        del self._values[:gone]
        self._first += gone


def make_room(logs: Iterable[Recent], bytes_max: int) -> None:
    """Forget runs until all together take no more than this, first those whose logs were extended longest ago."""
    found = sorted(logs, key=lambda recent: recent.used)
    total = sum(recent.nbytes for recent in found)
    for recent in found:
        if total <= bytes_max:
            return
        total -= recent.nbytes
        recent.clear()


def run(values: Sequence[bytes], at: int, bytes_max: int) -> tuple[bytes, ...]:
    """Return values from `at` on, at least one if there is one, as long as they fit."""
    found: list[bytes] = []
    left = bytes_max
    for i in range(at, len(values)):
        left -= len(values[i])
        if found and left < 0:
            break
        found.append(values[i])
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Replaced as a whole after each step of a replica.

    `refusal` says why nothing can be written here, empty = it can; `leader` is an address, if one is known.
    """

    term: int = 0
    leads: bool = False
    hands_over: bool = False  # another broker leads in a moment: clients look for it, and do not take this one for away
    refusal: str = "the cluster has not been heard of yet"
    leader: str = ""
    high: int = 0
    leads_until: float = 0.0  # nobody else leads before this time of the lease's clock; 0 = it does not lead
    needed_from: int = 2**63  # the first entry that a follower of this leader does not have
    doubted: tuple[int, ...] = ()  # unclean terms of which nobody has said yet what they lost


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
