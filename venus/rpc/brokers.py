"""Which broker to ask first: the leader that was told, then the others in turn."""

from __future__ import annotations

import threading


class Brokers:
    """The brokers of one cluster as this process knows them; shared by all of its connections."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self._lock = threading.Lock()
        self._first = 0
        self._leaders: dict[str, str] = {}  # by business

    def in_order(self, business: str) -> list[str]:
        """Return every address once, the most promising one first."""
        with self._lock:
            leader = self._leaders.get(business)
            rest = self.addresses[self._first :] + self.addresses[: self._first]
            return list(dict.fromkeys((leader, *rest) if leader else rest))

    def leads(self, business: str, address: str) -> None:
        """Note who leads a business; "" = nobody knows."""
        with self._lock:
            self._leaders.pop(business, None)
            if address:
                self._leaders[business] = address

    def lost(self, address: str) -> None:
        """Note that this broker does not answer: nobody asks it first, whatever it leads."""
        with self._lock:
            self._leaders = {business: leader for business, leader in self._leaders.items() if leader != address}
            if self.addresses[self._first] == address:
                self._first = (self._first + 1) % len(self.addresses)


_lock = threading.Lock()
_known: dict[str, Brokers] = {}


def known(reach: str) -> Brokers:
    """Return what this process knows of the brokers at `reach`: HOST:PORT, or several with commas between."""
    with _lock:
        if reach not in _known:
            _known[reach] = Brokers(tuple(reach.split(",")))
        return _known[reach]
