"""Clusters of broker cores in one process: real stores, a network and a coordinator in memory, real time.

A killed node writes nothing more and closes nothing cleanly. Its lease ends at once. The leases of the others last
long, so that no node loses its lease because the machine is busy.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.engines import engines
from tests.support.engines.memory_coordinator import MemoryCluster, MemoryCoordinator
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.replicas import copies
from venus.broker.replicas.broker_load import BrokerHealth
from venus.broker.replicas.coordinator_thread import CoordinatorThread
from venus.broker.replicas.copies import CopyHeader, CopyMark, CopyPiece, CopyPlace, CopyPool
from venus.broker.replicas.host import Host
from venus.broker.replicas.installation import ReplicaInstaller
from venus.broker.replicas.placement import ReplicaPlacement
from venus.broker.replicas.replicated_logs import CoreLogs, ReplicatedLogs
from venus.errors import Unavailable
from venus.replication.messages import Answer, FetchReply, FetchRequest, SendFetch
from venus.replication.position import ReplicationTimes
from venus.replication.records import LiveBroker, Member, Policy

LEASE_S = 60.0
TICK_S = 0.02
#: Short times, so that tests are fast.
PATIENCE = ReplicationTimes(lag_s=3.0, idle_s=0.1, ballot_s=0.3, election_every_s=0.3, turn_s=0.1, fetch_s=1.0)


class RealClock(engines.Clock):
    """The clocks of the machine."""

    def clock_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class Net:
    """Network between nodes; `cut` has the pairs (from, to) between which no message arrives."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.cut: set[tuple[str, str]] = set()
        #: Changes each answer on its way, for example by flipped bits.
        self.mangle: Callable[[Answer], Answer] = lambda answer: answer

    def send(self, sender: Node, to: Member, call: Callable[[Node], None], lost: Callable[[], None]) -> None:
        """Run `call` at the receiving node, or `lost` at the sender."""
        node = self.nodes.get(to.broker)
        if node is None or node.killed or node.member != to or (sender.name, to.broker) in self.cut:
            sender.post(lost)
        else:
            node.post(lambda: call(node))


class MemoryTransport:
    """A `Transport` over a `Net`."""

    def __init__(self, net: Net, node: Node) -> None:
        self._net, self._node = net, node

    def fetch(self, to: LiveBroker, business: str, fetch: SendFetch) -> None:
        event = FetchRequest(
            sender=self._node.member,
            term=fetch.term,
            index=fetch.index,
            last_term=fetch.last_term,
            version=fetch.version,
            start=fetch.start,
        )
        self._send(to.member, lambda node: node.host.on_fetch(business, event))

    def reply(self, to: Member, business: str, answer: Answer) -> None:
        event = FetchReply(leader=self._node.member, answer=self._net.mangle(answer))
        self._net.send(self._node, to, lambda node: node.host.on_fetch_reply(business, event), lambda: None)

    def ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        sender = self._node

        def ask(node: Node) -> None:
            ballot = node.host.on_ballot_request(business, sender.member, term)
            if ballot is not None:
                self._net.send(
                    node, sender.member, lambda back: back.host.on_ballot(business, term, ballot), lambda: None
                )

        self._net.send(sender, to.member, ask, lambda: None)

    def _send(self, to: Member, call: Callable[[Node], None]) -> None:
        self._net.send(self._node, to, call, lambda: self._node.host.on_connection_lost(to))


