"""The network between brokers and their clients: TCP relays whose links can be cut in one direction.

A relay is in front of each broker, at the address that the cluster knows. The process that owns the other end of a
connection identifies the caller, so both ends of a link have names. Bytes on a cut link wait, because TCP resends
dropped packets in a real network; a new connection over a cut link waits too.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import psutil

from tests.support.faults.proxy import receive

CLIENT = "client"
CONNECT_S = 10.0
#: Time after which TCP resends a lost segment; if that is lost too, the next wait is twice as long.
RETRANSMIT_S = 0.2
Link = tuple[str, str]


@dataclass(slots=True)
class PoorLine:
    """Effects of a bad network on TCP: a piece is delayed, waits for a lost piece, or ends its connection.

    Above TCP a lost packet is a pause in which no later byte arrives; it is simulated as such a pause.
    """

    rng: random.Random
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    resets: float = 0.0
    lost: int = 0
    reset: int = 0

    def transit_s(self) -> float:
        """Return the delay of a piece in seconds; negative = its connection ends."""
        if self.rng.random() < self.resets:
            self.reset += 1
            return -1.0
        took, again = self.delay_s + self.rng.uniform(0, self.jitter_s), RETRANSMIT_S
        while self.rng.random() < self.loss:
            self.lost += 1
            took, again = took + again, 2 * again
        return took


class Links:
    """The links of the network; `pids` returns the process id of each running broker or client by name."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        self._pids = pids
        self._changed = threading.Condition()
        self._cut: frozenset[Link] = frozenset()
        self._flip: dict[Link, int] = {}
        self._poor: dict[Link, PoorLine] = {}
        self.flipped = 0
        self.met: set[str] = set()
        self.relays: dict[str, Relay] = {}

    def relay(self, name: str) -> Relay:
        """Start a relay in front of a broker."""
        self.relays[name] = Relay(self, name)
        return self.relays[name]

    def cut(self, links: Iterable[Link]) -> None:
        """Stop all bytes from the first to the second name of each pair; open all other links."""
        with self._changed:
            self._cut = frozenset(links)
            self._changed.notify_all()

    def heal(self, *, reset: bool = False) -> None:
        """Open all links; `reset` ends each connection, like a host that was away for too long."""
        self.cut(())
        if reset:
            for relay in self.relays.values():
                relay.reset()

    def impair(self, lines: Mapping[Link, PoorLine]) -> None:
        """Make these links poor, and all others good."""
        with self._changed:
            self._poor = dict(lines)

    def transit_s(self, link: Link) -> float:
        """Return the delay of the next piece in seconds."""
        with self._changed:
            line = self._poor.get(link)
            return line.transit_s() if line is not None else 0.0

    def flip(self, link: Link, after_bytes: int) -> None:
        """Flip one bit in the bytes of a link, after this many further bytes."""
        with self._changed:
            self._flip[link] = after_bytes

    def caller(self, port: int) -> str:
        """Return the name of the process that connects from a local port; `met` has every caller so far."""
        name = self._owner(port)
        self.met.add(name)
        return name

    def _owner(self, port: int) -> str:
        """Return the name of the process that has this local port, or the client's name."""
        for name, pid in list(self._pids().items()):
            with contextlib.suppress(psutil.Error):
                found = psutil.Process(pid).net_connections("tcp")  # gRPC uses IPv4 over an IPv6 socket
                if any(connection.laddr and connection.laddr[1] == port for connection in found):
                    return name
        return CLIENT

    def wait_open(self, *links: Link) -> None:
        """Wait until all of these links are open."""
        with self._changed:
            self._changed.wait_for(lambda: self._cut.isdisjoint(links))

    def damage_data(self, link: Link, data: bytes) -> bytes:
        """Return the bytes as they arrive, perhaps with a flipped bit."""
        if link not in self._flip:
            return data
        with self._changed:
            at = self._flip.pop(link)
            if at >= len(data):
                self._flip[link] = at - len(data)
                return data
            self.flipped += 1
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    def close(self) -> None:
        """Stop every relay."""
        self.heal()
        for relay in self.relays.values():
            relay.close()


class Relay:
    """Listens in front of one broker; `target` is its current port, which changes with a restart."""

    def __init__(self, links: Links, name: str) -> None:
        self._links, self._name = links, name
        self.target = ""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """End every connection by a reset."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for end in sockets:
            _abort(end)

    def close(self) -> None:
        """Stop listening, and end every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                client, (_, port, *_) = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, port), daemon=True).start()

    def _serve(self, client: socket.socket, port: int) -> None:
        """Connect a client to the broker once the link is open, and forward both directions."""
        caller = self._links.caller(port)
        up, down = (caller, self._name), (self._name, caller)
        self._links.wait_open(up, down)
        host, _, target = self.target.rpartition(":")
        try:
            broker = socket.create_connection((host, int(target)), timeout=CONNECT_S)
        except (OSError, ValueError):
            _abort(client)
            return
        broker.settimeout(None)
        with self._lock:
            self._sockets |= {client, broker}
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._pump, args=(broker, client, down), daemon=True)
        back.start()
        self._pump(client, broker, up)
        back.join()
        with self._lock:
            self._sockets -= {client, broker}
        for end in (client, broker):
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, link: Link) -> None:
        """Forward the bytes of one direction, as the link lets them through."""
        for data in receive(source):
            self._links.wait_open(link)
            took_s = self._links.transit_s(link)
            if took_s < 0:
                _abort(source)
                break
            time.sleep(took_s)
            try:
                sink.sendall(self._links.damage_data(link, data))
            except OSError:
                break
        self._links.wait_open(link)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _abort(end: socket.socket) -> None:
    """Close a connection with a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()
