"""Matching of this broker's subscriptions at other brokers (SREM 4), as a function that it can always carry out itself.

The content of a table is partitioned (venus/network/matching/spaces.py). Each subspace is hashed to a top cluster. Its
brokers get the interests under a lease that is renewed. Changes go to one of them, the least loaded first. Without a
good answer within the deadline another one is asked, and then this broker matches itself. An answer counts only if it
is from the interests that this broker has, so a failure costs time and never a verdict.

Subscriptions change and changes are matched in any thread but the event loop's, which has the calls and the leases.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from venus.broker.matching.matching_load import MatchedEvents, MatchingLoad
from venus.broker.matching.messages import CHANGES_MAX, Missing
from venus.network.matching.installed import InstallationMessage, InstalledPart
from venus.network.matching.interests import NONE, Events, Ids, Interest, Matches
from venus.network.matching.spaces import ContentSpace, Subspace, encode_events
from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import RoutingResult, Silent

logger = logging.getLogger(__name__)

#: Candidates that are asked before this broker matches itself.
ATTEMPTS = 2
#: A candidate that did not answer is left alone for so long.
SUSPENDED_S = 2.0
#: Beyond the deadlines of the candidates: the event loop itself may be busy.
MARGIN_S = 0.5
#: Interests of one installation; more go in several messages.
INTERESTS_PER_MESSAGE = 2000
#: A lease is longer by so many rounds of installation: with very many interests a round outlasts the configured one.
ROUNDS_OF_LEASE = 3
LEASE_S_MAX = 3600.0
PARTS_PER_MESSAGE = 500
#: Subspaces for each top cluster, so that their sizes even out.
SUBSPACES_PER_CLUSTER = 16
#: A difference in load below this is none: candidates then take turns by what they were given.
LOAD_STEP = 0.05

_Place = tuple[str, str]  # table and path of a subspace
Asked = tuple[MatchedEvents, Ids]  # changes of one subspace, and their numbers in the batch


class OverlayCalls(Protocol):
    """What remote matching needs of the overlay, in its event loop."""

    async def install(self, target: Identifier, installation: InstallationMessage) -> RoutingResult[Missing]:
        """Install subscriptions at the cluster nearest to a target."""

    async def match(
        self, to: str, asked: Sequence[MatchedEvents], timeout_s: float
    ) -> tuple[list[Matches | None], float]:
        """Have changes matched by a broker. Raises Silent."""

    def submit(self, work: Coroutine[Any, Any, list[Matches | None]]) -> Future[list[Matches | None]]:
        """Start a coroutine in the event loop, from another thread. Raises RuntimeError if the loop has ended."""

    def post(self, call: Callable[[], object]) -> None:
        """Run a call in the event loop, from any thread."""

    async def run_blocking(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call in another thread."""


@dataclass(slots=True)
class Candidate:
    """A broker of a responsible cluster."""

    load: float = 0.0
    pairs: int = 0
    suspended_until: float = 0.0


@dataclass(slots=True)
class MatchingCounters:
    """What happened to batches since the start."""

    asked: int = 0  # requests to other brokers
    changes_elsewhere: int = 0
    changes_here: int = 0
    unanswered: int = 0
    unknown: int = 0
    installed: int = 0  # interests sent, each once for a cluster


@dataclass(slots=True)
class _InstalledState:
    """What the responsible cluster has of a subspace."""

    digest: int = 0
    numbers: frozenset[int] = frozenset()
    is_known: bool = False


@dataclass(slots=True)
class _Table:
    space: ContentSpace
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Used in the event loop's calls alone.
    installed: defaultdict[str, _InstalledState] = field(default_factory=lambda: defaultdict(_InstalledState))


class SharedTable:
    """The interests of one table, for the code that owns its subscriptions. Not for the event loop's thread."""

    def __init__(self, owner: RemoteMatching, name: str) -> None:
        self._owner, self._name = owner, name

    def add(self, number: int, interest: Interest) -> None:
        """Add an interest under a number of its own."""
        self._owner.add(self._name, number, interest)

    def remove(self, number: int) -> None:
        """Remove an interest."""
        self._owner.remove(self._name, number)

    def match(self, events: Events) -> Matches | None:
        """Return each pair of a change and the number of a present interest; None = there are few: match them here."""
        return self._owner.match_shared(self._name, events)


