"""What a mirror's pull reads of the local queue, and its reaction to an upstream that has other rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from venus.broker.mirrors.replicator import ON_THE_WAY_S, Replicator
from venus.broker.mirrors.upstream_selection import TIMES, Fitness, FitnessKind, LocalPosition, UpstreamEndpoint
from venus.errors import OtherRows


class PulledBusiness:
    """A business whose queue grows; one of two sets is its upstream."""

    def __init__(self) -> None:
        self.now, self.end, self.woken = 100.0, 10, 0
        self.pull = Replicator(
            cast("Any", SimpleNamespace(catalogue=self)),
            "main",
            ("north", "south"),
            self.upstream_endpoint,
            self.wake,
            lambda: self.now,
            TIMES,
        )
        progress = SimpleNamespace(status=SimpleNamespace(state="refused"))
        self.pull.thread = cast("Any", SimpleNamespace(progress=progress))

    def has_stored(self, _business: str) -> bool:
        return True

    def find(self, _business: str) -> Any:
        committed = SimpleNamespace(mirror=SimpleNamespace(end=1), next_offset=self.end)
        return SimpleNamespace(committed=committed, epoch_at_end=7)

    def upstream_endpoint(self, name: str) -> UpstreamEndpoint:
        return UpstreamEndpoint(reach=f"{name}:1", set=name, network="", group="mirror/lyon")

    def wake(self) -> None:
        self.woken += 1


def test_the_upstreams_queue_is_compared_with_the_current_one_and_its_end_with_a_recent_one() -> None:
    pulled = PulledBusiness()
    assert pulled.pull.local_position() == LocalPosition(end=10, epoch=7, next=10)
    pulled.now, pulled.end = pulled.now + ON_THE_WAY_S / 2, 90
    assert pulled.pull.local_position() == LocalPosition(end=10, epoch=7, next=90)
    pulled.now += ON_THE_WAY_S
    assert pulled.pull.local_position() == LocalPosition(end=90, epoch=7, next=90)


def test_an_upstream_with_other_rows_is_left_for_one_that_may_have_them() -> None:
    pulled = PulledBusiness()
    pull, found = pulled.pull, []
    for _ in range(8):
        pulled.now += 1.0
        for name in ("north", "south"):
            pull.on_check(name, Fitness(FitnessKind.FIT))
        found.append(pull.in_use)
        if pull.in_use == "north":
            assert not pull.record_end(pull.choose_upstream(), OtherRows("main: set north has other rows"))
    assert (found[0], found[-1]) == ("north", "south")
    assert not pull.is_trial
    assert pulled.woken
