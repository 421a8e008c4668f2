"""How far a counter may move at once when its value comes from outside. Pure.

A counter that is set close to the end of its range ends the business: nothing can follow it any more. A range alone
does not prevent that, because its last value is a value. So what a producer, a set above or another broker says is
compared with what is known: no counter goes from zero to its end in less than thousands of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Reach:
    """A counter may be `most` above what is known; what is known counts as `floor` at the least."""

    most: int
    floor: int = 0

    def end(self, known: int) -> int:
        """Return the largest value that is believed."""
        return max(known, self.floor) + self.most


#: By the counter's name, as messages have it.
REACHES = {
    "Sequence": Reach(2**48),
    "batch": Reach(2**48),
    "offset": Reach(2**48),
    "epoch": Reach(2**48, floor=2**48),  # milliseconds since 1970, or a producer more
    "version": Reach(2**20),  # of a table
    "home term": Reach(10_000),
}


def is_in_reach(counter: str, value: int, known: int) -> bool:
    """Whether a value is believed."""
    return value <= REACHES[counter].end(known)


def check_reach(where: str, counter: str, value: int, known: int) -> None:
    """Refuse a value that leaves no room behind it. Raises ProtocolError."""
    if not is_in_reach(counter, value, known):
        raise ProtocolError(f"{where} has {counter} {value}: it must be {REACHES[counter].end(known)} at most")
