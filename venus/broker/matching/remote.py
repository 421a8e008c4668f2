"""Matching of this broker's subscriptions at other brokers (SREM 4), or here if they are few or no answer comes.

The content of a table is partitioned (venus/network/matching/spaces.py). Each subspace is hashed to two top clusters;
the one with less work gets the subspace's interests under a lease. Changes go to the least loaded broker of the
cluster, then to the next one, and then this broker matches them itself. An answer counts only if it was computed from
this broker's present interests, so a failure costs time but never a verdict.

Any thread but the event loop's may change subscriptions and match changes; the event loop makes the calls.
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

from venus.broker.matching.matching_load import (
    Candidates,
    MatchedEvents,
    MatchingCounters,
    MatchingLoad,
    Place,
    PlacedSubspace,
    plan_placements,
)
from venus.broker.matching.messages import CHANGES_MAX, Missing
from venus.network.matching.installed import InstallationMessage, InstalledPart
from venus.network.matching.interests import NONE, Events, Ids, Interest, Matches
from venus.network.matching.spaces import ContentSpace, Subspace, encode_events
from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import RoutingResult, Silent

logger = logging.getLogger(__name__)

#: Candidates that are asked before this broker matches itself.
ATTEMPTS = 2
#: A candidate that did not answer is not asked for this long.
SUSPENDED_S = 2.0
#: Added to the deadlines of the candidates, because the event loop itself may be busy.
MARGIN_S = 0.5
#: Interests of one installation; more go in several messages.
INTERESTS_PER_MESSAGE = 2000
#: A lease is longer by this many rounds of installation: with very many interests a round outlasts the configured one.
ROUNDS_OF_LEASE = 3
LEASE_S_MAX = 3600.0
PARTS_PER_MESSAGE = 500
#: Subspaces for each top cluster, so that their sizes even out.
SUBSPACES_PER_CLUSTER = 16
#: Attempts to hash a subspace to a second cluster.
SALTS = 4
#: Half of the work by which subspaces are cut and moved comes from a period of this many seconds up to now.
WORK_HALF_LIFE_S = 60.0

Asked = tuple[MatchedEvents, Ids]  # changes of one subspace, and their numbers in the batch


class OverlayCalls(Protocol):
    """The calls of the overlay, in its event loop, that remote matching needs."""

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
class _InstalledState:
    """State of an installed subspace: its cluster, and the interests that the cluster has."""

    at: Identifier | None = None
    digest: int = 0
    numbers: frozenset[int] = frozenset()
    is_known: bool = False


@dataclass(slots=True)
class _TableInterests:
    """Interests of this broker in one table, by subspace. Only `RemoteMatching.install_all` changes `installed`."""

    space: ContentSpace
    lock: threading.Lock = field(default_factory=threading.Lock)
    installed: defaultdict[str, _InstalledState] = field(default_factory=lambda: defaultdict(_InstalledState))


class SharedTable:
    """The interests of one table, for the code that owns its subscriptions. Do not use it in the event loop."""

    def __init__(self, owner: RemoteMatching, name: str) -> None:
        self._owner, self._name = owner, name

    def add(self, number: int, interest: Interest) -> None:
        """Add an interest under a number of its own."""
        self._owner.add(self._name, number, interest)

    def remove(self, number: int) -> None:
        """Remove an interest."""
        self._owner.remove(self._name, number)

    def match(self, events: Events) -> Matches | None:
        """Return each pair of a change and an interest's number; None = so few interests: the caller matches them."""
        return self._owner.match_shared(self._name, events)


