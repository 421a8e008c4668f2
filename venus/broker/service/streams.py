"""The consumers' streams, found by business and by consumer group without looking at all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar


class Stream(Protocol):
    """What a stream is found by; it never changes."""

    @property
    def business(self) -> str:
        """The business that it reads."""

    @property
    def group(self) -> str:
        """The group for which it reads."""

    @property
    def transient(self) -> bool:
        """Whether it is no group's: a reader who leaves no trace."""


S = TypeVar("S", bound=Stream)


class Streams(Generic[S]):
    """Changed in the event loop; `of_group` may be asked from any thread."""

    def __init__(self) -> None:
        self._by_business: dict[str, dict[S, None]] = {}
        self._by_group: dict[tuple[str, str], tuple[S, ...]] = {}  # replaced, never changed

    def __iter__(self) -> Iterator[S]:
        return (stream for streams in self._by_business.values() for stream in streams)

    def add(self, stream: S) -> None:
        """Take in a stream."""
        self._by_business.setdefault(stream.business, {})[stream] = None
        if not stream.transient:
            who = stream.business, stream.group
            self._by_group[who] = (*self._by_group.get(who, ()), stream)

    def remove(self, stream: S) -> None:
        """Let go of a stream that was added."""
        streams = self._by_business[stream.business]
        del streams[stream]
        if not streams:
            del self._by_business[stream.business]
        if not stream.transient:
            who = stream.business, stream.group
            left = tuple(other for other in self._by_group[who] if other is not stream)
            if left:
                self._by_group[who] = left
            else:
                del self._by_group[who]

    def of_business(self, business: str) -> Collection[S]:
        """Return those of a business, in the order in which they came."""
        return self._by_business.get(business, {}).keys()

    def of_group(self, business: str, group: str) -> tuple[S, ...]:
        """Return those of a consumer group: one, or its successor as well."""
        return self._by_group.get((business, group), ())
