"""Interests that other brokers have installed here, each subspace under a lease (SREM 4.2). Pure.

Subspaces that their owner does not renew are dropped. A subspace whose digest is not the one that the owner states is
reported as missing, and the owner sends it as a whole: old interests never answer an owner whose messages were lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.network.matching.interests import Interest
from venus.network.matching.spaces import NumberedInterests, digest_of

#: Installed interests of all owners, copies included.
INTERESTS_MAX = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPart:
    """Change of one subspace, from digest `base` to `digest`; equal digests without changes renew its lease."""

    table: str
    path: str
    digest: int
    base: int = 0
    is_whole: bool = False
    added: tuple[tuple[int, Interest], ...] = ()
    removed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationMessage:
    """Subspaces of the broker at `origin`, for `lease_s` from now on."""

    origin: str
    lease_s: float
    parts: tuple[InstalledPart, ...]


@dataclass(slots=True, eq=False)
class _Lease:
    """The interests of a subspace, and the end of their lease."""

    content: NumberedInterests
    until: float


class InstalledSubspaces:
    """The installed subspaces by origin, table and path."""

    def __init__(self, interests_max: int = INTERESTS_MAX) -> None:
        self._most = interests_max
        self._leases: dict[tuple[str, str, str], _Lease] = {}
        self.interests = 0

    def __len__(self) -> int:
        return len(self._leases)

    def install(self, installation: InstallationMessage, now: float) -> tuple[int, ...]:
        """Apply the changes; return the numbers of the parts that must be sent as a whole."""
        return tuple(
            number
            for number, part in enumerate(installation.parts)
            if not self._apply(installation.origin, part, now + installation.lease_s)
        )

    def find(self, origin: str, table: str, path: str, digest: int) -> NumberedInterests | None:
        """Return the interests of a subspace if they are those that the owner has, else None."""
        lease = self._leases.get((origin, table, path))
        return lease.content if lease is not None and lease.content.digest == digest else None

    def expire(self, now: float) -> int:
        """Drop what was not renewed; return the number of subspaces."""
        late = [key for key, lease in self._leases.items() if lease.until < now]
        for key in late:
            self._drop(key)
        return len(late)

    def _apply(self, origin: str, part: InstalledPart, until: float) -> bool:
        """Apply the change of one subspace; return False if it must be sent as a whole."""
        key = (origin, part.table, part.path)
        lease = self._leases.get(key)
        if part.is_whole:
            self._drop(key)
            lease = self._leases[key] = _Lease(NumberedInterests(), until)
        elif lease is None or lease.content.digest != part.base:
            return False
        before = len(lease.content.interests)
        for number in part.removed:
            lease.content.remove(number)
        if self.interests + len(part.added) <= self._most:
            for number, interest in part.added:
                lease.content.add(number, interest, digest_of(number, interest))
        self.interests += len(lease.content.interests) - before
        lease.until = max(until, lease.until)
        if lease.content.digest != part.digest:
            self._drop(key)
            return False
        return True

    def _drop(self, key: tuple[str, str, str]) -> None:
        """Remove a subspace."""
        lease = self._leases.pop(key, None)
        if lease is not None:
            self.interests -= len(lease.content.interests)
