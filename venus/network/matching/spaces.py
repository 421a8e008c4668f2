"""Partition of a table's content into subspaces, so that brokers share its interests (HPartition; SREM 4). Pure.

Columns are divided into groups, each of which is a space of its own. An interest is in every subspace that it overlaps,
of each group; an event lies in one subspace of each group, and the one with the fewest interests suffices. A subspace
with more than twice the mean load is a hot spot and is cut in two, along the column that separates its interests best.
The load is the number of interests and, once changes were matched, the pairs of a change and an interest.

A subspace has a digest of its interests. A broker answers for another one only if both have the same digest.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import xxhash

from venus.network.matching.indexes import NumberedIndex
from venus.network.matching.interests import Events, Ids, Interest

#: Columns of a group; interests without any of them would be in all its subspaces.
GROUP_COLUMNS = 3
#: A column counts if at least this share of the interests name it.
SHARE_MIN = 0.05
#: A subspace is a hot spot above this multiple of the mean.
HOT = 2.0
#: A smaller subspace is not cut.
HOT_MIN = 32
#: With fewer recorded changes than this, the work of a subspace is not known.
CHANGES_MIN = 64
#: A cut is worth it if neither side has more than this share.
WORTH = 0.8
#: At most this many interests of a subspace decide where it is cut.
SAMPLE = 400
SUBSPACES_MAX = 4096
HASH_BITS = 16
#: The partition is rebuilt when the number of interests has changed by this factor.
REBUILD = 2.0

Located = list[tuple["Subspace", Ids]]


def encode_key(value: Hashable) -> bytes:
    """Encode a value for equality: equal values have equal bytes, and different values different bytes; b"" is NULL."""
    match value:
        case None:
            return b""
        case bool():
            return b"t" if value else b"f"
        case bytes():
            return b"b" + value
        case str():
            return b"s" + value.encode("utf-8", "surrogateescape")
        case Decimal() if value.is_finite():
            return b"n" + _canonical_number(value)
        case int():
            return encode_key(Decimal(value))
        case float():
            return b"d" + struct.pack("<d", value or 0.0)
    return b"?" + repr(value).encode()


def _canonical_number(value: Decimal) -> bytes:
    """Return all digits of a number, without zeros at the end; `normalize` would round it."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    if not short:
        return b"0"
    return f"{'-' * sign}{short}e{int(exponent) + len(text) - len(short)}".encode()


def encode_events(events: Events) -> Events:
    """Return events whose values for equality are encoded."""
    return Events(
        events.count,
        events.numbers,
        {name: list(map(encode_key, column)) for name, column in events.others.items()},
    )


def encode_interest(interest: Interest) -> Interest:
    """Return an interest whose values for equality are encoded; NULL equals nothing."""
    return Interest(
        {name: frozenset(map(encode_key, values - {None})) for name, values in interest.equal.items()},
        interest.between,
    )


def digest_of(number: int, interest: Interest) -> int:
    """Return the digest of one numbered, encoded interest; those of a subspace are combined by exclusive or."""
    text = xxhash.xxh3_64(struct.pack("<Q", number))
    for name in sorted(interest.equal):
        text.update(f"\0={name}\0".encode())
        for key in sorted(map(_key_bytes, interest.equal[name])):
            text.update(struct.pack("<I", len(key)) + key)
    for name in sorted(interest.between):
        text.update(f"\0<{name}\0".encode() + struct.pack("<dd", *interest.between[name]))
    return text.intdigest()


@dataclass(slots=True)
class NumberedInterests:
    """Encoded interests by their numbers, with their digest and an index that is built when it is needed."""

    interests: dict[int, Interest] = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)
    digest: int = 0
    _index: NumberedIndex | None = None
    _numbers: frozenset[int] | None = None

    def add(self, number: int, interest: Interest, digest: int) -> None:
        """Add an interest; one with the same number is replaced."""
        self.remove(number)
        self.interests[number], self.digests[number] = interest, digest
        self.digest ^= digest
        self._index = self._numbers = None

    def remove(self, number: int) -> None:
        """Remove an interest if it is here."""
        if self.interests.pop(number, None) is not None:
            self.digest ^= self.digests.pop(number)
            self._index = self._numbers = None

    def numbers(self) -> frozenset[int]:
        """Return the numbers of the interests as they are now."""
        if self._numbers is None:
            self._numbers = frozenset(self.interests)
        return self._numbers

    def freeze(self) -> NumberedInterests:
        """Return a copy, whose index another thread may build. The copy shares an index that exists already."""
        interests = dict(self.interests) if self._index is None else self.interests
        return NumberedInterests(interests, digest=self.digest, _index=self._index)

    def keep_index(self, copy: NumberedInterests) -> None:
        """Keep the index that a copy has built, unless the interests have changed since."""
        if self.digest == copy.digest and self._index is None:
            self._index = copy._index

    def prepare(self, sample: Events) -> NumberedIndex:
        """Return an index of the interests as they are now; `sample` has typical events, encoded."""
        if self._index is None:
            self._index = NumberedIndex(self.interests.items(), sample)
        return self._index


