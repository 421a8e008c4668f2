"""Selection of the half messages and consumers that a status lists: those that need an operator, up to a limit. Pure.

The status also has their total numbers. Entries are selected before they are described, so the others cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from venus.broker.machine.consumers import ConsumerState
from venus.broker.machine.half_messages import HalfMessage
from venus.network.topology import PULLS_AS

#: Limit for one business.
NAMED_MAX = 1_000
#: Limit for all businesses together. Each business gets at least `EACH_MIN`.
ANSWER_MAX = 10_000
EACH_MIN = 10


@dataclass(slots=True, kw_only=True)
class EntrySelection:
    """How many entries one answer may still list."""

    halves_left: int = ANSWER_MAX
    consumers_left: int = ANSWER_MAX

    def select_halves(self, undecided: Sequence[HalfMessage]) -> list[HalfMessage]:
        """Return the oldest half messages."""
        chosen = list(islice(undecided, _room(self.halves_left)))
        self.halves_left -= len(chosen)
        return chosen

    def select_consumers(self, groups: Sequence[ConsumerState]) -> list[ConsumerState]:
        """Return broker sets, then groups that are away, then those that keep most of the queue; keep the order."""
        room = _room(self.consumers_left)
        if len(groups) > room:
            first = sorted(
                groups, key=lambda found: (not found.group.startswith(PULLS_AS), found.is_connected, found.kept)
            )
            chosen = {group.group for group in first[:room]}
            groups = [group for group in groups if group.group in chosen]
        self.consumers_left -= len(groups)
        return list(groups)


def _room(left: int) -> int:
    return max(EACH_MIN, min(NAMED_MAX, left))
