"""The streams of a consumer group are found without a search through the streams of other groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.broker.service.delivery import StreamIndex


@dataclass(eq=False)
class Reader:
    """A stream that counts how often it is read."""

    name: str
    of: str
    is_transient: bool = False
    looked_at: int = field(default=0, init=False)

    @property
    def business(self) -> str:
        self.looked_at += 1
        return self.name

    @property
    def group(self) -> str:
        self.looked_at += 1
        return self.of


def test_streams_of_other_groups_are_not_read() -> None:
    readers = [Reader(f"business {n}", f"group {m}") for n in range(20) for m in range(5)]
    streams: StreamIndex[Reader] = StreamIndex()
    for reader in readers:
        streams.add(reader)
    for reader in readers:
        reader.looked_at = 0

    assert [reader.of for reader in streams.of_business("business 7")] == [f"group {m}" for m in range(5)]
    assert [reader.name for reader in streams.of_group("business 7", "group 3")] == ["business 7"]
    assert streams.of_group("business 7", "group 9") == ()
    streams.remove(readers[0])

    assert sum(reader.looked_at for reader in readers[1:]) == 0
    assert set(streams) == set(readers[1:])


def test_a_successor_is_registered_before_its_predecessor_leaves() -> None:
    streams: StreamIndex[Reader] = StreamIndex()
    first, second, visitor = Reader("b", "g"), Reader("b", "g"), Reader("b", "g", is_transient=True)
    for reader in (first, second, visitor):
        streams.add(reader)

    assert streams.of_group("b", "g") == (first, second)
    streams.remove(first)
    assert streams.of_group("b", "g") == (second,)
    assert list(streams.of_business("b")) == [second, visitor]

    streams.remove(visitor)
    streams.remove(second)
    assert (list(streams), list(streams.of_business("b")), streams.of_group("b", "g")) == ([], [], ())