@dataclass(slots=True, eq=False)
class Subspace(NumberedInterests):
    """A part of a table's content. `path` names it; if cut, it has two parts and no interests."""

    path: str = ""
    cut: SpaceCut | None = None
    parts: tuple[Subspace, Subspace] | None = None
    #: Number of interests at the last failed attempt to cut it.
    uncut_at: int = 0
    #: Changes that were recently located here.
    changes: float = 0.0

    @property
    def work(self) -> float:
        """The number of recent pairs of a change and an interest."""
        return self.changes * len(self.interests)


@dataclass(frozen=True, slots=True)
class SpaceCut:
    """Boundary between two subspaces: by a number of a column, or by a bit of a key's hash (`bit` >= 0)."""

    column: str
    at: float = 0.0
    bit: int = -1

    def sides(self, interest: Interest) -> tuple[bool, bool]:
        """Return whether an interest may match on the first and on the second side of the cut; NULL is on the first."""
        if self.bit >= 0:
            keys = interest.equal.get(self.column)
            if keys is None:
                return True, True
            bits = {_hash(key) >> self.bit & 1 for key in keys}
            return 0 in bits, 1 in bits
        low, high = interest.between.get(self.column, (-np.inf, np.inf))
        if self.column not in interest.between:
            return True, True
        return low < self.at, high >= self.at

    def second(self, events: HashedEvents, rows: Ids) -> np.ndarray:
        """Return which of these events are on the second side of the cut."""
        if self.bit >= 0:
            found: np.ndarray = events.hashes(self.column)[rows] >> self.bit & 1 == 1
            return found
        numbers = events.events.numbers.get(self.column)
        return numbers[rows] >= self.at if numbers is not None else np.zeros(len(rows), np.bool_)


