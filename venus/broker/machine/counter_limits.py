"""How far a counter may jump when its value comes from outside. Pure.

A counter that is set close to the end of its range stops the business, because no value can follow. A range check alone
does not prevent that: the last value of a range is valid too. So each value that a producer, a set above or another
broker sends is compared with the known value. With these limits a counter needs thousands of steps to its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class CounterLimit:
    """The limit of one counter: at most `most` above the known value, which counts as at least `floor`."""

    jump_max: int
    floor: int = 0

    def largest(self, known: int) -> int:
        """Return the largest accepted value."""
        return max(known, self.floor) + self.jump_max


#: By the name of the counter in messages.
COUNTER_LIMITS = {
    "Sequence": CounterLimit(2**48),
    "batch": CounterLimit(2**48),
    "offset": CounterLimit(2**48),
    "epoch": CounterLimit(2**48, floor=2**48),  # milliseconds since 1970, or the previous epoch plus one
    "version": CounterLimit(2**20),  # of a table
    "home term": CounterLimit(10_000),
}


def is_within_limit(counter: str, value: int, known: int) -> bool:
    """Whether a value is accepted."""
    return value <= COUNTER_LIMITS[counter].largest(known)


def check_limit(where: str, counter: str, value: int, known: int) -> None:
    """Raise ProtocolError for a value that jumps too far."""
    if not is_within_limit(counter, value, known):
        raise ProtocolError(
            f"{where} has {counter} {value}: it must be {COUNTER_LIMITS[counter].largest(known)} at most"
        )
