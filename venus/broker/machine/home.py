"""Which set is the home of a business, once a promotion has moved it. Pure.

A business that was never moved has no such record. The home term counts the promotions. Of two homes, the one with the
higher term counts, and a set that follows it accepts nothing from the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from venus.wire import broker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The home since a promotion: its set, and the known addresses of its brokers.

    `here`: this set is the home.
    """

    set: str
    term: int
    addresses: tuple[str, ...] = ()
    here: bool = False

    def __str__(self) -> str:
        where = f" at {', '.join(self.addresses)}" if self.addresses else ""
        return f"set {self.set}{where}"


def home_term_of(home: Home | None) -> int:
    """Return the home term; 0 = the home was never moved."""
    return home.term if home is not None else 0


def encode(home: Home | None) -> dict[str, Any] | None:
    """Return the record to log and store."""
    return asdict(home) if home is not None else None


def decode(stored: Mapping[str, Any] | None) -> Home | None:
    """Read a record of `encode`."""
    return Home(**{**stored, "addresses": tuple(stored["addresses"])}) if stored is not None else None


def to_wire(home: Home | None) -> broker_pb2.Home | None:
    """Return the message for other brokers and commands."""
    return None if home is None else broker_pb2.Home(set=home.set, home_term=home.term, addresses=home.addresses)


def from_wire(message: broker_pb2.Home) -> Home | None:
    """Read the home from the message of another broker; None = it was never moved there."""
    if not message.home_term:
        return None
    return Home(set=message.set, term=message.home_term, addresses=tuple(message.addresses))