class HashedEvents:
    """Events with the hashes of their keys, each column once."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._hashes: dict[str, Ids] = {}

    def hashes(self, column: str) -> Ids:
        """Return the hash of each key of a column; that of NULL is 0."""
        if column not in self._hashes:
            keys = self.events.others.get(column)
            count = self.events.count
            self._hashes[column] = (
                np.fromiter(map(_hash, keys), np.int64, count) if keys is not None else np.zeros(count, np.int64)
            )
        return self._hashes[column]


class ContentSpace:
    """The subspaces of one table. `subspaces_min` is the wanted number, if interests can be separated."""

    def __init__(self, subspaces_min: int = 64) -> None:
        self._aim = subspaces_min
        self.interests: dict[int, Interest] = {}
        self._digests: dict[int, int] = {}
        self._groups: list[tuple[tuple[str, ...], Subspace]] = [((), Subspace(path="0:"))]
        self._made_of = 0
        self._leaves: dict[str, Subspace] = {"0:": self._groups[0][1]}
        self._stored = 0

    def __len__(self) -> int:
        return len(self.interests)

    @property
    def subspaces(self) -> Mapping[str, Subspace]:
        """The subspaces by path."""
        return self._leaves

    def add(self, number: int, interest: Interest) -> None:
        """Add an interest, encoded here."""
        self.remove(number)
        encoded = self.interests[number] = encode_interest(interest)
        self._digests[number] = digest_of(number, encoded)
        if len(self.interests) > REBUILD * max(HOT_MIN, self._made_of):
            self._rebuild()
        else:
            self._place(number, encoded)

    def remove(self, number: int) -> None:
        """Remove an interest if it is here."""
        known = self.interests.pop(number, None)
        if known is None:
            return
        del self._digests[number]
        if len(self.interests) * REBUILD < self._made_of and self._made_of > HOT_MIN:
            self._rebuild()
            return
        for _, root in self._groups:
            for leaf in _overlapping(root, known):
                leaf.remove(number)
                self._stored -= 1

    def locate(self, events: Events) -> Located:
        """Return each concerned subspace with its events, each event once; the events must be encoded."""
        hashed = HashedEvents(events)
        every = np.arange(events.count)
        if len(self._groups) == 1:
            return [(leaf, rows) for leaf, rows in _locate(self._groups[0][1], hashed, every) if leaf.interests]
        leaves = list(self._leaves.values())
        place = {leaf.path: n for n, leaf in enumerate(leaves)}
        sizes = np.array([len(leaf.interests) for leaf in leaves], np.int64)
        best = np.full(events.count, -1, np.int64)
        for _, root in self._groups:
            for leaf, rows in _locate(root, hashed, every):
                number = place[leaf.path]
                smaller = (best[rows] < 0) | (sizes[number] < sizes[best[rows]])
                best[rows[smaller]] = number
        return [(leaves[n], np.flatnonzero(best == n)) for n in np.unique(best).tolist() if leaves[n].interests]

    def forget_changes(self, share: float) -> None:
        """Reduce the recorded changes by this share."""
        for leaf in self._leaves.values():
            leaf.changes *= 1 - share

    def cut_busy(self) -> None:
        """Cut the subspaces with more than HOT times the mean of the work."""
        mean = sum(leaf.work for leaf in self._leaves.values()) / max(len(self._leaves), self._aim)
        for leaf in list(self._leaves.values()):
            if leaf.work > HOT * mean and leaf.changes >= CHANGES_MIN and len(leaf.interests) > HOT_MIN:
                self._cut(leaf, self._groups[int(leaf.path.partition(":")[0])][0])

    def _place(self, number: int, interest: Interest) -> None:
        """Store an interest in every subspace that it overlaps, and cut those that become hot spots."""
        for columns, root in self._groups:
            for leaf in list(_overlapping(root, interest)):
                leaf.add(number, interest, self._digests[number])
                self._stored += 1
                if len(leaf.interests) > self._hot_spot_limit():
                    self._cut(leaf, columns)

    def _hot_spot_limit(self) -> float:
        """Return the number of interests above which a subspace is a hot spot."""
        mean = self._stored / max(len(self._leaves), self._aim * len(self._groups))
        return max(HOT_MIN, HOT * mean)

    def _cut(self, leaf: Subspace, columns: Sequence[str]) -> None:
        """Cut a hot spot in two, and its parts again if they are still hot."""
        if len(self._leaves) >= SUBSPACES_MAX or len(leaf.interests) < 1.5 * leaf.uncut_at:
            return
        some = list(itertools.islice(leaf.interests.values(), SAMPLE))
        best = min(
            ((max(_count_sides(some, cut)), cut) for cut in _cuts(some, columns, len(leaf.path))),
            key=lambda found: (found[0], found[1].column, found[1].bit),
            default=None,
        )
        if best is None or best[0] > WORTH * len(some):
            leaf.uncut_at = len(leaf.interests)
            return
        cut = best[1]
        half = leaf.changes / 2
        parts = (Subspace(path=f"{leaf.path}0", changes=half), Subspace(path=f"{leaf.path}1", changes=half))
        for number, one in leaf.interests.items():
            for part, is_in in zip(parts, cut.sides(one), strict=True):
                if is_in:
                    part.add(number, one, leaf.digests[number])
        self._stored += len(parts[0].interests) + len(parts[1].interests) - len(leaf.interests)
        leaf.cut, leaf.parts, leaf.interests, leaf.digests, leaf.digest = cut, parts, {}, {}, 0
        del self._leaves[leaf.path]
        for part in parts:
            self._leaves[part.path] = part
            if len(part.interests) > self._hot_spot_limit():
                self._cut(part, columns)

    def _rebuild(self) -> None:
        """Divide the columns into groups again, and start with one subspace for each group."""
        self._made_of = len(self.interests)
        counts = Counter(name for one in self.interests.values() for name in {**one.equal, **one.between})
        names = [name for name, count in counts.most_common() if count >= SHARE_MIN * self._made_of]
        groups = [tuple(names[at : at + GROUP_COLUMNS]) for at in range(0, len(names), GROUP_COLUMNS)] or [()]
        self._groups = [(columns, Subspace(path=f"{n}:")) for n, columns in enumerate(groups)]
        self._leaves = {root.path: root for _, root in self._groups}
        self._stored = len(self.interests) * len(self._groups)
        for columns, root in self._groups:
            for number, one in self.interests.items():
                root.add(number, one, self._digests[number])
            if len(root.interests) > self._hot_spot_limit():
                self._cut(root, columns)


def _overlapping(root: Subspace, interest: Interest) -> Iterator[Subspace]:
    """Yield the leaves below `root` that an interest overlaps."""
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if found.cut is None or found.parts is None:
            yield found
        else:
            waiting += [part for part, is_in in zip(found.parts, found.cut.sides(interest), strict=True) if is_in]


def _locate(root: Subspace, events: HashedEvents, rows: Ids) -> Located:
    """Return the leaves of a group in which events lie, each with its events."""
    found: Located = []
    waiting = [(root, rows)]
    while waiting:
        space, inside = waiting.pop()
        if not len(inside):
            continue
        if space.cut is None or space.parts is None:
            found.append((space, inside))
            continue
        second = space.cut.second(events, inside)
        waiting += [(space.parts[0], inside[~second]), (space.parts[1], inside[second])]
    return found


def _cuts(interests: Sequence[Interest], columns: Sequence[str], depth: int) -> Iterator[SpaceCut]:
    """Yield a cut for each column: in the middle of the ends of ranges, or by a bit of the keys' hashes."""
    for column in columns:
        ends = [end for one in interests for end in one.between.get(column, ()) if np.isfinite(end)]
        if ends:
            yield SpaceCut(column, at=float(np.median(ends)))
        if any(column in one.equal for one in interests):
            yield SpaceCut(column, bit=depth % HASH_BITS)


def _count_sides(interests: Sequence[Interest], cut: SpaceCut) -> tuple[int, int]:
    """Return how many interests would be on each side of a cut."""
    sides = [cut.sides(one) for one in interests]
    return sum(first for first, _ in sides), sum(second for _, second in sides)


def _key_bytes(key: Hashable) -> bytes:
    """Return the bytes of a key that is encoded already."""
    assert isinstance(key, bytes), "interests and events are encoded"
    return key


def _hash(key: Hashable) -> int:
    """Return the hash of a key, 0 for NULL."""
    return xxhash.xxh3_64_intdigest(_key_bytes(key)) >> 1 if key else 0
