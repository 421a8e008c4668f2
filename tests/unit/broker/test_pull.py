"""What a pull takes for what is here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from venus.broker.mirrors.pulls import ON_THE_WAY_S, Pull
from venus.broker.mirrors.uppers import TIMES
from venus.broker.mirrors.whom import Above, Here


class Pulled:
    """A business whose queue grows; it is pulled from one of two sets."""

    def __init__(self) -> None:
        self.now, self.end, self.woken = 100.0, 10, 0
        self.pull = Pull(
            cast("Any", SimpleNamespace(catalogue=self)), "main", ("north", "south"), self.above, self.wake,
            lambda: self.now, TIMES,
        )  # fmt: skip
        self.pull.puller = cast("Any", SimpleNamespace(progress=SimpleNamespace(told=SimpleNamespace(state="refused"))))

    def has(self, _business: str) -> bool:
        return True

    def known(self, _business: str) -> Any:
        committed = SimpleNamespace(mirror=SimpleNamespace(end=1), next_offset=self.end)
        return SimpleNamespace(committed=committed, epoch_at_end=7)

    def above(self, name: str) -> Above:
        return Above(reach=f"{name}:1", set=name, network="", group="mirror/lyon")

    def wake(self) -> None:
        self.woken += 1


def test_a_queue_above_is_compared_with_what_is_here_now_and_its_end_with_what_was_a_moment_ago() -> None:
    pulled = Pulled()
    assert pulled.pull.here() == Here(end=10, epoch=7, next=10)
    pulled.now, pulled.end = pulled.now + ON_THE_WAY_S / 2, 90
    assert pulled.pull.here() == Here(end=10, epoch=7, next=90)
    pulled.now += ON_THE_WAY_S
    assert pulled.pull.here() == Here(end=90, epoch=7, next=90)
