"""Matching of this broker's subscriptions at other brokers (SREM 4), as a function that it can always carry out itself.

The content of a table is partitioned (venus/network/matching/spaces.py). Each subspace is hashed to a top cluster. Its
brokers get the interests under a lease that is renewed. Changes go to one of them, the least loaded first. Without a
good answer within the deadline another one is asked, and then this broker matches itself. An answer counts only if it
is from the interests that this broker has, so a failure costs time and never a verdict. Used in the event loop alone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from venus.broker.matching.matching_load import MatchedEvents, MatchingLoad
from venus.broker.matching.messages import CHANGES_MAX, Missing
from venus.network.matching.installed import InstallationMessage, InstalledPart
from venus.network.matching.interests import NONE, Events, Ids, Interest, Matches
from venus.network.matching.spaces import ContentSpace, PreparedIndex, Subspace, encode_events
from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import RoutingResult, Silent

T = TypeVar("T")

#: Candidates that are asked before this broker matches itself.
ATTEMPTS = 2
#: A candidate that did not answer is left alone for so long.
SUSPENDED_S = 2.0
#: Interests of one installation; more go in several messages.
INTERESTS_PER_MESSAGE = 2000
PARTS_PER_MESSAGE = 500
#: Subspaces for each top cluster, so that their sizes even out.
SUBSPACES_PER_CLUSTER = 16
#: A difference in load below this is none: candidates then take turns by what they were given.
LOAD_STEP = 0.05

RunBlocking = Callable[[Callable[[], T]], Awaitable[T]]


class OverlayCalls(Protocol):
    """What remote matching needs of the overlay."""

    async def install(self, target: Identifier, installation: InstallationMessage) -> RoutingResult[Missing]:
        """Install subscriptions at the cluster nearest to a target."""

    async def match(
        self, to: str, asked: Sequence[MatchedEvents], timeout_s: float
    ) -> tuple[list[Matches | None], float]:
        """Have changes matched by a broker. Raises Silent."""


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
    installed: defaultdict[str, _InstalledState] = field(default_factory=lambda: defaultdict(_InstalledState))


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
        run_blocking: Callable[[Callable[[], list[Matches]]], Awaitable[list[Matches]]],
    ) -> None:
        self._shape, self._calls, self._load = shape, calls, load
        self._lease_s, self._deadline_s, self._few = lease_s, deadline_s, local_interests_max
        self._monotonic, self._thread_time, self._run_blocking = monotonic, thread_time, run_blocking
        self._tables: dict[str, _Table] = {}
        self._responsible: dict[Identifier, list[str]] = {}
        self.candidates: defaultdict[str, Candidate] = defaultdict(Candidate)
        self.counters = MatchingCounters()
        self.origin = ""
        #: Set when something is to be installed before the next renewal.
        self.wake = asyncio.Event()

    # -- the subscriptions -----------------------------------------------------------------------------------------

    def add(self, table: str, number: int, interest: Interest) -> None:
        """Add an interest of a table under a number of its own."""
        known = self._tables.get(table)
        if known is None:
            known = self._tables[table] = _Table(ContentSpace(SUBSPACES_PER_CLUSTER * self._shape.clusters))
        known.space.add(number, interest)
        if len(known.space) > self._few:
            self.wake.set()

    def remove(self, table: str, number: int) -> None:
        """Remove an interest."""
        known = self._tables.get(table)
        if known is None:
            return
        known.space.remove(number)
        if not len(known.space):
            del self._tables[table]

    def subspaces(self) -> int:
        """Return the number of subspaces that other brokers should have."""
        return sum(len(one.space.subspaces) for one in self._tables.values() if len(one.space) > self._few)

    def count_uninstalled(self) -> int:
        """Return how many of them no cluster has as they are."""
        return sum(
            not (state := table.installed[path]).is_known or state.digest != leaf.digest
            for table in self._tables.values()
            if len(table.space) > self._few
            for path, leaf in table.space.subspaces.items()
            if leaf.interests
        )

    # -- matching --------------------------------------------------------------------------------------------------

    async def match(self, table: str, events: Events) -> Matches:
        """Return each pair of a change and the number of an interest that was there when this was called."""
        known = self._tables.get(table)
        if known is None or not events.count:
            return NONE
        encoded = encode_events(events)
        if len(known.space) <= self._few:
            return await self._match_here(table, encoded, np.arange(events.count))
        by_target: defaultdict[Identifier, list[tuple[MatchedEvents, Ids]]] = defaultdict(list)
        for leaf, rows in known.space.locate(encoded):
            for at in range(0, len(rows), CHANGES_MAX):
                part = rows[at : at + CHANGES_MAX]
                target = self._shape.identifier_of(f"{table} {leaf.path}")
                by_target[target].append((_matched_events(table, leaf, encoded.select(part)), part))
        found = await asyncio.gather(*(self._match_at(target, encoded, asked) for target, asked in by_target.items()))
        return _join(found)

    async def _match_at(
        self, target: Identifier, events: Events, asked: Sequence[tuple[MatchedEvents, Ids]]
    ) -> Matches:
        """Ask candidates of a cluster; match here what none of them has answered."""
        found, left = [], list(asked)
        for _ in range(ATTEMPTS):
            address = self._choose(target)
            if address is None or not left:
                break
            answers = await self._ask(address, [one for one, _ in left])
            found += [
                Matches(rows[answer.events], answer.interests)
                for (_, rows), answer in zip(left, answers, strict=True)
                if answer is not None
            ]
            left = [entry for entry, answer in zip(left, answers, strict=True) if answer is None]
        for one, rows in left:
            found.append(await self._match_here(one.table, events, rows))
        return _join(found)

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
        for one in unknown:
            self._forget_installed(one)
        if unknown:
            self.counters.unknown += len(unknown)
            candidate.suspended_until = self._monotonic() + SUSPENDED_S / 4
        self.counters.changes_elsewhere += sum(one.events.count for one in asked) - sum(
            one.events.count for one in unknown
        )
        return answers

    def _forget_installed(self, one: MatchedEvents) -> None:
        table = self._tables.get(one.table)
        if table is not None:
            table.installed[one.path].is_known = False
            self.wake.set()

    async def _match_here(self, table: str, events: Events, rows: Ids) -> Matches:
        """Match changes with the interests as they are now."""
        known = self._tables.get(table)
        if known is None:
            return NONE
        own = events.select(rows)
        work: list[tuple[PreparedIndex, Events, Ids, int]] = []
        for leaf, inside in known.space.locate(own):
            some = own.select(inside)
            work.append((leaf.prepare(some), some, inside, len(leaf.interests)))
        self.counters.changes_here += len(rows)

        def match_all() -> list[Matches]:
            began = self._thread_time()
            found = [index.match(some) for index, some, _, _ in work]
            spent = self._thread_time() - began
            for _, some, _, interests in work:
                self._load.record(some.count, interests, spent / len(work), self._monotonic())
            return found

        found = await self._run_blocking(match_all)
        return _join(
            [
                Matches(rows[inside[one.events]], one.interests)
                for one, (_, _, inside, _) in zip(found, work, strict=True)
            ]
        )

    # -- installation ----------------------------------------------------------------------------------------------

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
        by_target: defaultdict[Identifier, list[tuple[str, str]]] = defaultdict(list)
        for name, table in self._tables.items():
            if len(table.space) > self._few:
                for path, leaf in table.space.subspaces.items():
                    if leaf.interests:
                        by_target[self._shape.identifier_of(f"{name} {path}")].append((name, path))
            for path in table.installed.keys() - table.space.subspaces.keys():
                del table.installed[path]
        await asyncio.gather(*(self._install_at(target, names) for target, names in by_target.items()))
        living = {address for members in self._responsible.values() for address in members}
        for address in self.candidates.keys() - living:
            del self.candidates[address]

    async def _install_at(self, target: Identifier, names: Sequence[tuple[str, str]]) -> None:
        waiting = list(names)
        for _ in range(2):  # what is missing at a member is sent once more, as a whole
            missing: list[tuple[str, str]] = []
            while waiting:
                chosen, parts = self._take_parts(waiting)
                if not parts:
                    continue
                result = await self._calls.install(
                    target, InstallationMessage(origin=self.origin, lease_s=self._lease_s, parts=tuple(parts))
                )
                self._responsible[target] = [one.address for one in result.members]
                missing += self._record_installed(chosen, parts, result)
            waiting = missing

    def _take_parts(self, waiting: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[InstalledPart]]:
        """Take subspaces off the list up to the size of one message."""
        chosen: list[tuple[str, str]] = []
        parts: list[InstalledPart] = []
        interests = 0
        while waiting and len(parts) < PARTS_PER_MESSAGE and interests < INTERESTS_PER_MESSAGE:
            name, path = waiting.pop()
            table = self._tables.get(name)
            leaf = table.space.subspaces.get(path) if table is not None else None
            if table is None or leaf is None:
                continue
            parts.append(_change(name, leaf, table.installed[path]))
            chosen.append((name, path))
            interests += len(parts[-1].added)
        self.counters.installed += interests
        return chosen, parts

    def _record_installed(
        self, chosen: Sequence[tuple[str, str]], parts: Sequence[InstalledPart], result: RoutingResult[Missing]
    ) -> list[tuple[str, str]]:
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
