"""The network between brokers: messages arrive late, never, twice or out of order; links can be cut, also one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCalls:
    """Probabilities that a request or its answer is lost, and the maximum delay of a late answer."""

    lost: float = 0.0
    unheard: float = 0.0
    late_s: float = 0.0


GOOD_CALLS = BadCalls()


class Network:
    """The network; `cut` has the (from, to) pairs of names whose link is cut; "@" is the coordinator."""

    def __init__(self, loop: Loop) -> None:
        self.cut: set[tuple[str, str]] = set()
        self.loss = 0.0
        self.doubling = 0.0
        self.delay_s = 0.002
        self.jitter_s = 0.0
        self.late_s = 0.01  # maximum delay of a duplicate
        self.coordinator_jitter_s = 0.0
        self.bad_calls: dict[tuple[str, str], BadCalls] = {}  # by broker and kind of call to the coordinator
        self._loop = loop

    def heal(self) -> None:
        """End all faults of the network."""
        vars(self).pop("send", None)  # restores links that an abandoned script has tapped
        self.cut.clear()
        self.bad_calls.clear()
        self.loss = self.doubling = self.jitter_s = self.coordinator_jitter_s = 0.0

    def delay(self) -> float:
        """Return the delay of a message; a few take far longer than the others."""
        random = self._loop.random.random
        late = self.jitter_s * random() ** 4 if self.jitter_s else 0.0
        return self.delay_s * (0.5 + random()) + late

    def coordinator_delay(self) -> float:
        """Return the delay of a request to the coordinator, or of its answer."""
        return self.delay() + self.coordinator_jitter_s * self._loop.random.random() ** 2

    def passes(self, source: str, target: str) -> bool:
        """Return whether a message that is sent now arrives."""
        return (source, target) not in self.cut and not (self.loss and self._loop.random.random() < self.loss)

    def send(self, source: str, target: str, deliver: Callable[..., None], *arguments: Any) -> None:
        """Send a message; it may arrive twice or never."""
        if not self.passes(source, target):
            return
        self._loop.after(self.delay(), deliver, *arguments)
        if self.doubling and self._loop.random.random() < self.doubling:
            self._loop.counts["message delivered twice"] += 1
            self._loop.after(self.delay() + self._loop.random.random() * self.late_s, deliver, *arguments)
