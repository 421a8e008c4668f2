"""Which half messages and consumers of its businesses a status names: those that need somebody, never too many. Pure.

How many there are is said with them. What nobody needs to see costs nothing: it is chosen before it is described.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from venus.broker.machine.consumers import Consumer
from venus.broker.machine.half import Half
from venus.network.topology import PULLS_AS

#: So many of one business are named.
NAMED_MAX = 1_000
#: So many of all businesses together; of each some, whatever the others have.
ANSWER_MAX = 10_000
EACH_MIN = 10


@dataclass(slots=True, kw_only=True)
class Naming:
    """How many are still to be named: for one answer."""

    halves_left: int = ANSWER_MAX
    consumers_left: int = ANSWER_MAX

    def halves(self, undecided: Sequence[Half]) -> list[Half]:
        """Return the oldest."""
        chosen = list(islice(undecided, _room(self.halves_left)))
        self.halves_left -= len(chosen)
        return chosen

    def consumers(self, groups: Sequence[Consumer]) -> list[Consumer]:
        """Return broker sets, those that are away, then those for which most is kept; in the order they came in."""
        room = _room(self.consumers_left)
        if len(groups) > room:
            first = sorted(
                groups, key=lambda found: (not found.group.startswith(PULLS_AS), found.connected, found.kept)
            )
            chosen = {group.group for group in first[:room]}
            groups = [group for group in groups if group.group in chosen]
        self.consumers_left -= len(groups)
        return list(groups)


def _room(left: int) -> int:
    return max(EACH_MIN, min(NAMED_MAX, left))
