"""When a broker did what with a cut, for the log of cuts (venus/cutlog.py). Nothing is kept while nobody listens."""

from __future__ import annotations

from collections.abc import Iterable

from venus import cutlog
from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import Placed
from venus.broker.pipeline.group import Group

#: Half messages whose times are kept; the oldest are forgotten first.
HALVES_MAX = 4096


class CutSteps:
    """Used by the commit thread alone, after the fsync of a group."""

    def __init__(self) -> None:
        self._synced_us = 0  # when the newest group was on disk
        self._on_disk: dict[tuple[int, int], dict[str, int]] = {}

    def synced(self, group: Group) -> None:
        """Note when this group was on disk, and which half messages it has persisted."""
        if not cutlog.wanted():
            return
        self._synced_us = cutlog.now_us()
        for business, applied in group.applied.items():
            for batch_no in applied.expected:
                half = business.committed.undecided(batch_no)
                if half is not None:
                    steps = {"received": half.received_at_us, "on_disk": self._synced_us}
                    self._on_disk[business.number, batch_no] = steps
        while len(self._on_disk) > HALVES_MAX:
            del self._on_disk[next(iter(self._on_disk))]

    def shown(self, business: Business, placed: Iterable[Placed]) -> None:
        """Say of each cut that ends here that it can be read."""
        if not cutlog.wanted():
            return
        for place in placed:
            steps = self._on_disk.pop((business.number, place.batch_no), {})
            if place.cut_end:
                cutlog.ended(
                    cutlog.Stage(
                        name="committed", business=business.name, cut=place.cut, captured_at_us=place.captured_at_us,
                        began_us=place.captured_at_us, ended_us=self._synced_us,
                        facts={"batches": place.batch_no - place.cut + 1, "next_offset": place.next_offset},
                        steps={**steps, "decided": place.committed_at_us},
                    )
                )  # fmt: skip