class Node:
    """One broker without sockets."""

    def __init__(self, cluster: Cluster, name: str, store: str = "s1") -> None:
        self.name, self.member = name, Member(broker=name, store=store)
        self.killed = False
        self._cluster = cluster
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(1)
        self.errors = engines.Errors()
        self._shared = shared = ReplicatedLogs(backlog_bytes=cluster.backlog_bytes)
        self.core: Core = engines.make(
            cluster.folder / f"{name}-{store}",
            RealClock(),
            errors=self.errors,
            shared=shared,
            on_write=self._on_write,
            **cluster.options,
        )
        me = LiveBroker(member=self.member, address=f"{name}:1")
        self.coordinator = MemoryCoordinator(cluster.memory, lease_s=LEASE_S)
        self.coordination = CoordinatorThread(
            self.coordinator, lease_s=LEASE_S, monotonic=time.monotonic, post=self.post
        )
        self.copies = CopyPool(self.core, time.monotonic)
        self.installer = ReplicaInstaller(self.core, shared, self, post=self.post)
        self.host = Host(
            me,
            logs=CoreLogs(self.core, shared, me=name, background=lambda call: self._background(call)),
            shared=shared,
            transport=MemoryTransport(cluster.net, self),
            coordination=self.coordination,
            installations=self.installer,
            wanted=cluster.wanted,
            patience=PATIENCE,
            monotonic=time.monotonic,
            post=self.post,
            health=BrokerHealth(self.core.store, self.core.space),
            rebalance=cluster.rebalance,
        )
        cluster.net.nodes[name] = self
        self._thread = threading.Thread(target=self._run, name=f"host-{name}", daemon=True)
        self._thread.start()
        self.coordination.start(self.host, me)

    def post(self, call: Callable[[], None]) -> None:
        """Run a call in the host's thread."""
        self._inbox.put(call)

    def read_copy(
        self, leader: LiveBroker, business: str, mark: CopyMark | None
    ) -> Generator[CopyHeader | CopyPiece, None, None]:
        """Return the pieces of a leader's copy."""
        node = self._cluster.nodes[leader.member.broker]
        if (self.name, node.name) in self._cluster.net.cut:
            raise Unavailable("no way there")
        copy = node.copies.acquire(node.core.catalogue.find(business), mark.copy if mark is not None else "")
        try:
            yield CopyHeader(copy=copy.name, records_expected=copy.records_expected)
            continues = mark is not None and mark.copy == copy.name
            self._cluster.copied.append((copy.name, mark.records if mark is not None and continues else 0))
            for n, piece in enumerate(
                copies.read_pieces(copy, mark.next_place if mark is not None and continues else CopyPlace())
            ):
                self._cluster.piece_came(self, n)
                yield piece
        finally:
            node.copies.release(copy)

    def release_copy(self, leader: LiveBroker, _: str, copy: str) -> None:
        """Let the leader remove a copy."""
        self._cluster.nodes[leader.member.broker].copies.remove_installed(copy)

    def _background(self, call: Callable[[], None]) -> None:
        self._pool.submit(call)

    def _on_write(self, moment: str) -> None:
        if self.killed:
            raise OSError(f"killed {moment} a write")

    def _run(self) -> None:
        ticked = 0.0
        while not self.killed:
            try:
                call = self._inbox.get(timeout=TICK_S)
            except queue.Empty:
                call = self.host.tick
            if call is None:
                return
            call()
            if time.monotonic() - ticked > TICK_S:
                ticked = time.monotonic()
                self.host.tick()

    def ask(self, call: Callable[[Host], Any]) -> Any:
        """Run a call in the host's thread and return what it returns."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.post(lambda: answer.put(call(self.host)))
        return answer.get(timeout=engines.WAIT_S)

    def leads(self, business: str = engines.BUSINESS) -> bool:
        """Return whether this node leads the business and can accept writes."""
        standing = self._shared.standing(business)
        started = (
            business in self.host.replicas and self.core.catalogue.find(business).log.terms.newest == standing.term
        )
        return not self.killed and standing.leads and not standing.refusal and started

    def kill(self) -> None:
        """Kill the node as kill -9 does: written data stays, and no peer gets a message."""
        self.killed = True
        self._inbox.put(None)
        self._thread.join()
        self.coordination.stop(leave=False)
        self._cluster.memory.end_lease(self.name)
        self.installer.stop()
        self.copies.close()
        self._pool.shutdown()
        self.core.stop()

    def stop(self) -> None:
        """Stop the node cleanly, without a hand-over."""
        if not self.killed:
            self.coordination.stop()
            self._inbox.put(None)
            self._thread.join()
            self.installer.stop()
            self.copies.close()
            self._pool.shutdown()
            self.core.stop()


class Cluster:
    """Nodes that share a coordinator and a network."""

    def __init__(
        self,
        folder: Path,
        names: str = "abc",
        *,
        policy: Policy = Policy.CONSISTENCY,
        backlog_bytes: int = 1 << 30,
        rebalance: bool = False,
        **options: Any,
    ) -> None:
        self.folder, self.options, self.backlog_bytes = folder, options, backlog_bytes
        self.net, self.rebalance = Net(), rebalance
        #: Called with the installing node and the number of pieces it has received.
        self.piece_came: Callable[[Node, int], None] = lambda _node, _n: None
        #: The copies that were begun, and the number of records that each already had.
        self.copied: list[tuple[str, int]] = []
        self.memory = MemoryCluster(clock=time.monotonic)
        minimum = len(names) // 2 + 1 if policy is Policy.CONSISTENCY else 1
        self.wanted = ReplicaPlacement(replicas=len(names), policy=policy, min_in_sync=minimum)
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.start(name)

    def start(self, name: str, store: str = "s1") -> Node:
        """Start or restart a node."""
        self.nodes[name] = Node(self, name, store)
        return self.nodes[name]

    def create(self, name: str = "a", business: str = engines.BUSINESS) -> Node:
        """Create a business at a node; return its leader, perhaps another node, once no hand-over is due."""
        node = self.nodes[name]
        eventually(lambda: len(node.ask(lambda host: host.brokers.live)) == len(self.nodes))
        node.post(lambda: node.host.create(business))

        def is_settled() -> bool:
            known = node.ask(lambda host: host.records.get(business))
            leader = known.leader if known is not None and not known.successor else None
            return leader is not None and self.nodes[leader.broker].leads(business)

        eventually(is_settled)
        return self.leader(business)

    def leader(self, business: str = engines.BUSINESS) -> Node:
        """Wait for the node that accepts writes, and return it."""
        eventually(lambda: any(node.leads(business) for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.leads(business))

    def living(self) -> list[Node]:
        """Return the nodes that are not killed."""
        return [node for node in self.nodes.values() if not node.killed]

    def settle(self, business: str = engines.BUSINESS) -> None:
        """Wait until every living node has all entries and has applied them."""

        def has_equal_logs() -> bool:
            try:
                logs = [node.core.catalogue.find(business).log for node in self.living()]
            except Unavailable:
                return False  # a replica starts over
            return len({(log.end, log.applied + 1) for log in logs}) == 1 and logs[0].end == logs[0].applied + 1

        eventually(has_equal_logs)

    def stop(self) -> None:
        """Stop the living nodes."""
        for node in self.living():
            node.stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