class RemoteMatching:
    """The subscriptions of this broker, by table, and their matching."""

    def __init__(
        self,
        shape: CloudShape,
        calls: OverlayCalls,
        load: MatchingLoad,
        *,
        lease_s: float,
        deadline_s: float,
        local_interests_max: int,
        monotonic: Callable[[], float],
        thread_time: Callable[[], float],
    ) -> None:
        self._shape, self._calls, self._load = shape, calls, load
        self._lease_s, self._deadline_s, self._few = lease_s, deadline_s, local_interests_max
        self._monotonic, self._thread_time = monotonic, thread_time
        self._tables: dict[str, _Table] = {}
        self._tables_lock = threading.Lock()
        self._responsible: dict[Identifier, list[str]] = {}
        self.candidates: defaultdict[str, Candidate] = defaultdict(Candidate)
        self.counters = MatchingCounters()
        self.origin = ""
        #: Set in the event loop when something is to be installed before the next renewal.
        self.wake = asyncio.Event()
        self._is_woken = False
        self._round_s = 0.0  # of the last installation of everything
        #: Subspaces that other brokers should have, and how many of them no cluster has as they are; of the last round.
        self.subspaces = self.uninstalled = 0

    # -- the subscriptions -----------------------------------------------------------------------------------------

    def add(self, table: str, number: int, interest: Interest) -> None:
        """Add an interest of a table under a number of its own."""
        with self._tables_lock:
            known = self._tables.get(table)
            if known is None:
                space = ContentSpace(SUBSPACES_PER_CLUSTER * self._shape.clusters)
                known = self._tables[table] = _Table(space)
        with known.lock:
            known.space.add(number, interest)
            is_shared = len(known.space) > self._few
        if is_shared:
            self._wake_soon()

    def remove(self, table: str, number: int) -> None:
        """Remove an interest."""
        known = self._tables.get(table)
        if known is None:
            return
        with known.lock:
            known.space.remove(number)
            is_empty = not len(known.space)
        if is_empty:
            with self._tables_lock:
                self._tables.pop(table, None)

    def _wake_soon(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._calls.post(self.wake.set)

    # -- matching --------------------------------------------------------------------------------------------------

    def match_shared(self, table: str, events: Events) -> Matches | None:
        """Match changes, None if the table has so few interests that a message costs more than comparing them."""
        known = self._tables.get(table)
        return self.match(table, events) if known is not None and len(known.space) > self._few else None

    def match(self, table: str, events: Events) -> Matches:
        """Return each pair of a change and the number of an interest that was there when this was called."""
        known = self._tables.get(table)
        if known is None or not events.count:
            return NONE
        encoded = encode_events(events)
        asked: list[tuple[Identifier, Asked]] = []
        with known.lock:
            for leaf, rows in known.space.locate(encoded) if len(known.space) > self._few else ():
                target = self._shape.identifier_of(f"{table} {leaf.path}")
                for at in range(0, len(rows), CHANGES_MAX):
                    part = rows[at : at + CHANGES_MAX]
                    asked.append((target, (_matched_events(table, leaf, encoded.select(part)), part)))
        if not asked and len(known.space) > self._few:
            return NONE
        answers = self._wait_for(asked)
        found = [
            Matches(rows[answer.events], answer.interests)
            for (_, (_, rows)), answer in zip(asked, answers, strict=True)
            if answer is not None
        ]
        left = [rows for (_, (_, rows)), answer in zip(asked, answers, strict=True) if answer is None]
        if left or not asked:
            found += self._match_here(known, encoded, np.concatenate(left) if left else np.arange(events.count))
        return _join(found)

    def _wait_for(self, asked: Sequence[tuple[Identifier, Asked]]) -> list[Matches | None]:
        """Return what other brokers have found for each part; None = nothing in time."""
        if not asked or not self._responsible:
            return [None] * len(asked)
        work = self._ask_all(asked)
        try:
            future = self._calls.submit(work)
        except RuntimeError:  # the event loop has ended
            work.close()
            return [None] * len(asked)
        try:
            return future.result(ATTEMPTS * self._deadline_s + MARGIN_S)
        except (TimeoutError, CancelledError):
            future.cancel()
        except Exception:
            logger.exception("overlay: a request failed; the changes are matched here")
        return [None] * len(asked)

    def _match_here(self, table: _Table, events: Events, rows: Ids) -> list[Matches]:
        """Match changes with the interests as they are now, which may have moved to other subspaces."""
        own = events.select(rows)
        with table.lock:
            work = [
                (leaf.prepare(own.select(inside)), inside, len(leaf.interests))
                for leaf, inside in table.space.locate(own)
            ]
        self.counters.changes_here += len(rows)
        found = []
        for index, inside, interests in work:
            began = self._thread_time()
            one = index.match(own.select(inside))
            self._load.record(len(inside), interests, self._thread_time() - began, self._monotonic())
            found.append(Matches(rows[inside[one.events]], one.interests))
        return found

    # -- in the event loop: requests -------------------------------------------------------------------------------

    async def _ask_all(self, asked: Sequence[tuple[Identifier, Asked]]) -> list[Matches | None]:
        by_target: defaultdict[Identifier, list[int]] = defaultdict(list)
        for number, (target, _) in enumerate(asked):
            by_target[target].append(number)
        answers: list[Matches | None] = [None] * len(asked)

        async def ask_cluster(target: Identifier, left: list[int]) -> None:
            for _ in range(ATTEMPTS):
                address = self._choose(target)
                if address is None or not left:
                    return
                found = await self._ask(address, [asked[number][1][0] for number in left])
                for number, answer in zip(left, found, strict=True):
                    answers[number] = answer
                left = [number for number in left if answers[number] is None]

        await asyncio.gather(*(ask_cluster(target, numbers) for target, numbers in by_target.items()))
        return answers

    def _choose(self, target: Identifier) -> str | None:
        """Return the least loaded candidate of a cluster; of equal ones that which was given least."""
        now = self._monotonic()
        able = [
            (round(one.load / LOAD_STEP), one.pairs, address)
            for address in self._responsible.get(target, ())
            if (one := self.candidates[address]).suspended_until <= now
        ]
        return min(able)[2] if able else None

    async def _ask(self, address: str, asked: Sequence[MatchedEvents]) -> Sequence[Matches | None]:
        candidate = self.candidates[address]
        candidate.pairs += sum(one.pairs for one in asked)
        self.counters.asked += 1
        try:
            answers, candidate.load = await self._calls.match(address, asked, self._deadline_s)
        except Silent:
            self.counters.unanswered += 1
            candidate.suspended_until = self._monotonic() + SUSPENDED_S
            self.wake.set()
            return [None] * len(asked)
        unknown = [one for one, answer in zip(asked, answers, strict=True) if answer is None]
        if unknown:
            self.wake.set()  # the next installation finds what is missing there
            self.counters.unknown += len(unknown)
            candidate.suspended_until = self._monotonic() + SUSPENDED_S / 4
        self.counters.changes_elsewhere += sum(one.events.count for one in asked) - sum(
            one.events.count for one in unknown
        )
        return answers

    # -- in the event loop: installation ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Install what has changed at once, and renew the leases in time."""
        while True:
            self.wake.clear()
            await self.install_all()
            try:
                async with asyncio.timeout(self._lease_s / 3):
                    await self.wake.wait()
                await asyncio.sleep(min(0.2, self._lease_s / 10))  # subscriptions come together
            except TimeoutError:
                pass

    async def install_all(self) -> None:
        """Install each subspace at its cluster, or renew its lease there."""
        self._is_woken = False
        began = self._monotonic()
        by_target = await self._calls.run_blocking(self._plan)
        await asyncio.gather(*(self._install_at(target, names) for target, names in by_target.items()))
        self._round_s = self._monotonic() - began
        living = {address for members in self._responsible.values() for address in members}
        for address in self.candidates.keys() - living:
            del self.candidates[address]
        self.subspaces, self.uninstalled = await self._calls.run_blocking(self.count_subspaces)

    def _plan(self) -> dict[Identifier, list[_Place]]:
        """Return the subspaces for each target. Not in the event loop."""
        by_target: defaultdict[Identifier, list[_Place]] = defaultdict(list)
        for name, table in list(self._tables.items()):
            with table.lock:
                for path in table.installed.keys() - table.space.subspaces.keys():
                    del table.installed[path]
                if len(table.space) <= self._few:
                    continue
                for path, leaf in table.space.subspaces.items():
                    if leaf.interests:
                        by_target[self._shape.identifier_of(f"{name} {path}")].append((name, path))
        return by_target

    def count_subspaces(self) -> tuple[int, int]:
        """Return how many subspaces others should have, and how many no cluster has as they are. Not in the loop."""
        found = missing = 0
        for table in list(self._tables.values()):
            with table.lock:
                leaves = table.space.subspaces.items() if len(table.space) > self._few else ()
                for path, leaf in leaves:
                    if leaf.interests:
                        state = table.installed[path]
                        found += 1
                        missing += not state.is_known or state.digest != leaf.digest
        return found, missing

    async def _install_at(self, target: Identifier, names: Sequence[_Place]) -> None:
        waiting: list[_Place] = list(names)
        lease_s = min(LEASE_S_MAX, self._lease_s + ROUNDS_OF_LEASE * self._round_s)
        for _ in range(2):  # what is missing at a member is sent once more, as a whole
            missing: list[_Place] = []
            while waiting:
                chosen, parts = await self._calls.run_blocking(partial(self._take_parts, waiting))
                if not parts:
                    continue
                result = await self._calls.install(
                    target, InstallationMessage(origin=self.origin, lease_s=lease_s, parts=tuple(parts))
                )
                self._responsible[target] = [one.address for one in result.members]
                missing += self._record_installed(chosen, parts, result)
            waiting = missing

    def _take_parts(self, waiting: list[_Place]) -> tuple[list[_Place], list[InstalledPart]]:
        """Take subspaces off the list up to the size of one message."""
        chosen: list[_Place] = []
        parts: list[InstalledPart] = []
        interests = 0
        while waiting and len(parts) < PARTS_PER_MESSAGE and interests < INTERESTS_PER_MESSAGE:
            name, path = waiting.pop()
            table = self._tables.get(name)
            if table is None:
                continue
            with table.lock:
                leaf = table.space.subspaces.get(path)
                if leaf is None:
                    continue
                parts.append(_change(name, leaf, table.installed[path]))
            chosen.append((name, path))
            interests += len(parts[-1].added)
        self.counters.installed += interests
        return chosen, parts

    def _record_installed(
        self, chosen: Sequence[_Place], parts: Sequence[InstalledPart], result: RoutingResult[Missing]
    ) -> list[_Place]:
        """Record what a cluster has; return what some member lacks."""
        lacking = {number for missing in result.results for number in missing}
        for number, ((name, path), part) in enumerate(zip(chosen, parts, strict=True)):
            table = self._tables.get(name)
            if table is None:
                continue
            state = table.installed[path]
            before = frozenset() if part.is_whole else state.numbers
            state.numbers = (before - frozenset(part.removed)) | {found for found, _ in part.added}
            state.digest, state.is_known = part.digest, number not in lacking
        return [chosen[number] for number in sorted(lacking) if number < len(chosen)]


def _change(name: str, leaf: Subspace, state: _InstalledState) -> InstalledPart:
    """Return what makes a cluster's subspace the present one."""
    removed = tuple(state.numbers - leaf.interests.keys())
    is_whole = not state.is_known or len(removed) > len(leaf.interests)
    added = leaf.interests.keys() if is_whole else leaf.interests.keys() - state.numbers
    return InstalledPart(
        table=name,
        path=leaf.path,
        digest=leaf.digest,
        base=0 if is_whole else state.digest,
        is_whole=is_whole,
        added=tuple((number, leaf.interests[number]) for number in added),
        removed=() if is_whole else removed,
    )


def _matched_events(table: str, leaf: Subspace, events: Events) -> MatchedEvents:
    return MatchedEvents(table=table, path=leaf.path, digest=leaf.digest, events=events, numbers=leaf.numbers())


def _join(found: Sequence[Matches]) -> Matches:
    """Return all pairs, sorted by change."""
    if not found:
        return NONE
    return Matches.of(np.concatenate([one.events for one in found]), np.concatenate([one.interests for one in found]))