class RemoteMatching:
    """Matching of this broker's subscriptions, by table, at other brokers or here."""

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
        self._tables: dict[str, _TableInterests] = {}
        self._tables_lock = threading.Lock()
        self.candidates = Candidates()
        self.counters = MatchingCounters()
        self.origin = ""
        #: Set in the event loop when something is to be installed before the next renewal.
        self.wake = asyncio.Event()
        self._is_woken = False
        self._round_s = 0.0  # duration of the last full installation
        self._planned_at = monotonic()
        self.rounds = 0  # completed rounds of installation
        #: Of the last round: subspaces that other brokers should have, and how many of them no cluster has up to date.
        self.subspaces = self.uninstalled = 0

    # -- the subscriptions -----------------------------------------------------------------------------------------

    def add(self, table: str, number: int, interest: Interest) -> None:
        """Add an interest of a table under a number of its own."""
        with self._tables_lock:
            known = self._tables.get(table)
            if known is None:
                space = ContentSpace(SUBSPACES_PER_CLUSTER * self._shape.clusters)
                known = self._tables[table] = _TableInterests(space)
        with known.lock:
            known.space.add(number, interest)
            is_shared = len(known.space) > self._few
        if is_shared:
            self._request_installation()

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

    def _request_installation(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._calls.post(self.wake.set)

    # -- matching --------------------------------------------------------------------------------------------------

    def match_shared(self, table: str, events: Events) -> Matches | None:
        """Match changes; None if the table has so few interests that a message would cost more than matching here."""
        known = self._tables.get(table)
        return None if known is None or len(known.space) <= self._few else self.match(table, events)

    def match(self, table: str, events: Events) -> Matches:
        """Return each pair of a change and the number of an interest that existed at the time of the call."""
        known = self._tables.get(table)
        if known is None or not events.count:
            return NONE
        encoded = encode_events(events)
        asked: list[tuple[Identifier | None, Asked]] = []
        with known.lock:
            for leaf, rows in known.space.locate(encoded) if len(known.space) > self._few else ():
                leaf.changes += len(rows)
                state = known.installed.get(leaf.path)
                target = state.at if state is not None else None
                for at in range(0, len(rows), CHANGES_MAX):
                    part = rows[at : at + CHANGES_MAX]
                    asked.append((target, (_matched_events(table, leaf, encoded.select(part)), part)))
        if not asked and len(known.space) > self._few:
            return NONE
        answers = self._match_elsewhere(asked)
        found = [
            Matches(rows[answer.events], answer.interests)
            for (_, (_, rows)), answer in zip(asked, answers, strict=True)
            if answer is not None
        ]
        left = [rows for (_, (_, rows)), answer in zip(asked, answers, strict=True) if answer is None]
        if left or not asked:
            found += self._match_here(known, encoded, np.concatenate(left) if left else np.arange(events.count))
        return _join_matches(found)

    def _match_elsewhere(self, asked: Sequence[tuple[Identifier | None, Asked]]) -> list[Matches | None]:
        """Have other brokers match each part; return its pairs, None = no answer in time."""
        if not asked or not self.candidates.members:
            return [None] * len(asked)
        work = self._ask_clusters(asked)
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

    def _match_here(self, table: _TableInterests, events: Events, rows: Ids) -> list[Matches]:
        """Match changes with the interests as they are now, which may have moved to other subspaces."""
        own = events.select(rows)
        with table.lock:
            work = [
                (leaf.prepare(own.select(inside)), inside, len(leaf.interests))
                for leaf, inside in table.space.locate(own)
            ]
        self.counters.record_matched(len(rows), is_here=True)
        found = []
        for index, inside, interests in work:
            began = self._thread_time()
            one = index.match(own.select(inside))
            self._load.record(len(inside), interests, self._thread_time() - began, self._monotonic())
            found.append(Matches(rows[inside[one.events]], one.interests))
        return found

    # -- in the event loop: requests -------------------------------------------------------------------------------

    async def _ask_clusters(self, asked: Sequence[tuple[Identifier | None, Asked]]) -> list[Matches | None]:
        by_target: defaultdict[Identifier, list[int]] = defaultdict(list)
        for number, (target, _) in enumerate(asked):
            if target is not None:  # else it is not installed anywhere yet
                by_target[target].append(number)
        answers: list[Matches | None] = [None] * len(asked)

        async def ask_cluster(target: Identifier, left: list[int]) -> None:
            for _ in range(ATTEMPTS):
                address = self.candidates.choose(target, self._monotonic())
                if address is None or not left:
                    return
                found = await self._ask_broker(address, [asked[number][1][0] for number in left])
                for number, answer in zip(left, found, strict=True):
                    answers[number] = answer
                left = [number for number in left if answers[number] is None]

        await asyncio.gather(*(ask_cluster(target, numbers) for target, numbers in by_target.items()))
        return answers

    async def _ask_broker(self, address: str, asked: Sequence[MatchedEvents]) -> Sequence[Matches | None]:
        candidate = self.candidates[address]
        candidate.pairs += sum(one.pairs for one in asked)
        self.counters.asked += address != self.origin
        try:
            answers, candidate.load = await self._calls.match(address, asked, self._deadline_s)
            candidate.heard_at = self._monotonic()
        except Silent:
            self.counters.unanswered += 1
            candidate.suspended_until = self._monotonic() + SUSPENDED_S
            self.wake.set()
            return [None] * len(asked)
        unknown = sum(answer is None for answer in answers)
        if unknown:
            self.wake.set()  # the next installation finds what is missing there
            self.counters.unknown += unknown
            candidate.suspended_until = self._monotonic() + SUSPENDED_S / 4
        matched = sum(one.events.count for one, answer in zip(asked, answers, strict=True) if answer is not None)
        self.counters.record_matched(matched, is_here=address == self.origin)
        return answers

    # -- in the event loop: installation ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Install changes soon after they are made, and renew the leases in time."""
        while True:
            self.wake.clear()
            await self.install_all()
            try:
                async with asyncio.timeout(self._lease_s / 3):
                    await self.wake.wait()
                await asyncio.sleep(min(0.2, self._lease_s / 10))  # subscriptions arrive in bursts
            except TimeoutError:
                pass

    async def install_all(self) -> None:
        """Install each subspace at its cluster, or renew its lease there."""
        self._is_woken = False
        began = self._monotonic()
        by_target = await self._calls.run_blocking(self._plan_installation)
        await asyncio.gather(*(self._install_at_cluster(target, names) for target, names in by_target.items()))
        self._round_s = self._monotonic() - began
        self.rounds += 1
        self.candidates.forget_others()
        self.subspaces, self.uninstalled = await self._calls.run_blocking(self.count_subspaces)

    def _plan_installation(self) -> dict[Identifier, list[Place]]:
        """Return the subspaces to install at each cluster; split and move busy ones. Not for the event loop."""
        now, since = self._monotonic(), self._planned_at
        forgotten, self._planned_at = 1 - 0.5 ** ((now - since) / WORK_HALF_LIFE_S), now
        placed: dict[Place, PlacedSubspace] = {}
        for name, table in list(self._tables.items()):
            with table.lock:
                table.space.forget_changes(forgotten)
                if len(table.space) > self._few:
                    table.space.cut_busy()
                    placed |= self._find_places(name, table)
                for path in table.installed.keys() - table.space.subspaces.keys():
                    del table.installed[path]
        moves = plan_placements(placed, self.candidates.members)
        by_target: defaultdict[Identifier, list[Place]] = defaultdict(list)
        for place, one in placed.items():
            by_target[moves.get(place, one.at)].append(place)
        return by_target

    def _find_places(self, name: str, table: _TableInterests) -> dict[Place, PlacedSubspace]:
        """Return the subspaces of a table that have interests, each at one of the two clusters that it is hashed to."""
        found = {}
        for path, leaf in table.space.subspaces.items():
            if leaf.interests:
                first = self._shape.identifier_of(f"{name} {path}")
                salted = (self._shape.identifier_of(f"{name} {path} {salt}") for salt in range(SALTS))
                second = next((one for one in salted if one != first), first)
                at = table.installed[path].at or first
                found[name, path] = PlacedSubspace(work=leaf.work, at=at, other=first if at == second else second)
        return found

    def count_subspaces(self) -> tuple[int, int]:
        """Return how many subspaces other brokers should have, and how many are up to date nowhere. Blocking."""
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

    async def _install_at_cluster(self, target: Identifier, names: Sequence[Place]) -> None:
        waiting: list[Place] = list(names)
        lease_s = min(LEASE_S_MAX, self._lease_s + ROUNDS_OF_LEASE * self._round_s)
        for _ in range(2):  # a subspace that a member lacks is sent once more, as a whole
            missing: list[Place] = []
            while waiting:
                chosen, parts = await self._calls.run_blocking(partial(self._pop_parts, target, waiting))
                if not parts:
                    continue
                result = await self._calls.install(
                    target, InstallationMessage(origin=self.origin, lease_s=lease_s, parts=tuple(parts))
                )
                self.candidates.members[target] = [one.address for one in result.members]
                missing += self._record_installed(target, chosen, parts, result)
            waiting = missing

    def _pop_parts(self, target: Identifier, waiting: list[Place]) -> tuple[list[Place], list[InstalledPart]]:
        """Remove subspaces from `waiting` for one message; return them with the parts of the message."""
        chosen: list[Place] = []
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
                parts.append(_build_part(name, leaf, table.installed[path], target))
            chosen.append((name, path))
            interests += len(parts[-1].added)
        self.counters.installed += interests
        return chosen, parts

    def _record_installed(
        self,
        target: Identifier,
        chosen: Sequence[Place],
        parts: Sequence[InstalledPart],
        result: RoutingResult[Missing],
    ) -> list[Place]:
        """Record which subspaces a cluster has; return those that some member lacks."""
        lacking = {number for missing in result.results for number in missing}
        for number, ((name, path), part) in enumerate(zip(chosen, parts, strict=True)):
            table = self._tables.get(name)
            if table is None:
                continue
            state = table.installed[path]
            before = frozenset() if part.is_whole else state.numbers
            state.numbers = (before - frozenset(part.removed)) | {found for found, _ in part.added}
            state.at, state.digest, state.is_known = target, part.digest, number not in lacking
        return [chosen[number] for number in sorted(lacking) if number < len(chosen)]


def _build_part(name: str, leaf: Subspace, state: _InstalledState, target: Identifier) -> InstalledPart:
    """Return the part of an installation that updates one subspace at a cluster."""
    removed = tuple(state.numbers - leaf.interests.keys())
    is_whole = state.at != target or not state.is_known or len(removed) > len(leaf.interests)
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


def _join_matches(found: Sequence[Matches]) -> Matches:
    """Return all pairs, sorted by change."""
    if not found:
        return NONE
    return Matches.of(np.concatenate([one.events for one in found]), np.concatenate([one.interests for one in found]))
