"""A stream between a client and a broker: it delivers in order or breaks; each end notices a break after a delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from venus.errors import Unavailable, VenusError

if TYPE_CHECKING:
    from tests.simulation.brokers.host import BrokerHost

#: Longest time until an end notices that its connection broke.
NOTICED_S = 1.0

Taken = Callable[..., None]


class Stream:
    """One connection of a client to a broker process. The network calls a client "!"."""

    def __init__(self, host: BrokerHost, taken: Taken, ended: Callable[[VenusError], None], client: str = "!") -> None:
        self._client = client
        self.host, self.life = host, host.life
        self.open = True
        self.on_end: Callable[[], None] = lambda: None  # at the broker
        self._loop, self._network = host.loop, host.world.network
        self._taken, self._ended = taken, ended
        self._newest = {True: 0.0, False: 0.0}

    def up(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call a function of the broker, in its process."""
        self._send(True, lambda: self._at_broker(what, arguments))

    def down(self, *arguments: Any) -> None:
        """Send a message to the client."""
        self._send(False, lambda: self._taken(*arguments))

    def _at_broker(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Run a function in the broker's process, or break the stream if that process has ended."""
        if self.host.life != self.life:
            self.break_off()
        else:
            self.host.run(self.life, what, arguments)

    def _send(self, to_broker: bool, deliver: Callable[[], None]) -> None:
        """Deliver a message in order after a delay, or break the stream if the link is cut."""
        if not self.open:
            return
        ends = (self._client, self.host.name) if to_broker else (self.host.name, self._client)
        if not self._network.passes(*ends):
            self.break_off()
            return
        arrival = max(self._loop.now + self._network.delay(), self._newest[to_broker] + 1e-6)
        self._newest[to_broker] = arrival
        self._loop.at(arrival, self._deliver, deliver)

    def _deliver(self, deliver: Callable[[], None]) -> None:
        if self.open:
            deliver()

    def keep_alive(self) -> None:
        """Let the client notice that the broker's process is gone, although the client sends nothing."""
        if self.host.life != self.life:
            self.break_off()

    def break_off(self) -> None:
        """Break the connection: nothing more arrives, and both ends notice it."""
        if self.open:
            self.open = False
            self._loop.after(NOTICED_S * self._loop.random.random(), self._ended, Unavailable("the connection is lost"))
            self._loop.after(NOTICED_S * self._loop.random.random(), self._leave)

    def end(self, error: VenusError) -> None:
        """End the stream at the broker; the client gets the error, if it arrives."""
        if self.open:
            self.open = False
            self._leave()
            self._loop.after(self._network.delay(), self._ended, error)

    def close(self) -> None:
        """End the stream at the client."""
        if self.open:
            self.open = False
            self._loop.after(self._network.delay(), self._leave)

    def _leave(self) -> None:
        """Let the broker's process notice that the client is gone."""
        leave, self.on_end = self.on_end, lambda: None
        if self.host.life == self.life:
            self.host.run(self.life, leave, ())
